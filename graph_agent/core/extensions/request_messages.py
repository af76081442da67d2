"""Places messages that hooks add to requests but not to the history, and repairs their open calls.

Carried messages are additions of a hook's rerun that later requests of the same input contain, too. An open call is a
call without a result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage

from graph_agent.core.extensions.hook_copies import copied
from graph_agent.core.extensions.hook_failures import fail_or_skip
from graph_agent.core.extensions.hook_protocol import LoopHook
from graph_agent.core.state.schema import RequestOnlyMessages
from graph_agent.models.retry import run_side_call
from graph_agent.models.sanitize import CALL_BLOCKS


class CarriedMessages:
    """Computes the messages that hooks add to later requests of an input, from the reruns of one plan.

    Args:
        before: The added messages of the input's earlier plans.
        history: The session's messages.
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
        """Return all added messages of the input after a rerun, ordered by their position in the history.

        A message gets a new id if it has none, or the id of a message in the plan's first request.

        Args:
            patched: The messages of the rerun. Those that it adds to the plan's first request replace the additions of
                the plan's earlier reruns.
            keep: Further messages to add at the end of the history, which stay for later reruns of the plan. Those
                equal to an addition of `patched` are left out.
        """
        self._kept += keep
        found = additions(self._request, patched)
        # A message may be in the patch and in `keep_messages`.
        rest = without_equals(self._kept, [message for addition in found for message in addition.messages])
        if rest:
            found.append(Addition(len(self._request), rest))
        pieces: list[RequestOnlyMessages] = [
            {"at": self._at(one.before), "messages": self._with_unique_ids(one.messages)} for one in found
        ]
        return sorted([*self._before, *pieces], key=itemgetter("at"))

    def _at(self, before: int) -> int:
        """Return the position in the history before which messages belong that a request has at the index `before`.

        It is the position of the first message of the request from that index on that the history contains; if there is
        none, the end of the history.
        """
        if before < len(self._request):
            positions = {message.id: position for position, message in enumerate(self._history)}
            for message in self._request[before:]:
                if message.id in positions:
                    return positions[message.id]
        return len(self._history)

    def _with_unique_ids(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """Return messages with ids that no message of the request has, because compaction cuts requests at an id."""
        taken = {message.id for message in self._request}
        return [
            one if one.id and one.id not in taken else one.model_copy(update={"id": str(uuid4())}) for one in messages
        ]


M = TypeVar("M", bound=BaseMessage)
_Key: TypeAlias = tuple[str, str, tuple[str | None, ...]]
"""Type, text and call ids of a message, by which messages without equal ids are compared."""


class Addition(NamedTuple):
    """Consecutive messages of a patched request that are not in the original."""

    before: int
    """Index of the original message after them; the number of original messages at the end."""
    messages: list[AnyMessage]


def additions(original: Sequence[AnyMessage], patched: Sequence[AnyMessage]) -> list[Addition]:
    """Return the messages that a patched request adds to the original, in order, as groups of consecutive messages.

    A patched message is an original if it has the id of one, or the same type, text and call ids; each original counts
    once. In a group that stands where originals are missing, the new messages are rewrites of these, not additions, up
    to the first new call. A new call and its result are always additions; a result without its call is a rewrite.

    Args:
        original: The messages of the original request.
        patched: Those of the patched one.
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
    """Return the messages that do not equal any of the others by type, text and call ids."""
    keys = {message_key(message) for message in others}
    return [message for message in messages if message_key(message) not in keys]


def message_key(message: AnyMessage) -> _Key:
    """Return the type, text and call ids of a message; for a result, the id of the call that it answers."""
    ids = (message.tool_call_id,) if isinstance(message, ToolMessage) else tuple(_call_ids(message))
    return message.type, message.text, ids


def _places(original: Sequence[AnyMessage], patched: Sequence[AnyMessage]) -> list[int | None]:
    """Return, for each patched message, the index of its original; None for a new message.

    Messages are equal if they have the same id, or else the same type, text and call ids. Each original is used once.
    """
    by_id = {message.id: index for index, message in enumerate(original) if message.id}
    places: list[int | None] = [by_id.pop(message.id, None) if message.id else None for message in patched]
    # Comparing texts is only needed if ids leave messages open.
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
    """Return the messages from the first one that has a new call; empty if no message has one.

    Args:
        run: Consecutive new messages.
        known: Call ids of the original request, whose calls are not new.
    """
    first = next((index for index, message in enumerate(run) if set(_call_ids(message)) - known), len(run))
    return run[first:]


def _answered(run: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages, without results whose call does not precede them in the list."""
    calls: set[str | None] = set()
    kept: list[AnyMessage] = []
    for message in run:
        calls.update(_call_ids(message))
        if not isinstance(message, ToolMessage) or message.tool_call_id in calls:
            kept.append(message)
    return kept


def _call_ids(message: AnyMessage) -> list[str | None]:
    """Return the ids of a model message's calls; empty for any other message."""
    return [call["id"] for call in message.tool_calls] if isinstance(message, AIMessage) else []


def without_open_calls(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages without calls that have no result directly after their message, because providers refuse such
    a history.

    A model message that has neither other calls nor text is left out. A result counts only for the nearest model
    message before it. The given messages are not changed.
    """
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
        # A result answers a call of the nearest message before it only.
        answered = set()
    return kept[::-1]


def _with_calls(message: AIMessage, ids: set[str]) -> AIMessage:
    """Return a copy of a model message with only the calls of these ids; the message itself if it has no other calls.

    Other calls are also removed from content blocks; the copies of calls in extra fields are all removed.
    """
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
    """Whether a content block is a tool call whose id is not among these."""
    return isinstance(block, dict) and block.get("type") in CALL_BLOCKS and block.get("id") not in ids


async def result_texts(
    hooks: Sequence[LoopHook],
    messages: Sequence[AnyMessage],
    warn: Callable[[str], None],
    count_reply: Callable[[AIMessage], None],
) -> dict[str, str]:
    """Let hooks rewrite the tool results for requests, and return the new texts. Each hook receives the texts of those
    before it.

    A hook that fails is skipped with a warning, or ends the input, by its `on_error`.

    Args:
        hooks: The hooks that rewrite results, in order.
        messages: The conversation; the hooks receive copies of its results.
        warn: Receives warnings for the user.
        count_reply: Receives each reply of a model that a hook calls itself.

    Returns:
        Message id → new text, for the results that hooks changed.

    Raises:
        HookError: A hook with `on_error = "fail"` failed.
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
    """Return the messages with other texts in some tool results; images and files of these results stay.

    Args:
        messages: The messages; not changed.
        texts: Message id → text. Messages without an entry, and other messages than results, stay as they are.
    """
    return [
        with_message_text(message, texts[message.id])
        if isinstance(message, ToolMessage) and message.id is not None and message.id in texts
        else message
        for message in messages
    ]


def with_message_text(message: M, text: str) -> M:
    """Return a message with another text; its images and files follow the text."""
    content: Any = text
    if isinstance(message.content, list):
        rest = [block for block in message.content if isinstance(block, dict) and block.get("type") != "text"]
        content = [{"type": "text", "text": text}, *rest]
    return message.model_copy(update={"content": content})


def _checked(returned: Any) -> dict[str, str]:
    """Return what a hook's `rewrite_results` returned, as a dict.

    Raises:
        TypeError: It is no mapping of message id → text.
    """
    if not isinstance(returned, Mapping):
        raise TypeError(f"rewrite_results returned {returned!r}; return a mapping of message id → text")
    for id_, text in returned.items():
        if not isinstance(text, str):
            raise TypeError(f"rewrite_results gave {text!r} for the result {id_!r}; give text")
    return dict(returned)
