"""The messages that hooks put into requests and that the history does not hold: where they stand, and for how long."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from graph_agent.state.schema import Carried


class CarriedMessages:
    """What later requests of an input hold beside its history, for the reruns of one plan.

    Args:
        before: What earlier plans of the input have left.
        history: The conversation.
        request: The messages of the plan's first request.
    """

    def __init__(self, before: Sequence[Carried], history: Sequence[AnyMessage], request: Sequence[AnyMessage]) -> None:
        self._before = before
        self._history = history
        self._request = request
        self._kept: list[AnyMessage] = []

    def of(self, patched: Sequence[AnyMessage], keep: Sequence[AnyMessage]) -> list[Carried]:
        """What later requests hold after a rerun, in order of their places.

        Args:
            patched: The messages of the rerun; what they add to the plan's first request stays, and takes the place of
                what an earlier rerun of the plan has added.
            keep: Further messages to keep, beside those that were given for earlier reruns of the plan.
        """
        self._kept += keep
        found = additions(self._request, patched)
        rest = without_equals(self._kept, [message for addition in found for message in addition.messages])
        if rest:
            found.append(Addition(len(self._request), rest))
        pieces: list[Carried] = [{"at": self._at(one.before), "messages": self._named(one.messages)} for one in found]
        return sorted([*self._before, *pieces], key=itemgetter("at"))

    def _at(self, before: int) -> int:
        """The place in the history of what stands before one of the request's messages."""
        if before < len(self._request):
            places = {message.id: place for place, message in enumerate(self._history)}
            for message in self._request[before:]:
                if message.id in places:
                    return places[message.id]
        return len(self._history)

    def _named(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """The messages with an id each that no other of the request has: requests may be cut at any message, by id."""
        taken = {message.id for message in self._request}
        return [
            one if one.id and one.id not in taken else one.model_copy(update={"id": str(uuid4())}) for one in messages
        ]


_Key: TypeAlias = tuple[str, str, tuple[str | None, ...]]


class Addition(NamedTuple):
    """Messages that stand together in a patched request and are not in the original."""

    before: int
    """Index of the original message that they stand before; the number of originals for those at the end."""
    messages: list[AnyMessage]


def additions(original: Sequence[AnyMessage], patched: Sequence[AnyMessage]) -> list[Addition]:
    """Find what a patched request adds, in order.

    A message is an original where it has the id of one, or its type, text and call ids. New messages in a place where
    originals are missing rewrite these, and add nothing, up to the first new call: a call and its result are always
    added. A result of a call that is not added with it rewrites an original.

    Args:
        original: The request's messages.
        patched: The messages of the request that replaces it.
    """
    places = _places(original, patched)
    missing = sorted(set(range(len(original))).difference(place for place in places if place is not None))
    known = {id_ for message in original for id_ in _call_ids(message)}
    found: list[Addition] = []
    run: list[AnyMessage] = []
    last = -1
    for message, place in zip([*patched, None], [*places, len(original)], strict=True):
        if place is None:
            assert message is not None
            run.append(message)
            continue
        following = bisect_right(missing, last)
        rewrites = following < len(missing) and missing[following] < place
        if added := _answered(_from_first_call(run, known) if rewrites else run):
            found.append(Addition(place, added))
        run, last = [], place
    return found


def without_equals(messages: Sequence[AnyMessage], others: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The messages that have no equal, by type, text and call ids, among the others."""
    keys = {message_key(message) for message in others}
    return [message for message in messages if message_key(message) not in keys]


def message_key(message: AnyMessage) -> _Key:
    """Type, text and call ids of a message."""
    ids = (message.tool_call_id,) if isinstance(message, ToolMessage) else tuple(_call_ids(message))
    return message.type, message.text, ids


def _places(original: Sequence[AnyMessage], patched: Sequence[AnyMessage]) -> list[int | None]:
    """Index of the original that each patched message is; None for a new one. No original is taken twice."""
    by_id = {message.id: index for index, message in enumerate(original) if message.id}
    places: list[int | None] = [by_id.pop(message.id, None) if message.id else None for message in patched]
    taken = {place for place in places if place is not None}
    if None not in places or len(taken) == len(original):
        return places
    by_key: dict[_Key, list[int]] = {}
    for index in reversed([index for index in range(len(original)) if index not in taken]):
        by_key.setdefault(message_key(original[index]), []).append(index)
    for at, message in enumerate(patched):
        if places[at] is None and (same := by_key.get(message_key(message))):
            places[at] = same.pop()
    return places


def _from_first_call(run: Sequence[AnyMessage], known: set[str | None]) -> Sequence[AnyMessage]:
    """The run from its first message with a call that the original does not have; empty without one."""
    first = next((index for index, message in enumerate(run) if set(_call_ids(message)) - known), len(run))
    return run[first:]


def _answered(run: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The run without results of calls that are not in it."""
    calls: set[str | None] = set()
    kept: list[AnyMessage] = []
    for message in run:
        calls.update(_call_ids(message))
        if not isinstance(message, ToolMessage) or message.tool_call_id in calls:
            kept.append(message)
    return kept


def _call_ids(message: AnyMessage) -> list[str | None]:
    return [call["id"] for call in message.tool_calls] if isinstance(message, AIMessage) else []


_CALL_BLOCKS = {"tool_use", "tool_call", "function_call"}


def without_open_calls(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The messages without calls that no result follows; a message that was nothing but such calls is left out."""
    kept: list[AnyMessage] = []
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
            kept.append(message)
            continue
        if isinstance(message, AIMessage) and message.tool_calls:
            closed = _with_calls(message, answered)
            kept += [closed] if closed.tool_calls or closed.text.strip() else []
        else:
            kept.append(message)
        answered = set()
    return kept[::-1]


def _with_calls(message: AIMessage, ids: set[str]) -> AIMessage:
    if all(call["id"] in ids for call in message.tool_calls):
        return message
    content = message.content
    if isinstance(content, list):
        content = [block for block in content if not _is_open(block, ids)]
    # Another record of the calls, which a provider's client may prefer.
    kwargs = {name: value for name, value in message.additional_kwargs.items() if name != "tool_calls"}
    calls = [call for call in message.tool_calls if call["id"] in ids]
    return message.model_copy(update={"content": content, "tool_calls": calls, "additional_kwargs": kwargs})


def _is_open(block: object, ids: set[str]) -> bool:
    return isinstance(block, dict) and block.get("type") in _CALL_BLOCKS and block.get("id") not in ids
