"""Keeps marked tool results, such as a loaded skill, in requests that leave out the older part of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from graph_agent.base.history_notes import KEPT, NOTE_MARK, is_note
from graph_agent.core.state.messages import KEPT_AS

_HEAD = "[A note, not the user's words: results from the part that is left out, which still hold."
_MOST_CHARS = 40_000


def kept_as(message: AnyMessage) -> str | None:
    """Return the mark of a tool result that must stay in shortened requests, such as `skill pdf-forms`.

    None for other messages and for failed results.
    """
    if message.type != "tool" or message.status == "error" or not isinstance(message.artifact, dict):
        return None
    return message.artifact.get(KEPT_AS)


class KeptResults:
    """Finds the marked results in one run's conversation.

    Each message is read once, unless the conversation is edited.
    """

    def __init__(self) -> None:
        self._read: list[AnyMessage] = []
        self._newest: dict[str, AnyMessage] = {}
        """The newest result of each mark, oldest first."""

    def of(self, messages: Sequence[AnyMessage]) -> dict[str, AnyMessage]:
        """Return mark → newest message with that mark, in the order of these messages.

        The returned dict is the cache itself, which later calls change.

        Args:
            messages: The conversation; usually that of the last call with some new messages. If older ones have
                changed, all are read again.
        """
        # Equal messages are the same objects, which makes this comparison cheap.
        if messages[: len(self._read)] != self._read:
            self._read, self._newest = [], {}
        new = messages[len(self._read) :]
        for message in new:
            if (mark := kept_as(message)) is not None:
                self._newest.pop(mark, None)
                self._newest[mark] = message
        self._read += new
        return self._newest


def with_kept_results(
    view: Sequence[AnyMessage], kept: Mapping[str, AnyMessage], window: int | None
) -> list[AnyMessage]:
    """Return a shortened conversation with a note that repeats marked results which the shortening left out.

    The newest results have precedence: each is repeated if it fits into what is left of a quarter of the window (40,000
    characters at most); of the others only the marks are listed. The note follows that on the shortening. A copy
    without it is returned if no marked result is missing, or if the conversation was not shortened.

    Args:
        view: The shortened conversation; its first message is the note on what it leaves out.
        kept: Mark → newest result with it, of the whole conversation, oldest first.
        window: The model's context window in tokens; None if unknown.
    """
    if not view or not is_note(view[0]):
        return list(view)
    present = {message.id for message in view if isinstance(message, ToolMessage)}
    missing = {mark: message for mark, message in reversed([*kept.items()]) if message.id not in present}
    if not missing:
        return list(view)
    # A token is about four characters, so as many characters as tokens are a quarter of the window.
    room = _MOST_CHARS if window is None else min(_MOST_CHARS, window)
    texts, others = list[str](), list[str]()
    for mark, message in missing.items():
        if len(message.text) <= room:
            room -= len(message.text)
            texts.insert(0, message.text)
        else:
            others.insert(0, mark)
    if others:
        texts.append(f"Left out, because there is no room: {', '.join(others)}. Ask for it again if it is needed.")
    note = HumanMessage("\n\n".join([_HEAD, *texts]) + "]", additional_kwargs={NOTE_MARK: KEPT})
    return [view[0], note, *view[1:]]
