"""Handles the message history: checks of input, open calls, placement of results, rewriting, failed inputs."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
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
"""Key in the artifact of a tool result that requests hold in full after compaction: the newest one of each value."""


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """The unanswered calls of one of the model's messages."""

    at: int
    """Index of that message."""
    calls: list[ToolCall]


def open_calls(messages: Sequence[AnyMessage]) -> list[OpenCalls]:
    """Return every call without a result, oldest first.

    A result belongs to the nearest preceding call with its id, because models repeat ids within a session.
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
    """Whether each call has its result right after its message, and each result its call; False in doubt.

    Each input of a session asks this about the whole history; reading `type` takes a fifth of `isinstance`.
    """
    open_ids: list[str | None] = []
    for message in messages:
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
    """Insert new results (by message index and call id) after their message, in call order, as providers require."""
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
    """Order the results of the newest calls as the calls; return the same list if they are in this order.

    Calls that waited for others or for a person have later results; older messages are not read.
    """
    caller = next((at for at in range(len(messages) - 1, -1, -1) if isinstance(messages[at], AIMessage)), -1)
    after = messages[caller + 1 :]
    results = [message for message in after if isinstance(message, ToolMessage)]
    if caller < 0 or not results:
        return messages
    others = [message for message in after if not isinstance(message, ToolMessage)]
    ordered = [*_in_call_order(messages[caller], results), *others]
    if all(one is other for one, other in zip(ordered, after, strict=True)):
        return messages
    return [*messages[: caller + 1], *ordered]


def _in_call_order(caller: AnyMessage, results: Sequence[AnyMessage]) -> list[AnyMessage]:
    calls = (*caller.tool_calls, *caller.invalid_tool_calls) if isinstance(caller, AIMessage) else ()
    ranks = {call["id"]: rank for rank, call in enumerate(calls)}
    return sorted(results, key=lambda result: ranks.get(getattr(result, "tool_call_id", None), len(ranks)))


def order_results(messages: list[AnyMessage]) -> list[AnyMessage]:
    """Move each result right after the message with its call; return the same list if every result is in place.

    A result belongs to the nearest preceding call with its id. A result without a call, or a second one for the same
    call, is dropped, because providers refuse it.
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
    """Return the writes that turn one history into another: remove the messages that changed, and append in order."""
    stays = {id(message) for message in after}
    same = 0
    removed: list[AnyMessage] = []
    for message in before:
        if same < len(after) and message is after[same]:
            same += 1
            continue
        if id(message) in stays:
            break
        removed.append(RemoveMessage(id=message.id or ""))  # type: ignore[arg-type]  # AnyMessage excludes RemoveMessage, which only writes contain
    else:
        return [*removed, *after[same:]]
    rest = before[same + len(removed) :]
    removed += [RemoveMessage(id=message.id or "") for message in rest]  # type: ignore[misc]  # as above
    return [*removed, *after[same:]]


def failure_message(streamed: str, report: str, *, stop_reason: str, kind: str, id_: str | None = None) -> AIMessage:
    """Return the message, after the streamed part of the answer, that ends an input without a complete answer.

    `id_` is the message id under which `streamed` was streamed; None if there is none.
    """
    text = f"{streamed}\n\n{report}" if streamed else report
    mark = {"stop_reason": stop_reason, "error": kind, "answer_chars": len(streamed)}
    return AIMessage(text, id=id_, response_metadata={FAILURE_MARK: mark})


def failure_of(message: AnyMessage) -> dict[str, Any] | None:
    """Return the mark of a message that ends a failed input; None for any other message."""
    mark = message.response_metadata.get(FAILURE_MARK) if message.response_metadata else None
    if mark is None or not isinstance(message, AIMessage):
        return None
    return mark if isinstance(mark, dict) and "error" in mark else None


def without_failure_report(message: AnyMessage) -> AnyMessage:
    """Return the message for later requests; a short note replaces the report, which the model did not write."""
    mark = failure_of(message)
    if mark is None:
        return message
    streamed = message.text[: mark.get("answer_chars", 0)]
    note = f"[{'The answer ends here' if streamed else 'No answer was given'}: an error of kind {mark['error']!r}.]"
    return message.model_copy(update={"content": f"{streamed}\n\n{note}" if streamed else note})


def failure_error(message: str, *, kind: str, answer: str) -> RunFailedError:
    """Return the error that a run raises for a failed input; arguments as for `RunFailedError`."""
    # Imported here because the import compiles the patterns of providers' errors.
    from graph_agent.base.model_error_text import ModelErrorKind

    error = ModelFailedError if kind in get_args(ModelErrorKind) else RunFailedError
    return error(message, kind=kind, answer=answer)


class PushedText(AIMessageChunk):
    """Text that a node streams itself."""


def stream_rest(message: AIMessage, streamed: str) -> None:
    """Stream the rest of a partly streamed message to readers of `stream_mode="messages"`; nothing without an id.

    LangGraph does not stream a message returned by a node if some of its tokens have been streamed.
    """
    if message.id is not None and (rest := message.text.removeprefix(streamed)):
        chunk = PushedText(content=rest, id=message.id, response_metadata=message.response_metadata)
        push_message(chunk, state_key=None)


def results_in(update: Any) -> list[ToolMessage]:
    """Return the tool results that a node's update writes: a command, a mapping, pairs, or a list of these."""
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
    """Return an agent's message with the agent's name; unchanged without a name, or if the message has one."""
    return message if name is None or message.name else message.model_copy(update={"name": name})


def after_sentence(sentence: str, answer: AIMessage) -> AIMessage:
    """Return the answer after a fixed sentence; unchanged without a sentence."""
    return AIMessage("\n\n".join(filter(None, [sentence, answer.text])), id=answer.id) if sentence else answer


_PLAIN = (str, int, float, bool, bytes, type(None), date, time, timedelta, tzinfo, Decimal, UUID, BaseMessage)


def first_unplain(value: Any, *, depth: int = 100) -> tuple[str, str] | None:
    """Return path and type of the first value, down to `depth`, that a strict checkpoint cannot hold, if any."""
    if isinstance(value, Overwrite):
        value = value.value
    if isinstance(value, _PLAIN):
        # Subclasses such as an Enum of str would come back as another type, or not at all.
        plain = type(value) in _PLAIN or isinstance(value, BaseMessage | date | tzinfo)
        return None if plain else ("", type(value).__name__)
    if type(value) is dict:
        items = [(f"[{key!r}]", each) for key, each in value.items()]
        if strange := next((key for key in value if type(key) not in (str, int, float, bool)), None):
            return f" (key {strange!r})", type(strange).__name__
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
    """Return why checkpoints cannot hold a value; None if they can."""
    if (found := first_unplain(value)) is None or _is_storable(value):
        return None
    where, kind = found
    return f"checkpoints cannot hold it (value{where} is of type {kind}; return plain values, such as text and dicts)"


def messages_fault(
    written: Any, *, stored: bool = True, fix: str = "; return messages, such as [AIMessage('…')]"
) -> str | None:
    """Return why a write to the messages, in any form of LangChain's, is invalid; None if it is valid.

    `fix` is added to the reason if something is no message.
    """
    try:
        messages = convert_to_messages(_items(written))
    except (ValueError, NotImplementedError, TypeError) as error:
        return str(error).splitlines()[0].rstrip(".") + fix
    return next((fault for each in messages if stored and (fault := _message_fault(each)) is not None), None)


def check_input(given: Any, known: Collection[str], *, stored: bool) -> None:
    """Refuse an input that no run can use, by an `InputError` with the reason and the right call.

    `stored` is whether checkpoints store the messages.
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
    """Whether an input needs no checkpoint: it has a message or own field, or hooks before the model may add some."""
    update = given.update if isinstance(given, Command) else given
    if update is None or hooked or (isinstance(given, Command) and not isinstance(update, Mapping)):
        return update is not None
    fields = _fields_of(given, known)
    messages = _items(fields.pop("messages", []))
    return bool(fields) or not all(isinstance(each, RemoveMessage) for each in messages)


def unusable_input(given: Any, why: str) -> InputError:
    """Return the error of an input that no run can use, with the right call."""
    texts = [value for value in (given.values() if isinstance(given, Mapping) else [given]) if isinstance(value, str)]
    text = next((text for text in texts if text.strip()), "hello")
    return InputError(
        f"The input {reprlib.repr(given)} {why}. Write agent.ainvoke({{'messages': [('user', {text!r})]}}), or "
        "Session(agent, 's1').run('hello')."
    )


def _fields_of(given: Any, known: Collection[str]) -> dict[str, Any]:
    """Return the values of the known fields in an input, which may be an object with attributes."""
    update = given.update if isinstance(given, Command) else given
    if isinstance(update, Mapping):
        return {name: update[name] for name in known if name in update}
    return {name: getattr(update, name) for name in known if hasattr(update, name)}


def _items(written: Any) -> list[Any]:
    """Return the items of a write to the messages."""
    value = written.value if isinstance(written, Overwrite) else written
    return value if isinstance(value, list) else [value]


def _message_fault(message: BaseMessage) -> str | None:
    plain = all(first_unplain(getattr(message, name, None)) is None for name in _MESSAGE_FIELDS)
    if plain or _is_storable(message):
        return None
    return f"checkpoints cannot hold a message of type {message.type!r} with such values; use plain values"


def _is_storable(value: Any) -> bool:
    try:
        JsonPlusSerializer().dumps_typed(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
