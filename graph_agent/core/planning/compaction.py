"""Shortens requests that exceed a model's context window.

Compaction removes old messages, calls always with their results, and adds one note that summarizes them. The system
prompt and the newest input stay. If that is not enough, tool results are cut. Only requests are shortened; the stored
history keeps everything. Tokens are estimates.

Parts of compaction in other files:

- `core/planning/summary.py`: `renew_summary`, the summary that a model writes before the context window is full
- `core/planning/kept_results.py`: the results that stay in shortened requests
- `core/planning/recovery.py`: `shorten`, after an error that a request is too long
- `core/planning/next_request.py`: `compacted_view` and `summarized_view`, the part at a request
- `core/state/schema.py`: the keys `summary`, `kept_from` and `truncations` of the loop
- `base/history/events.py`: `SummaryEvent`
- `core/extensions/history_compression.py`: a hook that shortens requests by a function of the program
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.history_notes import NOTE_HEAD, NOTE_MARK, SUMMARY, is_kept_note, is_note, summary_note
from graph_agent.base.types import HIDDEN_ID_PREFIX
from graph_agent.core.extensions.truncation import cuts_for, with_cuts

_NOTE_CHARS = 3_000
"""Maximum characters of a note about removed messages."""
_MESSAGE_CHARS = 400
"""Maximum characters of one message's text in a note."""
_RESULT_CHARS = 160
"""Maximum characters of one result in a note."""
_ARGUMENT_CHARS = 120
"""Maximum characters of one call's arguments in a note."""
_CHARS_PER_TOKEN = 4
"""Characters that are estimated as one token."""
_RECAP_LINES = 20
"""Maximum lines that `recap` returns."""

Group: TypeAlias = list[AnyMessage]
"""Messages that are kept or removed together: a model's calls with their results, or one message."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A request from which `compact` has removed the oldest messages."""

    messages: list[AnyMessage]
    """The messages of the shorter request."""
    kept_from: str
    """Id of the first message after the removed part; all messages from it on are in the request."""


@dataclass(frozen=True, slots=True)
class Shortening:
    """The parts that requests leave out from now on; the stored history is not changed."""

    kept_from: str | None = None
    """Id of the first message that is kept; None if no message is left out."""
    cuts: dict[str, int] = field(default_factory=dict)
    """Message id of a tool result → characters of it to keep."""


def shorten(messages: Sequence[AnyMessage], window: int | None = None) -> Shortening | None:
    """Choose what requests leave out after one was too long; None if nothing more can be left out.

    The older part is removed if that shortens the request by at least a quarter, and to the window if it is known.
    Otherwise the newest results make up most of the request, and they are cut, alone if that is enough, else in
    addition. Each choice reduces the estimated length, so that repeated calls end.

    Args:
        messages: The messages of the request.
        window: The model's context window in tokens; None if unknown.
    """
    whole = estimated_tokens(messages)
    enough = whole * 3 // 4 if window is None else min(whole * 3 // 4, window)
    dropped = compact(messages, window)
    left = estimated_tokens(dropped.messages) if dropped is not None else whole
    if dropped is not None and left <= enough:
        return Shortening(dropped.kept_from)
    target = min(whole // 2, whole if window is None else window * 3 // 4)
    cuts = cuts_for(messages, (whole - target) * _CHARS_PER_TOKEN)
    cut = estimated_tokens(with_cuts(messages, cuts)) if cuts else whole
    if cut <= enough or (dropped is None and cut < whole):
        return Shortening(cuts=cuts)
    if dropped is None:
        return None
    further = cuts_for(dropped.messages, (left - target) * _CHARS_PER_TOKEN)
    return Shortening(dropped.kept_from, further)


def compact(messages: Sequence[AnyMessage], window: int | None = None) -> Compacted | None:
    """Return the request without its oldest messages, replaced by one note; None if nothing can be removed.

    Nothing can be removed if the request has only the newest input and the newest message or wave of calls, if the
    message at the cut has no id, or if the result would not be shorter.

    Args:
        messages: The request: system prompt, then the conversation, each call directly followed by its results.
        window: The model's context window in tokens; None if unknown. The target is half of the request's estimated
            tokens, or three quarters of the window if that is less.
    """
    whole = estimated_tokens(messages)
    target = min(whole // 2, whole if window is None else window * 3 // 4)
    # The note counts, too, or the shorter request would miss the target.
    note = min((len(NOTE_HEAD) + _NOTE_CHARS) // _CHARS_PER_TOKEN, target // 4)
    if (kept_from := find_cut(messages, target - note)) is None:
        return None
    shorter = compacted_view(messages, kept_from)
    return Compacted(shorter, kept_from) if estimated_tokens(shorter) < whole else None


def find_cut(messages: Sequence[AnyMessage], target: int) -> str | None:
    """Return the id of the first message to keep, so that the kept messages have about `target` tokens at most.

    The system prompt, the newest input, and the newest message or wave of calls are kept even if they exceed the
    target. A call is never separated from its results.

    Args:
        messages: The request.
        target: Estimated tokens of the kept messages, system prompt included.

    Returns:
        The id; None if everything is kept, or the message has no id.
    """
    head, groups = _split(messages)
    stays = _newest_input(groups)
    left = target - estimated_tokens([*head, *_flat([groups[index] for index in stays])])
    first = len(groups)
    while first > 0:
        size = 0 if first - 1 in stays else estimated_tokens(groups[first - 1])
        # The newest group stays whatever its size: the model has just asked for it.
        if size > left and first < len(groups) and first - 1 not in stays:
            break
        left -= size
        first -= 1
    return groups[first][0].id or None if first < len(groups) and first > 0 else None


def newest_input(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the user message that began the newest input, and the steering messages sent to it, oldest first.

    A user message directly after a tool result is steering. Empty if there is no user message.

    Args:
        messages: A request or a history. Messages before the newest input are not read, so the cost does not grow with
            them.
    """
    found: list[AnyMessage] = []
    for index in range(len(messages) - 1, -1, -1):
        if _is_input(messages[index]):
            found.insert(0, messages[index])
            # Directly after a result, a user message is steering; the input that it steers stands before.
            if index == 0 or not isinstance(messages[index - 1], ToolMessage):
                break
    return found


def compacted_view(messages: Sequence[AnyMessage], kept_from: str) -> list[AnyMessage]:
    """Return the messages with one note in place of those before a cut.

    The system prompt, the newest input with its steering (messages of the user sent to it later), and inputs that an
    earlier compaction kept stay in any case.

    Args:
        messages: A request, or a history, which may have grown after the cut.
        kept_from: Id of the first message after the cut; not that of a tool result, which stays with its call.

    Returns:
        The system prompt, the note, the kept inputs, and all messages from the cut on. The messages unchanged if none
        has that id, or if only earlier notes stand before it.
    """
    head, groups = _split(messages)
    first = next((index for index, group in enumerate(groups) if group[0].id == kept_from), 0)
    stays = _newest_input(groups)
    dropped = [group for index, group in enumerate(groups[:first]) if index not in stays]
    if all(is_note(group[0]) for group in dropped):
        return list(messages)
    kept = [group for index, group in enumerate(groups) if index >= first or index in stays]
    return [*head, _note(dropped), *_flat(kept)]


def summarized_view(
    messages: Sequence[AnyMessage], summary: str, kept_from: str, inputs: Sequence[Sequence[Any]]
) -> list[AnyMessage]:
    """Return the messages with a model's summary in place of those before a cut; the newest input stays.

    Only the messages from the cut on are converted, so the cost does not grow with the history.

    Args:
        messages: A history, which may have grown after the cut.
        summary: The text of the summary.
        kept_from: Id of the first message after the cut.
        inputs: `(position, id)` of the newest input's messages before the cut, which stay unless a newer input is among
            the kept messages. Those no longer in the history are left out.

    Returns:
        The note with the summary, the inputs, and all messages from the cut on. The messages unchanged if none has that
        id.
    """
    cut = next((index for index in range(len(messages) - 1, -1, -1) if messages[index].id == kept_from), None)
    if cut is None:
        return list(messages)
    note = summary_note(summary)
    kept = messages[cut:]
    has_input = any(
        _is_input(message) and not (cut + index > 0 and isinstance(messages[cut + index - 1], ToolMessage))
        for index, message in enumerate(kept)
    )
    earlier = [] if has_input else [_message_at(messages, at, id_) for at, id_ in inputs]
    return [note, *(message for message in earlier if message is not None), *kept]


def _message_at(messages: Sequence[AnyMessage], at: int, id_: str) -> AnyMessage | None:
    """Return the message with an id, wherever it stands; None if it was removed.

    Args:
        messages: The history.
        at: Position that is tried first; the message stands there unless the history was edited.
        id_: The message's id.
    """
    if at < len(messages) and messages[at].id == id_:
        return messages[at]
    return next((message for message in messages if message.id == id_), None)


def _split(messages: Sequence[AnyMessage]) -> tuple[list[AnyMessage], list[Group]]:
    """Split a request into its leading system messages and the rest in groups: a model's message with its results, or
    one other message.

    A tool message belongs to the group before it only if that begins with calls.
    """
    begin = next((index for index, message in enumerate(messages) if not isinstance(message, SystemMessage)), 0)
    groups: list[Group] = []
    for message in messages[begin:]:
        if isinstance(message, ToolMessage) and groups and _asks(groups[-1][0]):
            groups[-1].append(message)
        else:
            groups.append([message])
    return list(messages[:begin]), groups


def _newest_input(groups: Sequence[Group]) -> set[int]:
    """Return the indexes of the groups that hold the newest input and the messages that steered it.

    Inputs that directly follow a compaction note, because an earlier compaction kept them, are included.
    """
    stays: set[int] = set()
    for index in range(len(groups) - 1, -1, -1):
        if not _is_input(groups[index][0]):
            continue
        stays.add(index)
        # Directly after a wave, a user message is steering; the input that it steers stands before.
        if index == 0 or not _asks(groups[index - 1][0]):
            break
    # Inputs directly after a note were kept by an earlier compaction that moved their waves into the note.
    first = min(stays, default=0)
    while first > 0 and _is_input(groups[first - 1][0]):
        first -= 1
    if first > 0 and is_note(groups[first - 1][0]):
        stays.update(range(first, min(stays)))
    return stays


def _is_input(message: BaseMessage) -> bool:
    """Whether a message was written by the user, as opposed to a note of this package in the user's role."""
    return isinstance(message, HumanMessage) and not is_note(message)


def _asks(message: BaseMessage) -> bool:
    """Whether a message is the model's and has tool calls, valid or invalid."""
    return isinstance(message, AIMessage) and bool(message.tool_calls or message.invalid_tool_calls)


def _flat(groups: Sequence[Group]) -> list[AnyMessage]:
    """Return the messages of all groups, in order."""
    return [message for group in groups for message in group]


def _note(dropped: Sequence[Group]) -> HumanMessage:
    """Return a user message that summarizes removed messages in a line each, in about a quarter of their length and
    3,000 characters at most.

    The newest lines have precedence; of the older messages only the number is given. A summary that a model wrote is
    kept in full and not counted. The role is the user's, because providers accept that as the first message.

    Args:
        dropped: The removed groups, oldest first; a note of an earlier compaction may be the first.
    """
    summarized = list[str]()
    if dropped[0][0].additional_kwargs.get(NOTE_MARK) == SUMMARY:
        summarized, dropped = _lines(dropped[0]), dropped[1:]
    room = min(_NOTE_CHARS, sum(len(message.text) for group in dropped for message in group) // 4)
    summary: list[str] = []
    omitted = 0
    for group in reversed(dropped):
        lines = _lines(group)
        size = sum(len(line) + 1 for line in lines)
        if omitted or size > room:
            omitted += len(group)
            continue
        room -= size
        summary[:0] = lines
    if omitted:
        summary.insert(0, f"- {omitted} earlier messages")
    kind = SUMMARY if summarized else True
    return HumanMessage("\n".join([NOTE_HEAD, *summarized, *summary]) + "]", additional_kwargs={NOTE_MARK: kind})


def _lines(group: Group) -> list[str]:
    """Return the lines of a note about one group of messages.

    Of calls, one line each with the beginning of the result; of another message, its author and the beginning of its
    text; of an earlier note, its lines. Empty for a message without text, and for a note of kept results, which a later
    note repeats.
    """
    first = group[0]
    # A later note repeats the kept results in full.
    if is_kept_note(first):
        return []
    if is_note(first):
        return first.text.removesuffix("]").splitlines()[1:]
    if isinstance(first, ToolMessage) or not _asks(first):
        source = {"human": "The user", "ai": "You"}.get(first.type, "Someone")
        if (first.id or "").startswith(HIDDEN_ID_PREFIX):
            source = "A notice of the agent framework"
        return [f"- {source} said: {_short(first.text, _MESSAGE_CHARS)}"] if first.text.strip() else []
    return [f"- You called {call}; {status}: {result}" for call, status, result in _called(group)]


def recap(messages: Sequence[AnyMessage]) -> list[str]:
    """Return one line for each tool result, such as `- search({…}): found 3`, shortened; the newest 20, oldest first.

    Args:
        messages: A part of a conversation, each call directly followed by its results.
    """
    _, groups = _split(messages)
    lines = [f"- {call}: {result}" for group in groups if _asks(group[0]) for call, _, result in _called(group)]
    return lines[-_RECAP_LINES:]


def _called(group: Group) -> list[tuple[str, str, str]]:
    """Return `(call, status, beginning)` of each result in a group: the call as short text, the result's status, and
    the first characters of its text.

    The call is shown by the result's tool name if the group's first message has no such call.
    """
    first = group[0]
    assert isinstance(first, AIMessage)
    calls = {call["id"]: f"{call['name']}({_short_arguments(call['args'])})" for call in first.tool_calls}
    results = [message for message in group[1:] if isinstance(message, ToolMessage)]
    return [
        (calls.get(result.tool_call_id) or result.name or "", result.status, _short(result.text, _RESULT_CHARS))
        for result in results
    ]


def _short_arguments(arguments: Any) -> str:
    """Return the beginning of a call's arguments as JSON, at most `_ARGUMENT_CHARS` characters."""
    return _short(json.dumps(arguments, ensure_ascii=False, default=str), _ARGUMENT_CHARS)


def _short(text: str, chars: int) -> str:
    """Return the beginning of a text as one line of at most `chars` characters, followed by `…` if it is cut."""
    # Only the beginning is read, as a result may have megabytes.
    line = " ".join(text[: 4 * chars].split())
    return line if len(line) <= chars and len(text) <= 4 * chars else f"{line[:chars]}…"
