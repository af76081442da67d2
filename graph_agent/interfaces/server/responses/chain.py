"""Maps a request for a response to a session: the next input of a chain, a branch of it, or a new session.

A *chain* is the responses that continue each other, all in one session; a *branch* continues an older response in a new
session. A request that repeats the idempotency key of an earlier one gets its stored response, or continues an
unfinished one. A *token* is the part of a response's id that its items share.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langgraph.types import StateSnapshot
from typing_extensions import TypedDict

from graph_agent.base.input_ids import InputId, digest_of
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.history import continued_input
from graph_agent.interfaces.server.chat.run_spec import pending_question, token_of_key, with_key
from graph_agent.interfaces.server.chat.schemas import ChatRequest, trailing_results
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.problems import BusySessionError, InvalidRequestError, ProblemError, key_reused
from graph_agent.interfaces.server.responses import schemas
from graph_agent.interfaces.server.responses.ids import place_of_approval, response_id, token_of_item, token_of_response
from graph_agent.interfaces.server.responses.output import summary_wanted
from graph_agent.interfaces.server.responses.records import KEYS, OPEN_STATUSES, Record, Records, keys_of_day
from graph_agent.interfaces.server.responses.schemas import Conversation, as_items, replace_references
from graph_agent.session.deduplicator import InputDeduplicator

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Chains:
    """Finds the session of each request of one caller, the owner of an API key."""

    host: Host
    records: Records

    async def resolve(
        self, body: schemas.CreateResponse, content: Conversation, token: str, session_id: str | None, *, branches: bool
    ) -> ChatRequest:
        """Return the chat request for a request to the Responses API, with the session in which it runs.

        - With `session_id`, it is that session.
        - A stored request that continues the newest response of a session, and not as a branch, runs in that session.
        - Any other stored request begins a session with the id of the new response. If it names a previous response,
          the messages of that response precede its own.
        - A request that is not stored has no session.

        Args:
            body: The body of the request.
            content: The content of its items.
            token: Token of the new response.
            session_id: Id of the session that headers, metadata or the conversation name; None to derive it from the
                items.
            branches: Whether to continue a previous response in a new session, even if it is the newest of its session.

        Raises:
            ProblemError: The previous response is not stored, still in progress, or its history was deleted; or
                approval responses decide on calls that no longer wait.
        """
        request = self._request(body, content, token)
        if session_id is not None:
            if body.conversation_id is not None:
                request = replace(request, session_label=f"The conversation {body.conversation_id!r}")
            return replace(request, session_id=session_id, call_token=_answered_token(content), marks_questions=False)
        is_explicit = body.previous_response_id is not None
        previous = await self._previous(body, content)
        if previous is not None:
            label = f"The conversation of the response {previous['response']['id']!r}"
            request = replace(request, session_label=label)
            if previous["response"]["status"] in OPEN_STATUSES:
                raise InvalidRequestError("The previous response is still in progress.", "previous_response_id")
            # An older response has been continued already, so the new one becomes a branch.
            if body.is_stored and not branches and await self._is_newest(previous):
                return replace(
                    request,
                    session_id=previous["session"],
                    adds_all=is_explicit,
                    before=partial(self._check_newest, previous),
                    call_token=token_of_response(previous["response"]["id"]),
                )
            if is_explicit:
                request = await self._branch(previous, request)
        if body.is_stored:
            if request.decisions:
                raise InvalidRequestError(
                    "The calls of these approval responses no longer wait: they are decided, or their response is not "
                    "stored for this API key. Name the session, or the response that asked.",
                    "input",
                )
            return replace(request, session_id=response_id(token))
        # A response that is not stored still waits in a thread of its own.
        pending = _answered_token(content) if request.decisions else None
        return replace(request, pending_token=pending, new_call_token=None)

    async def matching(self, session_id: str | None, body: schemas.CreateResponse, content: Conversation) -> str | None:
        """Return the id of the session that a client names; None if the request's messages have another history than
        the session.

        A client may send its history with each request, and edit it; the request then needs a new session. The id is
        returned unchecked if the request names a conversation, has decisions on approvals, or has no message of the
        assistant, and if nothing is stored in the session. Raises `InvalidRequestError` if the message decides on calls
        whose input has failed since.
        """
        if session_id is None or body.conversation_id is not None or content.decisions:
            return session_id
        if not any(message.type == "ai" for message in content.messages):
            return session_id
        thread = self.records.thread_of(session_id)
        state = await self.host.kept.aget_state({"configurable": {"thread_id": thread}})
        return None if state.values and continued_input(content.messages, state) is None else session_id

    def _request(self, body: schemas.CreateResponse, content: Conversation, token: str) -> ChatRequest:
        """Return the chat request for a request's content, without a session. Instructions without any message become
        the user's message.

        Raises `InvalidRequestError` for an unknown approval request, one with two different responses, and an invalid
        schema or tool choice.
        """
        messages: list[AnyMessage] = list(content.messages)
        system = list(content.instructions)
        if not messages and not content.decisions and system:
            messages = [HumanMessage(system.pop())]  # clients that have only a system prompt
        decisions: dict[tuple[str, int], dict[str, Any]] = {}
        for id_, decision in content.decisions.items():
            if (place := place_of_approval(id_)) is None:
                raise InvalidRequestError(f"There is no approval request {id_!r}.", "input")
            if decisions.setdefault(place, decision) != decision:
                message = f"The call of the approval request {id_!r} has two different responses; send one."
                raise InvalidRequestError(message, "input")
        tools = body.tools or []
        own_tools = [tool for tool in tools if schemas.is_agent(tool, body.model)]
        return ChatRequest(
            messages=messages,
            instructions="\n\n".join(filter(None, [body.instructions, *system])),
            options=schemas.options_of(body),
            client_tools=schemas.client_tools_of(body),
            unsupported_tools=[tool.type for tool in tools if tool.type != "function" and tool not in own_tools],
            offers_own_tools=bool(own_tools),
            stream=bool(body.stream),
            new_call_token=token,
            answer_token=token,
            marks_questions=True,
            decisions=decisions,
            shows_reasoning=summary_wanted(body) is not None or schemas.ENCRYPTED_REASONING in (body.include or []),
            shows_calls=self.host.settings.show_calls if body.show_calls is None else body.show_calls,
        )

    async def _previous(self, body: schemas.CreateResponse, content: Conversation) -> Record | None:
        """Return the record of the response that a request continues, found by its id, or else by the calls or the
        question that the request answers; None if there is none.

        Raises `ProblemError` (`previous_response`) if the response that the request names is not stored.
        """
        if body.previous_response_id is not None:
            return await self.records.previous(body.previous_response_id)
        token = _answered_token(content) or pending_question(content.messages)
        return await self.records.find(token) if token is not None else None

    async def _check_newest(self, record: Record) -> None:
        """Raise `BusySessionError` if another request has continued the session after this response."""
        if not await self._is_newest(record):
            raise BusySessionError("Another request has continued the session.")

    async def _is_newest(self, record: Record) -> bool:
        """Return whether the session still ends with this response; True also if the run was stopped, so that its end
        is unknown.

        False if the session is not stored.
        """
        stored = await self.host.saver.aget_tuple({"configurable": {"thread_id": self.records.thread(record)}})
        if stored is None:
            return False
        return record["checkpoint"] in (None, stored.config["configurable"]["checkpoint_id"])

    async def _branch(self, record: Record, request: ChatRequest) -> ChatRequest:
        """Return a request whose messages begin with the history of an earlier response, so that it can run in a new
        session.

        Results in the request get the model's ids of their calls, which that history has. Raises `ProblemError`
        (`previous_response`) if the history is not stored.
        """
        messages = await self.history(record)
        raw = record["calls"]
        return replace(request, messages=[*messages, *(_with_raw_id(message, raw) for message in request.messages)])

    async def history(self, record: Record) -> list[AnyMessage]:
        """Return the messages of a session as they were at the end of a response, without results of the caller's calls
        that waited then.

        Raises `ProblemError` (`previous_response`) if they are not stored, because the session was deleted or pruned,
        or its run was stopped.
        """
        place = {"thread_id": self.records.thread(record), "checkpoint_id": record["checkpoint"]}
        state = await self.host.kept.aget_state({"configurable": place})
        if record["checkpoint"] is None or not state.values:
            raise ProblemError(
                "previous_response",
                "The history of the previous response is not stored: its session was deleted or pruned, or its run was "
                "stopped. Send the conversation as input.",
                param="previous_response_id",
            )
        return messages_of(state, set(record["calls"].values()))


def _answered_token(content: Conversation) -> str | None:
    """Return the token of the one response whose calls or approval requests a request answers; None if it answers none,
    or those of several.
    """
    results, _ = trailing_results(content.messages)
    ids = [*(result.tool_call_id for result in results), *content.decisions]
    tokens = {token_of_item(id_) for id_ in ids}
    return tokens.pop() if len(tokens) == 1 else None


def messages_of(state: StateSnapshot, client_ids: Collection[str] = ()) -> list[AnyMessage]:
    """Return the messages of a state, with the results of finished calls in a step that waits for the caller.

    Args:
        client_ids: Ids of the caller's calls. Their results are left out, although they may be stored by now.
    """
    messages: list[AnyMessage] = list(state.values.get("messages", []))
    for task in state.tasks:
        finished = (task.result or {}).get("messages", ())
        messages += [each for each in finished if getattr(each, "tool_call_id", None) not in client_ids]
    return messages


def _with_raw_id(message: AnyMessage, raw: Mapping[str, str]) -> AnyMessage:
    """Return a tool message with the model's own id of its call; other messages are returned unchanged.

    Args:
        raw: The caller's id of a call → the model's id.
    """
    if isinstance(message, ToolMessage) and message.tool_call_id in raw:
        return message.model_copy(update={"tool_call_id": raw[message.tool_call_id]})
    return message


async def items_of(value: str | Sequence[schemas.InputItem], records: Records) -> list[schemas.InputItem]:
    """Return a request's input as items. References are replaced by the stored items that they name.

    Raises `ProblemError` (`not_found`) for a reference to an unknown item.
    """
    items = as_items(value)
    references = [item.id or "" for item in items if item.type == "item_reference"]
    return replace_references(items, await records.items(references)) if references else items


def input_of(items: Sequence[schemas.InputItem], token: str) -> list[dict[str, Any]]:
    """Return a request's items in the form in which they are stored: with an id, made of `token` if they have none, and
    texts as parts.
    """
    return [_stored_item(item, f"msg_{token}{0xF000 + index:04x}") for index, item in enumerate(items)]


def _stored_item(item: schemas.InputItem, id_: str) -> dict[str, Any]:
    """Return an item in the form in which it is stored: with the id `id_` if it has none, without fields that are None.

    A message also gets the status `completed`, and its text becomes a part.
    """
    stored = {**item.model_dump(exclude_none=True), "id": item.id or id_}
    if item.type == "message":
        stored["status"] = "completed"
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            extra: dict[str, Any] = {"annotations": []} if item.role == "assistant" else {}
            stored["content"] = [{"type": kind, "text": item.content, **extra}]
    return stored


class KeyedResponse(TypedDict):
    """The entry of an idempotency key: the response of the first request with it."""

    token: str
    """Token of the response."""
    session: str
    """Id of the response's session."""
    digest: str
    """Hash of the request. A repeated request must have the same."""


@dataclass(frozen=True, slots=True)
class Key:
    """The idempotency key of one request for a stored response.

    How the answer is sent does not change the digest of the request.
    """

    host: Host
    caller: Caller
    mark: InputId
    """The key, with the digest of the request."""

    @classmethod
    def of(cls, host: Host, caller: Caller, key: str | None, body: schemas.CreateResponse) -> Key | None:
        """Return the key of a request; None if `key` is None. Raises `InvalidRequestError` if the key is not valid.

        The digest, by which another request with the same key is recognized, is that of the body without the options of
        streaming.
        """
        if (mark := with_key(ChatRequest([]), key).mark) is None:
            return None
        digest = digest_of(body.model_dump(mode="json", exclude={"stream", "stream_options"}))
        return cls(host, caller, InputId(mark.id, digest))

    def session_of(self, request: ChatRequest, token: str) -> str:
        """Return the id of the session in which a request runs.

        A request that begins a chain gets an id made of the key, so that repeated requests have the same session. Any
        other request keeps its session.

        Args:
            request: The request, as `Chains.resolve` returns it.
            token: Token of the response that the request begins.
        """
        is_new = request.session_id in (None, response_id(token))
        return response_id(self._token) if is_new else str(request.session_id)

    @property
    def _token(self) -> str:
        """Token that is the same for all requests of this caller with this key."""
        return token_of_key(self.caller, self.mark.id)

    @asynccontextmanager
    async def claimed(self) -> AsyncIterator[None]:
        """Exclude other requests of the caller with this key, in every process on the database, within the context."""
        async with self.host.claim(f"response-key/{self._token}"):
            yield

    async def resolve(
        self, first: KeyedResponse | None, resolve: Callable[[str | None], Awaitable[ChatRequest]], token: str
    ) -> ChatRequest:
        """Return a request with its session: the session of the first request with this key, if that has received the
        input.

        Otherwise the session is chosen anew, and recorded for the key before the request runs. If `resolve` fails
        because the first request has begun meanwhile, it is called again with that session; its other errors are
        raised.

        Args:
            first: The response of the first request with this key; None if this is the first.
            resolve: Returns the request for the session with the given id; for None, for the session that the request
                names, or a new one. Raises `ProblemError` if that session cannot be continued.
            token: Token of the new response.
        """
        # The first request may receive its input while this one chooses a session.
        while True:
            begun = first["session"] if first is not None and await self.has_begun(first["session"]) else None
            try:
                request = await resolve(begun)
            except ProblemError:
                if begun is None and first is not None and await self.has_begun(first["session"]):
                    continue  # the first request has moved the session meanwhile
                raise
            if begun is not None:
                return replace(request, mark=self.mark)
            if first is None or not await self.has_begun(first["session"]):
                break
        session = self.session_of(request, token)
        await self.put(token, session)
        # A repetition must not fail because the first request has continued the session.
        before = None if request.before is None else partial(self._unless_begun, session, request.before)
        return replace(request, mark=self.mark, session_id=session, before=before)

    async def _unless_begun(self, session: str, check: Callable[[], Awaitable[None]]) -> None:
        """Call `check`, which raises if a session cannot receive the input, unless the session has received the input
        already.
        """
        if not await self.has_begun(session):
            await check()

    async def first(self) -> KeyedResponse | None:
        """Return the entry of this key; None for a new key.

        Raises `ProblemError` if the first request with the key was different.
        """
        item = await self.host.store.aget(KEYS, self._token)
        if item is None:
            return None
        found = cast("KeyedResponse", item.value)
        if found["digest"] != self.mark.digest:
            raise key_reused()
        return found

    async def put(self, token: str, session: str) -> None:
        """Store the token and the session of the response for this key. They expire together with the response."""
        value = {"token": token, "session": session, "digest": self.mark.digest}
        await self.host.store.aput(keys_of_day(token), self._token, {}, index=False)
        await self.host.store.aput(KEYS, self._token, value, index=False)

    async def has_begun(self, session: str) -> bool:
        """Return whether a session has received the input of this key."""
        admission = InputDeduplicator(self.host.saver, self.host.kept.aget_state, self.caller.thread(session))
        return await admission.seen(self.mark) is not None
