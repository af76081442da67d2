"""Handles the message history: checks of input, open calls, placement of results, rewriting, failed inputs.

An open call is a tool call of the model without a result in the history. Providers refuse a history whose results do
not follow their calls.
"""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from types import NoneType
from typing import Any, get_args
from uuid import UUID

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    RemoveMessage,
    ToolCall,
    ToolMessage,
    convert_to_messages,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph.message import push_message
from langgraph.types import Command, Overwrite

from graph_agent.base.errors import InputError, ModelFailedError, RunFailedError

FAILURE_MARK = "graph_agent"
"""Key of this package's entry in `response_metadata`."""
KEPT_AS = "graph_agent_kept_as"
"""Key in the artifact of a tool result whose newest value stays in requests in full after compaction of the history."""


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """The calls of one of the model's messages that have no result yet."""

    at: int
    """Index of that message in the history."""
    calls: list[ToolCall]
    """The calls, in the order of the message."""


def open_calls(messages: Sequence[AnyMessage]) -> list[OpenCalls]:
    """Return the calls without a result, one entry for each model message that has any, oldest first.

    A result counts only for the nearest model message before it, because models repeat ids within a session. Calls of
    one message with the same id count once. Invalid calls (`invalid_tool_calls`) do not count.
    """
    found: list[OpenCalls] = []
    pending: dict[str, ToolCall] = {}
    at = -1

    def close() -> None:
        if pending:
            found.append(OpenCalls(at, list(pending.values())))

    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            close()
            at, pending = index, {call["id"] or "": call for call in message.tool_calls}
        elif isinstance(message, ToolMessage):
            pending.pop(message.tool_call_id, None)
    close()
    return found


def is_settled(messages: Sequence[AnyMessage]) -> bool:
    """Whether the results of each model message's calls follow it directly, and no result is without its call.

    False also in doubt: for invalid calls, and for a message in which two calls have the same id.
    """
    open_ids: list[str | None] = []
    for message in messages:
        # Every input reads the whole history here; reading `type` takes a fifth of `isinstance`.
        if message.type == "tool":
            if message.tool_call_id not in open_ids:
                return False
            open_ids.remove(message.tool_call_id)
        elif open_ids:
            return False
        elif message.type == "ai":
            open_ids = [call["id"] for call in message.tool_calls]
            if message.invalid_tool_calls or (len(open_ids) > 1 and len({*open_ids}) < len(open_ids)):
                return False
    return not open_ids


def with_results(messages: Sequence[AnyMessage], results: dict[tuple[int, str], ToolMessage]) -> list[AnyMessage]:
    """Return the history with new results placed directly after the messages that made their calls, in call order with
    those already there.

    Args:
        messages: The history, which is not changed; each result in it follows its call.
        results: Index of the message with the call, and the call's id → the result.
    """
    placed: list[AnyMessage] = []
    for index, message in enumerate(messages):
        placed.append(message)
        following = messages[index + 1] if index + 1 < len(messages) else None
        if isinstance(following, ToolMessage):
            continue
        # The sequence of results that ends here follows the model's message that made the calls.
        caller = next((i for i in range(index, -1, -1) if not isinstance(messages[i], ToolMessage)), -1)
        if new := [result for (at, _), result in results.items() if at == caller]:
            first = len(placed) - (index - caller)
            placed[first:] = _in_call_order(messages[caller], [*placed[first:], *new])
    return placed


def newest_in_call_order(messages: list[AnyMessage]) -> list[AnyMessage]:
    """Return the history with the results of the newest model message in the order of its calls.

    Calls that waited for others or for a person finish later. Other messages among the results move behind them. Older
    messages stay as they are. The same list object is returned if the order is right already, or if there are no
    results.
    """
    caller = next((at for at in range(len(messages) - 1, -1, -1) if isinstance(messages[at], AIMessage)), -1)
    after = messages[caller + 1 :]
    results = [message for message in after if isinstance(message, ToolMessage)]
    if caller < 0 or not results:
        return messages
    if len(after) == 1:
        return messages
    others = [message for message in after if not isinstance(message, ToolMessage)]
    ordered = [*_in_call_order(messages[caller], results), *others]
    if all(one is other for one, other in zip(ordered, after, strict=True)):
        return messages
    return [*messages[: caller + 1], *ordered]


def _in_call_order(caller: AnyMessage, results: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return results sorted by the calls of `caller`; results of no such call come last."""
    calls = (*caller.tool_calls, *caller.invalid_tool_calls) if isinstance(caller, AIMessage) else ()
    ranks = {call["id"]: rank for rank, call in enumerate(calls)}
    return sorted(results, key=lambda result: ranks.get(getattr(result, "tool_call_id", None), len(ranks)))


def order_results(messages: list[AnyMessage]) -> list[AnyMessage]:
    """Return the history with each result right after the message with its call; the same list object if every result
    is in place.

    A result belongs to the nearest preceding call with its id. A result without a call, and a second result for the
    same call, are dropped, because providers refuse them. Results that move follow those that are in place.
    """
    owner: dict[str, int] = {}
    unanswered: dict[int, list[str]] = {}
    late: dict[int, list[AnyMessage]] = {}
    lost: set[int] = set()
    last = -1
    for index, message in enumerate(messages):
        if not isinstance(message, ToolMessage):
            last = index
            if isinstance(message, AIMessage):
                ids = [call["id"] or "" for call in (*message.tool_calls, *message.invalid_tool_calls)]
                unanswered[index] = ids
                owner.update(dict.fromkeys(ids, index))
            continue
        at = owner.get(message.tool_call_id, -1)
        if at < 0 or message.tool_call_id not in unanswered[at]:
            lost.add(index)
            continue
        unanswered[at].remove(message.tool_call_id)
        if at != last:
            late.setdefault(at, []).append(message)
            lost.add(index)
    if not lost:
        return messages
    placed: list[AnyMessage] = []
    waiting: list[AnyMessage] = []
    for index, message in enumerate(messages):
        if not isinstance(message, ToolMessage):
            placed += waiting
            waiting = late.get(index, [])
        if index not in lost:
            placed.append(message)
    return placed + waiting


def rewrite(before: Sequence[AnyMessage], after: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the writes to the `messages` channel that turn one history into another.

    If old messages only leave or new ones are appended, these are a `RemoveMessage` for each one that leaves, then the
    new messages. Otherwise, from the first message that moved on, all old messages are removed, and the rest of the new
    history is appended. Messages are compared by identity.

    Args:
        before: The present history.
        after: The history that the writes lead to.
    """
    stays = {id(message) for message in after}
    same = 0
    removed: list[AnyMessage] = []
    for message in before:
        if same < len(after) and message is after[same]:
            same += 1
            continue
        # The message moved: appending in order is only possible after everything from here on is removed.
        if id(message) in stays:
            break
        removed.append(RemoveMessage(id=message.id or ""))  # type: ignore[arg-type]  # AnyMessage excludes RemoveMessage, which only writes contain
    else:
        return [*removed, *after[same:]]
    rest = before[same + len(removed) :]
    removed += [RemoveMessage(id=message.id or "") for message in rest]  # type: ignore[misc]  # as above
    return [*removed, *after[same:]]


def failure_message(streamed: str, report: str, *, stop_reason: str, kind: str, id_: str | None = None) -> AIMessage:
    """Return the message that ends an input without a complete answer: the streamed part, then the report.

    `response_metadata` marks it with stop reason, error kind and the length of the streamed part; see `failure_of`.

    Args:
        streamed: Text of the answer that readers have already; empty if there is none.
        report: Description of the failure for the user.
        stop_reason: Why planning ended, such as `error`.
        kind: Category of the error, such as `auth`.
        id_: Message id under which `streamed` was streamed; None if there is none.
    """
    text = f"{streamed}\n\n{report}" if streamed else report
    mark = {"stop_reason": stop_reason, "error": kind, "answer_chars": len(streamed)}
    return AIMessage(text, id=id_, response_metadata={FAILURE_MARK: mark})


def failure_of(message: AnyMessage) -> dict[str, Any] | None:
    """Return the mark of a message that ends a failed input; None for any other message, and if the mark has no
    `error`.

    The mark has `stop_reason`, `error` (the kind of the error) and `answer_chars` (characters of the streamed part).
    """
    mark = message.response_metadata.get(FAILURE_MARK) if message.response_metadata else None
    if mark is None or not isinstance(message, AIMessage):
        return None
    return mark if isinstance(mark, dict) and "error" in mark else None


def without_failure_report(message: AnyMessage) -> AnyMessage:
    """Return a message for later requests, with a short note in place of a failure report, which no model wrote.

    The streamed part of the answer stays before the note. A message that ends no failed input is returned unchanged.
    """
    mark = failure_of(message)
    if mark is None:
        return message
    streamed = message.text[: mark.get("answer_chars", 0)]
    note = f"[{'The answer ends here' if streamed else 'No answer was given'}: an error of kind {mark['error']!r}.]"
    return message.model_copy(update={"content": f"{streamed}\n\n{note}" if streamed else note})


def failure_error(message: str, *, kind: str, answer: str) -> RunFailedError:
    """Return the error that a run raises for a failed input: `ModelFailedError` if a model failed, else
    `RunFailedError`.

    Args:
        message: The report of the failure.
        kind: Category of the error, such as `auth`.
        answer: The part of the answer that was streamed; empty if there is none.
    """
    # Imported here because the import compiles the patterns of providers' errors.
    from graph_agent.base.model_error_text import ModelErrorKind

    error = ModelFailedError if kind in get_args(ModelErrorKind) else RunFailedError
    return error(message, kind=kind, answer=answer)


class PushedText(AIMessageChunk):
    """A chunk of text that a node streams itself, as opposed to the tokens that LangGraph takes from a model."""


def stream_rest(message: AIMessage, streamed: str) -> None:
    """Stream the rest of a partly streamed message to readers of `stream_mode="messages"`.

    LangGraph does not stream a message returned by a node if some of its tokens have been streamed. Does nothing for a
    message without an id, or without further text.

    Args:
        message: The complete message.
        streamed: The text that was streamed under its id.
    """
    if message.id is not None and (rest := message.text.removeprefix(streamed)):
        chunk = PushedText(content=rest, id=message.id, response_metadata=message.response_metadata)
        push_message(chunk, state_key=None)


def results_in(update: Any) -> list[ToolMessage]:
    """Return the tool messages in a node's update, in order.

    Only lists under `messages` are searched: a single message that is not in a list does not count.

    Args:
        update: A `Command`, a mapping, pairs of field and value, or a list of these; other values give an empty list.
    """
    if isinstance(update, Command):
        update = update.update
    if isinstance(update, Mapping):
        update = list(update.items())
    found: list[ToolMessage] = []
    for each in update if isinstance(update, list | tuple) else ():
        if not isinstance(each, tuple):
            found += results_in(each)
        elif each[0] == "messages" and isinstance(each[1], list):
            found += [message for message in each[1] if isinstance(message, ToolMessage)]
    return found


def with_name(message: AIMessage, name: str | None) -> AIMessage:
    """Return the agent's message with the agent's name; unchanged if `name` is None, or if the message has a name."""
    return message if name is None or message.name else message.model_copy(update={"name": name})


_PLAIN = (str, int, float, bool, bytes, type(None), date, time, timedelta, tzinfo, Decimal, UUID, BaseMessage)


def first_unplain(value: Any, *, depth: int = 100) -> tuple[str, str] | None:
    """Return where and what in a value LangGraph's strict checkpoint serializer could not restore; None if it is plain.

    Args:
        value: Any value; for an `Overwrite`, its content is checked.
        depth: Levels of nested containers to check; deeper values count as plain.

    Returns:
        Path and type name of the first such value, e.g. `("['user'][0]", "Decimal2")`. The path is empty for the value
        itself, and ` (key …)` for a dict's key, which must be a text, number, boolean or None.
    """
    if isinstance(value, Overwrite):
        value = value.value
    if isinstance(value, _PLAIN):
        # Subclasses such as an Enum of str would come back as another type, or not at all.
        plain = type(value) in _PLAIN or isinstance(value, BaseMessage | date | tzinfo)
        return None if plain else ("", type(value).__name__)
    if type(value) is dict:
        items = [(f"[{key!r}]", each) for key, each in value.items()]
        for key in value:
            if type(key) not in (str, int, float, bool, NoneType):
                return f" (key {key!r})", type(key).__name__
    elif type(value) in (list, tuple, set, frozenset, deque):
        items = [(f"[{at}]", each) for at, each in enumerate(value)]
    else:
        return "", type(value).__name__
    if depth <= 0:
        return None
    for where, each in items:
        if (found := first_unplain(each, depth=depth - 1)) is not None:
            return f"{where}{found[0]}", found[1]
    return None


_MESSAGE_FIELDS = ("content", "additional_kwargs", "response_metadata", "tool_calls", "artifact")


def value_fault(value: Any) -> str | None:
    """Return why checkpoints cannot hold a value, as a clause for an error message; None if they can."""
    # The serializer is asked last: it is slow, and accepts more types than those listed.
    if (found := first_unplain(value)) is None or _is_storable(value):
        return None
    where, kind = found
    return f"checkpoints cannot hold it (value{where} is of type {kind}; return plain values, such as text and dicts)"


def messages_fault(
    written: Any, *, stored: bool = True, fix: str = "; return messages, such as [AIMessage('…')]"
) -> str | None:
    """Return why a write to the `messages` field is invalid, as a clause for an error message; None if it is valid.

    Args:
        written: One message or a list of them, in any form that LangChain converts to messages, or an `Overwrite` of
            such a list.
        stored: Whether checkpoints store the messages, so that their values must be plain.
        fix: Text appended to the reason if something is no message.
    """
    # LangGraph takes each element of what it holds for a message.
    if isinstance(written, Overwrite) and not isinstance(written.value, list):
        return f"its Overwrite holds a {type(written.value).__name__}, not a list{fix}"
    try:
        messages = convert_to_messages(_items(written))
    except (ValueError, NotImplementedError, TypeError) as error:
        return str(error).splitlines()[0].rstrip(".") + fix
    return next((fault for each in messages if stored and (fault := _message_fault(each)) is not None), None)


def check_input(given: Any, known: Collection[str], *, stored: bool) -> None:
    """Raise `InputError`, with the reason and a correct call, for an input that no run can use.

    Such an input is a `Command` without `resume`, `update` and `goto`, a value with none of the agent's fields, or one
    whose messages are invalid or blank text. None and an empty mapping, which resume a run, are allowed.

    Args:
        given: The argument of `invoke` or `stream`.
        known: Names of the agent's fields.
        stored: Whether checkpoints store the messages, so that their values must be plain.
    """
    fields = _fields_of(given, known)
    if isinstance(given, Command):
        if given.resume is None and not given.update and not given.goto:
            raise unusable_input(given, "has neither an answer nor an update")
    elif not fields and given is not None and given != {}:
        raise unusable_input(given, f"has none of this agent's fields ({', '.join(known)})")
    if "messages" in fields:
        messages = fields["messages"]
        blank = "the text is empty" if isinstance(messages, str) and not messages.strip() else None
        if fault := blank or messages_fault(messages, stored=stored, fix=""):
            raise unusable_input(given, f"has messages that cannot be used ({fault})")


def begins(given: Any, known: Collection[str], *, hooked: bool) -> bool:
    """Whether a run with this input can begin without a stored checkpoint.

    - False for None, also as the `update` of a `Command`.
    - True for any other input if hooks run before the model, which may add messages; and for a `Command` whose update
      is no mapping.
    - Otherwise True if the input has a message to add (a removal is none) or one of the other known fields.

    Args:
        given: The argument of `invoke` or `stream`; of a `Command`, the `update` counts.
        known: Names of the agent's fields.
        hooked: Whether hooks run before the model.
    """
    update = given.update if isinstance(given, Command) else given
    if update is None or hooked or (isinstance(given, Command) and not isinstance(update, Mapping)):
        # Any object may be an update here, as the schema of the hooks decides.
        return update is not None
    fields = _fields_of(given, known)
    messages = _items(fields.pop("messages", []))
    return bool(fields) or not all(isinstance(each, RemoveMessage) for each in messages)


def unusable_input(given: Any, why: str) -> InputError:
    """Return the error for an input that no run can use; the message shows a correct call.

    Args:
        given: The input; the message quotes it, shortened.
        why: What is wrong, as the predicate of "The input …".
    """
    texts = [value for value in (given.values() if isinstance(given, Mapping) else [given]) if isinstance(value, str)]
    text = next((text for text in texts if text.strip()), "hello")
    return InputError(
        f"The input {reprlib.repr(given)} {why}. Write agent.ainvoke({{'messages': [('user', {text!r})]}}), or "
        "Session(agent, 's1').run('hello')."
    )


def _fields_of(given: Any, known: Collection[str]) -> dict[str, Any]:
    """Return the known fields of an input as name → value; the input may be a mapping, an object or a `Command`."""
    update = given.update if isinstance(given, Command) else given
    if isinstance(update, Mapping):
        return {name: update[name] for name in known if name in update}
    return {name: getattr(update, name) for name in known if hasattr(update, name)}


def _items(written: Any) -> list[Any]:
    """Return the values that a node writes to the messages as a list; a single value gives a list of one.

    An `Overwrite`, which replaces the history, is unpacked.
    """
    value = written.value if isinstance(written, Overwrite) else written
    return value if isinstance(value, list) else [value]


def _message_fault(message: BaseMessage) -> str | None:
    """Return why checkpoints cannot hold a message, as a clause for an error message; None if they can."""
    plain = all(first_unplain(getattr(message, name, None)) is None for name in _MESSAGE_FIELDS)
    if plain or _is_storable(message):
        return None
    return f"checkpoints cannot hold a message of type {message.type!r} with such values; use plain values"


def _is_storable(value: Any) -> bool:
    """Whether LangGraph's serializer accepts a value."""
    try:
        JsonPlusSerializer().dumps_typed(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
