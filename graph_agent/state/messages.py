"""Handles the message history: user input, open calls, placement of results, rewriting, failed inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    ToolCall,
    ToolMessage,
)
from langgraph.graph.message import push_message

from graph_agent.errors import ModelFailedError, RunFailedError
from graph_agent.types import HIDDEN_ID_PREFIX

CONTEXT_MARK = "graph_agent_context"
"""Key in `additional_kwargs` of a context message from a delegator, which is not user input."""
STEERING_MARK = "graph_agent_steering"
"""Key in `additional_kwargs` of a steering message, received during a run."""
_MARKS = {CONTEXT_MARK, STEERING_MARK}


FAILURE_MARK = "graph_agent"
"""Key of this package's entry in `response_metadata`."""


def new_user_messages(messages: Sequence[AnyMessage], last_input_id: str) -> list[HumanMessage]:
    """Return the user messages after the agent's last message, excluding those already processed.

    Args:
        last_input_id: Id of the newest message already processed; empty if there is none.
    """
    new: list[HumanMessage] = []
    for message in reversed(messages):
        if isinstance(message, AIMessage | ToolMessage) or (last_input_id and message.id == last_input_id):
            break
        if isinstance(message, HumanMessage) and is_user_input(message):
            new.append(message)
    return new[::-1]


def since_input(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages after the newest user input."""
    at = len(messages)
    while at > 0 and not (isinstance(message := messages[at - 1], HumanMessage) and is_user_input(message)):
        at -= 1
    return list(messages[at:])


def is_user_input(message: HumanMessage) -> bool:
    """Whether a user-role message is user input, not context, steering, or an instruction of the framework."""
    return not _MARKS & message.additional_kwargs.keys() and not (message.id or "").startswith(HIDDEN_ID_PREFIX)


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


def with_results(messages: Sequence[AnyMessage], results: dict[tuple[int, str], ToolMessage]) -> list[AnyMessage]:
    """Insert results right after the message with their calls, as providers require, in the order of the calls.

    Args:
        results: New results, by the index of the calling message and the call's id, in call order.
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
    """Return the message that ends an input without a complete answer.

    Args:
        streamed: The streamed part of the answer; empty if there is none.
        report: The failure and the completed calls.
        stop_reason: The reason the input stopped.
        id_: The message id under which `streamed` was streamed; None if there is none.
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
    from graph_agent.models.errors import ModelErrorKind

    error = ModelFailedError if kind in get_args(ModelErrorKind) else RunFailedError
    return error(message, kind=kind, answer=answer)


class PushedText(AIMessageChunk):
    """Text that a node streams itself."""


def stream_rest(message: AIMessage, streamed: str) -> None:
    """Stream the rest of a partly streamed message to readers of `stream_mode="messages"`.

    LangGraph does not stream a message returned by a node if some of its tokens have been streamed.

    Args:
        message: The message, with the id of its streamed tokens; nothing is sent without an id.
        streamed: The part that was streamed.
    """
    if message.id is not None and (rest := message.text.removeprefix(streamed)):
        chunk = PushedText(content=rest, id=message.id, response_metadata=message.response_metadata)
        push_message(chunk, state_key=None)


def after_sentence(sentence: str, answer: AIMessage) -> AIMessage:
    """Return the answer after a fixed sentence; unchanged without a sentence."""
    return AIMessage("\n\n".join(filter(None, [sentence, answer.text])), id=answer.id) if sentence else answer
