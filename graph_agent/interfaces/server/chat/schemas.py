"""Holds a chat request independent of its API, and the fields and checks that the bodies of the chat APIs share."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, SecretStr

from graph_agent.base._internal.json_bounds import JsonBounds, JsonBoundsError, TooManyValuesError, count_values
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.errors import ConfigError
from graph_agent.base.input_ids import InputId
from graph_agent.base.settings.response_format import client_schema
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError

FUNCTION_NAME = r"^[a-zA-Z0-9_-]{1,64}$"
"""Pattern of the names of functions."""
_ANSWER_TOKEN = re.compile(r"[0-9a-f]{32}")
SESSION_ID = r"^[A-Za-z0-9._:-]{1,128}$"
"""Pattern of session ids. A slash is excluded, because it would give access to sessions of another key."""

_ARGUMENTS = JsonBounds(values=20_000, depth=200)
"""Limits of the arguments of all calls in a request.

They are JSON as text, which the limits of the body count as one value.
"""

_T = TypeVar("_T")
AgenticLoops = Annotated[
    int | None, Field(ge=0, description="Reruns that the agent's hooks may have; at most as many as the agent allows.")
]
"""The field `max_agentic_loops` of a request, an extension of the chat APIs."""

VISIBLE = r"[^\s\x1c-\x1f]"
"""Pattern that matches if a text is not blank.

Python counts four control characters as white space, and pydantic does not.
"""
_SCHEMA_CHARS = 50_000
"""Maximum characters of the answer's schema. Checking several hundred thousand takes about a second."""
NO_CREDENTIALS = (
    "credentials are not taken from a body, which may be logged and stored on its way; send them in the headers that "
    "the server's credential_headers name, or give them in the agent file"
)
_MAY_HOLD = ("metadata", "context", "configurable", "extra_body")
"""Names of the objects in a body in which clients put fields for the agent, as in `configurable` of `config`."""


class _FirstFault(FailFast):
    """Makes pydantic stop at the first fault of a list. It is hashable, which members of a union must be."""

    # Members of a union must be hashable, and pydantic's `FailFast` is not.
    def __hash__(self) -> int:
        """Return a hash, because members of a union must be hashable."""
        return hash(self.fail_fast)


def _between_items(item: Any) -> Any:
    """Return the item unchanged. Calling Python code for each item lets a validating thread release the GIL."""
    return item


ListOf = Annotated[list[Annotated[_T, BeforeValidator(_between_items)]], _FirstFault()]
"""A list whose validation stops at the first fault, because a body may have many, and each message takes about a
kilobyte.
"""


def _whole_id(text: str) -> str:
    """Return an id unchanged; raise `ValueError` if it contains U+FFFD, by which characters that cannot be stored were
    replaced.
    """
    if "\ufffd" in text:  # `clean_body` replaces lone surrogates and NUL with it
        raise ValueError("an id may hold no lone surrogate, NUL or U+FFFD; send the id as it was given")
    return text


CallId = Annotated[str, AfterValidator(_whole_id)]
"""The id of a call.

Characters that cannot be stored are refused, because ids that differ only in them would become equal.
"""


class RequestObject(BaseModel):
    """A body, or an object in it. Fields that are not declared are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class SessionMetadata(RequestObject):
    """A request's metadata; only `session_id` has an effect."""

    session_id: str | None = Field(None, pattern=SESSION_ID, description="Id of the session to continue or create.")


def clean_body(data: Any) -> Any:
    """Return a body as JSON that can be stored: lone surrogates, NUL and non-finite numbers are replaced.

    Raises `ValueError` if it is nested too deeply or contains credentials. A validated model is returned unchanged.
    """
    if isinstance(data, BaseModel):
        return data  # `BodyRoute` has validated it
    if has_credentials(data):
        raise ValueError(NO_CREDENTIALS)
    return to_json_safe(data)


def checked_session_id(id_: str, param: str = "metadata.session_id") -> str:
    """Check a session id from a header or a field, and return it unchanged.

    Raises `InvalidRequestError`, with the name `param` of the header or field, if the id does not match `SESSION_ID`.
    """
    if not re.fullmatch(SESSION_ID, id_):
        raise InvalidRequestError(f"{param}: {id_!r} does not match {SESSION_ID}.", param)
    return id_


def check_arguments(calls: Iterable[tuple[str | None, str]], param: str) -> None:
    """Check that the arguments of all calls of a request together have at most 20,000 JSON values, and at most 200
    levels each.

    Args:
        calls: Id and arguments (JSON as text) of each call.
        param: Name of the request's field, for errors.

    Raises:
        ProblemError: The arguments have too many values (`too_large`), or are nested too deeply (`invalid`).
    """
    # One limit for all calls: many small ones cost as much as a large one.
    remaining = _ARGUMENTS.values
    for id_, arguments in calls:
        try:
            remaining -= count_values(arguments, JsonBounds(remaining, _ARGUMENTS.depth))
        except TooManyValuesError:
            raise ProblemError(
                "too_large",
                f"The calls' arguments hold more than {_ARGUMENTS.values} JSON values together. Send fewer calls.",
                param=param,
            ) from None
        except JsonBoundsError as error:
            raise InvalidRequestError(f"The arguments of the call {id_!r}: {error}", param) from None


def count_parts(content: Any) -> int:
    """Return the number of content parts of a message, including parts inside other parts; 0 for a text."""
    if not isinstance(content, list):
        return 0
    return sum(1 + count_parts(getattr(part, "content", None)) for part in content)


def has_credentials(data: Any) -> bool:
    """Return whether a body has a field `credentials`, at its top or in `metadata`, `context`, `configurable`,
    `extra_body` or `config.configurable`, where clients put fields for the agent.
    """
    if not isinstance(data, dict):
        return False
    config = data.get("config")
    inner = [*map(data.get, _MAY_HOLD), config.get("configurable") if isinstance(config, dict) else None]
    return any(isinstance(each, dict) and "credentials" in each for each in (data, *inner))


def answer_schema(
    kind: str | None, schema: dict[str, Any] | None, param: str, field_name: str
) -> dict[str, Any] | None:
    """Return the JSON schema of the answer that a request asks for; None for text.

    Args:
        kind: Type of the format: `text`, `json_object`, `json_schema`, or None for text.
        schema: The schema of the type `json_schema`; None if the request has none.
        param: Name of the request's field with the format, for errors.
        field_name: Name of the field with the schema in it, for errors.

    Raises:
        InvalidRequestError: A schema is missing, or cannot be used.
    """
    if kind is None or kind == "text":
        return None
    if kind == "json_object":
        # Any object: the request names no schema.
        return {"type": "object"}
    if schema is None:
        raise InvalidRequestError(f"{param} has no {field_name}.", param)
    return checked_schema(schema, param)


def checked_schema(schema: dict[str, Any], param: str) -> dict[str, Any]:
    """Return a JSON schema unchanged, after checking that answers can be validated with it.

    Raises `InvalidRequestError` if it is invalid, has more than 50,000 characters, or refers to anything outside it.
    """
    text = json.dumps(schema)
    if (size := len(text)) > _SCHEMA_CHARS:
        raise InvalidRequestError(f"{param}: the schema has {size} characters; it may have {_SCHEMA_CHARS}.", param)
    for reference in _references(schema):
        # A validator would fetch another address.
        if not (isinstance(reference, str) and reference.startswith("#")):
            raise InvalidRequestError(f"{param}: the reference {reference!r} leads outside the schema.", param)
    try:
        client_schema(text)  # the nodes of the run, which are on the event loop, find it there
    except ConfigError as error:
        raise InvalidRequestError(str(error), param) from None
    return schema


def _references(value: Any) -> Iterator[Any]:
    """Yield the values of `$ref` and similar keys in a JSON schema, at any depth. A property of such a name, whose
    value is an object, does not count.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            if name in ("$ref", "$dynamicRef", "$recursiveRef") and not isinstance(item, dict):
                yield item
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One parsed chat request, in a form that all chat APIs share."""

    messages: list[AnyMessage]
    """The request's conversation without system messages; never empty."""
    instructions: str = ""
    """The system messages, joined by empty lines; empty if there are none."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of `AgentContext` for this run, e.g. `temperature`. Options that are not set are absent."""
    credentials: Mapping[str, SecretStr] = field(default_factory=dict)
    """Credentials from the headers, for the tools of this run."""
    client_tools: list[dict[str, Any]] = field(default_factory=list)
    """The caller's own tools in OpenAI's format."""
    unsupported_tools: list[str] = field(default_factory=list)
    """Types of those tools of the request that are not functions, such as a provider's web search."""
    offers_own_tools: bool = False
    """Whether the request lists the agent's own tools among those that may be used."""
    session_id: str | None = None
    """The session to continue or create; None for a request that carries its whole history."""
    is_stored: bool = True
    """Whether the request may belong to a session; if not, neither a header nor a field names one."""
    answer_token: str = ""
    """Id of the message of a new input in a session, by which feedback finds the answer; empty for a random one."""
    session_label: str = "This session"
    """How errors name the session, for APIs in which clients do not name it by its id."""
    stream: bool = False
    """Whether the answer is streamed."""
    call_token: str | None = None
    """Token in the ids of the calls that `messages` answer; None if the ids are the model's own."""
    new_call_token: str | None = None
    """Token for the ids of the calls that the answer returns to the caller; None for the default ids."""
    marks_questions: bool = False
    """Whether a question for approval ends with a marker with `new_call_token`, for a client that sends its whole
    history.
    """
    decisions: Mapping[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """(First 8 characters of an interrupt's id, index of a call in it) → decision on the call."""
    pending_token: str | None = None
    """Token of the request without a session that the decisions belong to; None if there is none."""
    adds_all: bool = False
    """Whether all messages are new to an existing session. Otherwise only those after the agent's last message are."""
    before: Callable[[], Awaitable[None]] | None = None
    """Awaited when the run holds its session's lock.

    It may raise `SessionBusyError` to refuse the run. None for nothing.
    """
    shows_reasoning: bool = False
    """Whether the model's reasoning is sent."""
    shows_calls: bool = False
    """Whether the events about the agent's own plans and calls are sent."""
    mark: InputId | None = None
    """The idempotency key of the request with a digest of the content; None if there is no key."""
    is_attempt: bool = False
    """Whether the request is for a stored response and has no key, so that `mark` is that of an attempt."""
    progress_as_field: bool = False
    """Whether progress is sent in a field of the answer; otherwise in comments of the stream."""

    def context(self) -> dict[str, Any]:
        """Return the `AgentContext` of the run as a dict, in which options that are not set, and empty instructions,
        client tools and credentials, are absent.

        Credentials are `SecretStr`.
        """
        instructions = {"instructions": self.instructions} if self.instructions else {}
        tools = {"client_tools": self.client_tools} if self.client_tools else {}
        secret = {"credentials": dict(self.credentials)} if self.credentials else {}
        return {**self.options, **instructions, **tools, **secret}


def trailing_results(messages: Sequence[AnyMessage]) -> tuple[list[ToolMessage], list[HumanMessage]]:
    """Return the tool results at the end of a conversation, and the user messages after them, each in order.

    Both are empty if there is no result.
    """
    user_messages: list[HumanMessage] = []
    results: list[ToolMessage] = []
    for message in reversed(messages):
        if isinstance(message, HumanMessage) and not results:
            user_messages.append(message)
        elif isinstance(message, ToolMessage):
            results.append(message)
        else:
            break
    return (results[::-1], user_messages[::-1]) if results else ([], [])


def new_messages(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages after the agent's last message, which a session does not have yet."""
    at = max((i for i, message in enumerate(messages) if isinstance(message, AIMessage)), default=-1)
    return list(messages[at + 1 :])


def results_by_call(results: Sequence[ToolMessage]) -> dict[str, ToolMessage]:
    """Return results by the ids of their calls; raise `ProblemError` if a call has two results."""
    found: dict[str, ToolMessage] = {}
    for result in results:
        if result.tool_call_id in found:
            raise _two_results(result.tool_call_id)
        found[result.tool_call_id] = result
    return found


def _two_results(call_id: str) -> ProblemError:
    """Return the error for a call with two results."""
    return InvalidRequestError(f"The call {call_id!r} has two results; send one.", "messages")


def check_conversation(messages: Sequence[AnyMessage]) -> None:
    """Raise `InvalidRequestError` unless a conversation ends with a message to answer, and its calls have their
    results.

    It must not be empty or end with the assistant's message. Each call needs exactly one result, before the next
    message that is no result, and each result a call before it.
    """
    if not messages:
        raise InvalidRequestError("There is no message to answer; send one of the user's.", "messages")
    if isinstance(messages[-1], AIMessage):
        raise InvalidRequestError(
            "The last message must be the user's or a tool's result, not the assistant's.", "messages"
        )
    open_ids: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        if isinstance(message, AIMessage):
            _all_answered(open_ids)
            open_ids, answered = {call["id"] or "" for call in message.tool_calls}, set()
        elif isinstance(message, ToolMessage):
            if message.tool_call_id in answered:
                raise _two_results(message.tool_call_id)
            if message.tool_call_id not in open_ids:
                raise InvalidRequestError(f"The result {message.tool_call_id!r} answers no call before it.", "messages")
            open_ids.discard(message.tool_call_id)
            answered.add(message.tool_call_id)
        else:
            _all_answered(open_ids)
    _all_answered(open_ids)


def _all_answered(open_ids: set[str]) -> None:
    """Raise `InvalidRequestError`, which lists the ids, if any ids of calls without a result are left."""
    if open_ids:
        listed = ", ".join(sorted(open_ids))
        raise InvalidRequestError(f"These calls have no result right behind them: {listed}.", "messages")


def answer_token_of(caller: str, request: ChatRequest) -> str:
    """Return the token of the answer to a new request: 32 hexadecimal digits, random without an idempotency key, and
    otherwise always the same for the caller, the session and the key.

    It is the id of the user's message, and the id of the answer contains it. `caller` is the owner of the API key.
    """
    if request.mark is None:
        return uuid.uuid4().hex
    named = f"{caller}\0{request.session_id or ''}\0{request.mark.id}"
    return hashlib.sha256(named.encode()).hexdigest()[:32]


def token_in(values: Mapping[str, Any]) -> str:
    """Return the token of the newest input in a session's state; empty if no request named it."""
    named = (values.get("loop") or {}).get("last_input_id", "")
    return named if _ANSWER_TOKEN.fullmatch(named) else ""


def with_token(messages: Sequence[AnyMessage], token: str) -> list[AnyMessage]:
    """Return messages, of which the last one, if it is the user's, has the id `token`; unchanged for an empty token.

    Raises `ValueError` if there are no messages.
    """
    *before, last = messages
    if token and isinstance(last, HumanMessage):
        last = last.model_copy(update={"id": token})
    return [*before, last]
