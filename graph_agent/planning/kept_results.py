"""Keeps marked tool results, such as a loaded skill, in requests that leave out the older part of a conversation."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from graph_agent.planning.compaction import KEPT, NOTE_MARK, is_note
from graph_agent.state.messages import KEPT_AS

_HEAD = "[A note, not the user's words: results from the part that is left out, which still hold."
_MOST_CHARS = 40_000


def kept_as(message: AnyMessage) -> str | None:
    """Return the mark of a kept result; None for other messages."""
    if not isinstance(message, ToolMessage) or message.status == "error" or not isinstance(message.artifact, dict):
        return None
    return message.artifact.get(KEPT_AS)


def with_kept_results(
    view: Sequence[AnyMessage], messages: Sequence[AnyMessage], window: int | None
) -> list[AnyMessage]:
    """Add a note with the kept results that a shortened conversation lacks.

    Of each mark, the newest result counts. The newest results come first into the room that there is, a quarter of the
    window; the marks of the others are named.

    Args:
        view: The shortened conversation; its first message is the note on what it leaves out.
        messages: The whole conversation.
        window: The model's context window in tokens; None if unknown.
    """
    present = {message.id for message in view if isinstance(message, ToolMessage)}
    newest: dict[str, AnyMessage] = {}
    for message in reversed(messages):
        if (mark := kept_as(message)) is not None:
            newest.setdefault(mark, message)
    missing = {mark: message for mark, message in newest.items() if message.id not in present}
    if not missing or not view or not is_note(view[0]):
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
