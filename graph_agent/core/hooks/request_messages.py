"""Places messages that hooks add to requests but not to the history, and repairs their open calls."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage

from graph_agent.core.hooks.copies import copied, fail_or_skip
from graph_agent.core.hooks.protocol import LoopHook
from graph_agent.core.state.schema import RequestOnlyMessages
from graph_agent.models.retry import run_side_call
from graph_agent.models.sanitize import CALL_BLOCKS


class CarriedMessages:
    """Computes, for the reruns of one plan, the added messages that later requests of the input hold.

    Args:
        before: The carried messages of the input's earlier plans.
        request: The messages of the plan's first request.
    """

    def __init__(
        self, before: Sequence[RequestOnlyMessages], history: Sequence[AnyMessage], request: Sequence[AnyMessage]
    ) -> None:
        self._before = before
        self._history = history
        self._request = request
        self._kept: list[AnyMessage] = []

    def after_rerun(self, patched: Sequence[AnyMessage], keep: Sequence[AnyMessage]) -> list[RequestOnlyMessages]:
        """The carried messages after a rerun, ordered by position.

        Args:
            patched: The messages of the rerun; their additions to the plan's first request replace those of the plan's
                earlier reruns.
            keep: Further messages to keep, in addition to those of the plan's earlier reruns.
        """
        self._kept += keep
        found = additions(self._request, patched)
        rest = without_equals(self._kept, [message for addition in found for message in addition.messages])
        if rest:
            found.append(Addition(len(self._request), rest))
        pieces: list[RequestOnlyMessages] = [
            {"at": self._at(one.before), "messages": self._with_unique_ids(one.messages)} for one in found
        ]
        return sorted([*self._before, *pieces], key=itemgetter("at"))

    def _at(self, before: int) -> int:
        """The position in the history that corresponds to an index in the request."""
        if before < len(self._request):
            positions = {message.id: position for position, message in enumerate(self._history)}
            for message in self._request[before:]:
                if message.id in positions:
                    return positions[message.id]
        return len(self._history)

    def _with_unique_ids(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """Give each message an id that is unique in the request: compaction cuts requests at a message id."""
        taken = {message.id for message in self._request}
        return [
            one if one.id and one.id not in taken else one.model_copy(update={"id": str(uuid4())}) for one in messages
        ]


M = TypeVar("M", bound=BaseMessage)
_Key: TypeAlias = tuple[str, str, tuple[str | None, ...]]


class Addition(NamedTuple):
    """Consecutive messages of a patched request that are not in the original."""

    before: int
    """Index of the original message after them; the number of original messages at the end."""
    messages: list[AnyMessage]


def additions(original: Sequence[AnyMessage], patched: Sequence[AnyMessage]) -> list[Addition]:
    """Find the messages that a patched request adds, in order.

    A message is an original if it has the id of one, or its type, text and call ids. New messages at a position where
    originals are missing are rewrites, not additions, up to the first new call: a call and its result are always
    additions. A result whose call is not added with it is a rewrite.
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
    """The messages that do not equal any of the others by type, text and call ids."""
    keys = {message_key(message) for message in others}
    return [message for message in messages if message_key(message) not in keys]


def message_key(message: AnyMessage) -> _Key:
    """The type, text and call ids of a message."""
    ids = (message.tool_call_id,) if isinstance(message, ToolMessage) else tuple(_call_ids(message))
    return message.type, message.text, ids


def _places(original: Sequence[AnyMessage], patched: Sequence[AnyMessage]) -> list[int | None]:
    """For each patched message the index of its original; None for a new message. No original is used twice."""
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
    """The messages from the first one with a call that the original does not have; empty without one."""
    first = next((index for index, message in enumerate(run) if set(_call_ids(message)) - known), len(run))
    return run[first:]


def _answered(run: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The messages without results of calls that are not among them."""
    calls: set[str | None] = set()
    kept: list[AnyMessage] = []
    for message in run:
        calls.update(_call_ids(message))
        if not isinstance(message, ToolMessage) or message.tool_call_id in calls:
            kept.append(message)
    return kept


def _call_ids(message: AnyMessage) -> list[str | None]:
    return [call["id"] for call in message.tool_calls] if isinstance(message, AIMessage) else []


def without_open_calls(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Remove calls without results, which providers refuse; a message that holds only such calls is removed."""
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
    # A second copy of the calls, which a provider's client may prefer.
    kwargs = {name: value for name, value in message.additional_kwargs.items() if name != "tool_calls"}
    calls = [call for call in message.tool_calls if call["id"] in ids]
    return message.model_copy(update={"content": content, "tool_calls": calls, "additional_kwargs": kwargs})


def _is_open(block: object, ids: set[str]) -> bool:
    return isinstance(block, dict) and block.get("type") in CALL_BLOCKS and block.get("id") not in ids


async def result_texts(
    hooks: Sequence[LoopHook],
    messages: Sequence[AnyMessage],
    warn: Callable[[str], None],
    count_reply: Callable[[AIMessage], None],
) -> dict[str, str]:
    """Have the hooks rewrite tool results; each hook receives the results of the hooks before it.

    Args:
        hooks: The hooks that rewrite results, in order.
        warn: Receives warnings for the user.
        count_reply: Receives each reply of a model that a hook calls itself.

    Returns:
        Message id → new text of the changed results.

    Raises:
        HookError: If a hook with `on_error = "fail"` fails.
    """
    texts: dict[str, str] = {}
    if not hooks:
        return texts
    results = [message for message in messages if isinstance(message, ToolMessage)]
    for hook in hooks:
        try:
            returned = await run_side_call(
                hook.rewrite_results, copied(with_texts(results, texts)), on_reply=count_reply
            )
            texts |= _checked(returned)
        except BaseException as error:  # noqa: BLE001 - a hook may raise anything; its `on_error` selects the response
            fail_or_skip(hook, error, warn)
    return texts


def with_texts(messages: Sequence[Any], texts: Mapping[str, str]) -> list[Any]:
    """Replace the text of tool results; their images and files stay.

    Args:
        texts: Message id → text.
    """
    return [
        with_message_text(message, texts[message.id])
        if isinstance(message, ToolMessage) and message.id is not None and message.id in texts
        else message
        for message in messages
    ]


def with_message_text(message: M, text: str) -> M:
    """Replace the text of a message; its images and files follow the text."""
    content: Any = text
    if isinstance(message.content, list):
        rest = [block for block in message.content if isinstance(block, dict) and block.get("type") != "text"]
        content = [{"type": "text", "text": text}, *rest]
    return message.model_copy(update={"content": content})


def _checked(returned: Any) -> dict[str, str]:
    if not isinstance(returned, Mapping):
        raise TypeError(f"rewrite_results returned {returned!r}; return a mapping of message id → text")
    for id_, text in returned.items():
        if not isinstance(text, str):
            raise TypeError(f"rewrite_results gave {text!r} for the result {id_!r}; give text")
    return dict(returned)
