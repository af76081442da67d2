"""Holds the text of replies between the model request that streams it and the consumer of a run's parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter

from graph_agent.base._compat import custom_writer
from graph_agent.session.results import Reasoning, Token

MOST_UNREAD = 65_536
"""Number of unread characters at which the model's stream waits for the consumer."""


class NewText:
    """Object on LangGraph's custom stream that reports new text in the run's `ReplyBuffer`.

    It contains no text itself.
    """

    __slots__ = ()


_NEW_TEXT = NewText()
"""The only instance of `NewText`."""
_REASONING = "\0reasoning "
"""Prefix of the key of a message's reasoning. The key of a message's text is the message id."""


class ReplyBuffer:
    """Text and reasoning of model replies that the consumer of a run's parts has not read yet.

    The text does not pass through LangGraph's stream, where each entry costs several times as much as a token. One
    entry, a `NewText`, wakes the consumer for any number of tokens. Must be constructed while the run's event loop is
    running.

    Args:
        every_s: Returns the minimum seconds between two entries for one message; the text in between is joined. None to
            write an entry for each piece at once, and to join nothing.
    """

    def __init__(self, every_s: Callable[[], float] | None = None) -> None:
        self._every_s = every_s
        self._pieces: list[tuple[str | None, str]] = []
        """Key and text of each unread piece. The key is a message id, None if unknown, or a key of `_reasoning`."""
        self._reasoning: dict[str | None, str] = {}
        """Key of reasoning → id of its message."""
        self._unread = 0
        """Characters of the pieces."""
        self._newest: str | None = ""
        """Message id of the newest piece."""
        self._due = 0.0
        """Loop time before which no entry is written for more text of the same message."""
        self._writer: Callable[[NewText], None] | None = None
        """Writes an entry to the run's custom stream; None before the first text."""
        self._written = 0
        """Number of entries on the stream that the consumer has not received."""
        self._begins: list[int] = []
        """Indices of the pieces with which the text of a later entry begins."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer that writes the next entry; None if none is due."""
        self._loop = asyncio.get_running_loop()
        """The run's event loop."""
        self._taken = asyncio.Event()
        """Set when the consumer reads text, and cleared by a node that waits for that."""

    async def add_text(self, text: str, message_id: str | None) -> None:
        """Add a piece of a reply's text, and wake the consumer: at once for the first text of a message, else after
        `every_s`.

        If the consumer is to be woken already, nothing more is written. Waits while the buffer has `MOST_UNREAD`
        characters or more, but not on the event loop of another thread, on which LangChain runs callbacks of a blocking
        model. Must be called in the task of a node.

        Args:
            text: The piece.
            message_id: Id of the reply; None if unknown.
        """
        is_new, self._newest = message_id != self._newest, message_id
        self._pieces.append((message_id, text))
        self._unread += len(text)
        # The common case, for which this method is as short as it is: the text is announced already.
        is_announced = not is_new and (self._written or self._timer is not None)
        if is_announced and self._unread < MOST_UNREAD:
            return
        if is_new and self._written:
            self._begins.append(len(self._pieces) - 1)
        if is_new or not self._written:
            self._announce(is_new=is_new)
        # The consumer cannot wake the loop of another thread, in which the callbacks of a blocking model run.
        while self._unread >= MOST_UNREAD and asyncio.get_running_loop() is self._loop:
            self._taken.clear()
            await self._taken.wait()

    async def add_reasoning(self, text: str, message_id: str | None) -> None:
        """Add a piece of a reply's reasoning, and wake the consumer; waits while the buffer is full."""
        id_ = message_id or ""
        self._reasoning[key := _REASONING + id_] = id_
        await self.add_text(text, key)

    def _announce(self, *, is_new: bool) -> None:
        """Write an entry to the stream, which wakes the consumer for the unread text, or set a timer that does so
        later.

        The entry is written now for the first text of a message, for `MOST_UNREAD` characters, and after the interval
        `every_s`. A timer that is set already is kept.
        """
        loop = asyncio.get_running_loop()
        self._writer = self._writer or custom_writer(loop)
        # The first text of a message has its place after the entries before it, such as the events that it answers.
        if is_new or self._unread >= MOST_UNREAD or loop.time() >= self._due:
            self._write()
        elif self._timer is None:
            self._timer = loop.call_at(self._due, self._write)

    def _write(self) -> None:
        """Write an entry (a `NewText`) to the run's custom stream, count it as not received, and stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._written += 1
        assert self._writer is not None, "set with the first piece"
        self._writer(_NEW_TEXT)

    def take_before(self, mode: str, payload: object) -> list[Token | Reasoning]:
        """Return the unread text that must come before the parts of a chunk of LangGraph's stream, and remove it.

        For an entry of this buffer (a `NewText`), it is the text up to that of the next entry, and the entry counts as
        received. For another chunk it is all text, except that a chunk of the mode `custom` takes none while an entry
        of this buffer is on the stream.

        Args:
            mode: The stream mode of the chunk.
            payload: The content of the chunk.
        """
        if isinstance(payload, NewText):
            self._written -= 1
            return self.take(self._begins[0] if self._begins else None)
        # Text with an entry of its own comes with that, as the chunk may be older. A node that has ended has no more.
        return [] if self._written and mode == "custom" else self.take()

    def take(self, end: int | None = None) -> list[Token | Reasoning]:
        """Remove the first `end` unread pieces, None for all, and return them as parts in order.

        If there is an interval (`every_s`), adjacent pieces of one message are joined. Wakes a writer that waits for
        room, and restarts the time until the next delivery.
        """
        if not self._pieces:
            return []
        pieces, self._pieces = self._pieces[:end], [] if end is None else self._pieces[end:]
        self._begins = [] if end is None else [begin - end for begin in self._begins[1:]]
        self._unread = sum(len(text) for _, text in self._pieces)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._taken.set()
        if self._every_s is not None:
            self._due = asyncio.get_running_loop().time() + self._every_s()
            groups = groupby(pieces, itemgetter(0))
            pieces = [(message_id, "".join([text for _, text in group])) for message_id, group in groups]
        reasoning = self._reasoning
        return [
            Reasoning(text, reasoning[key]) if key in reasoning else Token(text, message_id=key or "")
            for key, text in pieces
        ]
