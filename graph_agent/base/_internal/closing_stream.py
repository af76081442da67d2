"""Defines generators that detect an abandoned reader and can then be closed, and joins text chunks for slow readers."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class ConsumerTracker:
    """Records whether a stream still has a reader, so that a stream without one can be closed."""

    def __init__(self) -> None:
        self.is_left = False
        """Whether a loop over the stream was left early, or the stream was closed or dropped, and no other loop has
        begun since."""
        self._stream: weakref.ref[ClosingStream[Any] | ClosingIterator[Any]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that reads an asynchronous stream; None for a blocking one."""

    def begin(self, stream: ClosingStream[Any] | ClosingIterator[Any]) -> None:
        """Record that a stream has a reader now; an asynchronous one must be read in the running event loop.

        Sets `is_left` to False. The stream is referenced weakly, so that the tracker does not keep it alive.
        """
        self.is_left = False
        # Each part of a stream comes through here.
        if self._stream is None or self._stream() is not stream:
            self._stream = weakref.ref(stream)
            self._loop = asyncio.get_running_loop() if isinstance(stream, ClosingStream) else None

    def close_if_left(self) -> None:
        """Close a stream whose reader has left, from any thread.

        A blocking stream is closed before this returns, an asynchronous one later by its event loop. Does nothing if
        the stream has a reader, if its event loop is closed, or if it is no longer referenced, in which case it is
        being closed already.
        """
        stream = self._stream() if self._stream is not None else None
        if not self.is_left or stream is None:
            return
        if isinstance(stream, ClosingIterator):
            stream.close()
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(stream.aclose()))


class ClosingStream(AsyncGenerator[T, None]):
    """An async generator that sets `is_left` of a `ConsumerTracker` when its reader leaves.

    `async for` reads it through a separate iterator, which is dropped when the loop ends by `break`, `return` or an
    exception. Another loop may continue to read the stream, as with any generator.

    Args:
        source: The generator that produces the items.
        readership: The tracker.
    """

    def __init__(self, source: AsyncGenerator[T], readership: ConsumerTracker) -> None:
        self._source = source
        self._readership = readership

    def __aiter__(self) -> AsyncGenerator[T, None]:
        return _StreamIterator(self, self._readership)

    def __anext__(self) -> Awaitable[T]:  # type: ignore[override] # a coroutine of its own would cost time for each part
        self._readership.begin(self)
        return self._source.__anext__()

    async def asend(self, value: None) -> T:
        """Resume the source and return its next item, as `AsyncGenerator.asend`; records that there is a reader."""
        self._readership.begin(self)
        return await self._source.asend(value)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> T:
        """Raise an exception inside the source, and return the next item of the source, as `AsyncGenerator.athrow`
        does.
        """
        error = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        return await self._source.athrow(error)

    async def aclose(self) -> None:
        """Record that the reader has left, and close the source."""
        self._readership.is_left = True
        await self._source.aclose()

    def __del__(self) -> None:
        self._readership.is_left = True


class _StreamIterator(ClosingStream[T]):
    """The iterator of one `async for` loop; when it is dropped, the reader has left."""

    def __aiter__(self) -> AsyncGenerator[T, None]:
        return self

    def __anext__(self) -> Awaitable[T]:  # type: ignore[override] # as above
        return self._source.__anext__()


class ClosingIterator(Iterator[T]):
    """A blocking iterator over a generator that sets `is_left` of a `ConsumerTracker` when its reader leaves.

    See `ClosingStream`.
    """

    def __init__(self, source: Generator[T], readership: ConsumerTracker) -> None:
        self._source = source
        self._readership = readership

    def __iter__(self) -> Iterator[T]:
        return _LoopIterator(self, self._readership)

    def __next__(self) -> T:
        self._readership.begin(self)
        return next(self._source)

    def close(self) -> None:
        """Record that the reader has left, and close the source."""
        self._readership.is_left = True
        self._source.close()

    def __del__(self) -> None:
        self._readership.is_left = True


class _LoopIterator(Iterator[T]):
    """The iterator of one `for` loop; when it is dropped, the reader has left."""

    def __init__(self, stream: ClosingIterator[T], readership: ConsumerTracker) -> None:
        self._stream = stream
        self._readership = readership

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._stream)

    def close(self) -> None:
        """Record that the reader has left, and close the source."""
        self._stream.close()

    def __del__(self) -> None:
        self._readership.is_left = True


BETWEEN_PIECES_S = 0.016
"""Minimum seconds between two sends, about one screen refresh; chunks that arrive between them are joined."""


_MOST_JOINED = 65_536
"""Maximum characters that are held back; with more, they are sent before the interval has passed, and `add` waits."""


async def _drop(text: str) -> None:
    """Discard the text."""


class TextCoalescer:
    """Sends the first chunk of text at once, and joins later ones to one send per interval, for slow receivers.

    Sends never overlap. Call `flush` before anything else is sent to the same receiver, to keep the order.

    Args:
        send: Sends a text to the receiver.
        every_s: Returns the seconds until the next send; called after each one.
    """

    def __init__(
        self, send: Callable[[str], Awaitable[None]], every_s: Callable[[], float] = lambda: BETWEEN_PIECES_S
    ) -> None:
        self._send = send
        self._every_s = every_s
        self._buffer: list[str] = []
        self._buffered = 0
        """Number of characters in the buffer."""
        self._due = 0.0
        """Time of the event loop before which nothing is sent."""
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._send_lock = asyncio.Lock()

    async def add(self, text: str) -> None:
        """Send a chunk of text now, or later together with those that follow.

        It is sent now, with the text that is held back, if the interval since the last send has passed or
        `_MOST_JOINED` characters are held back; this waits for the send, and raises its error. Otherwise returns at
        once, and a timer sends the text.
        """
        self._buffer.append(text)
        self._buffered += len(text)
        is_full = self._buffered >= _MOST_JOINED
        if self._timer is not None and not is_full:
            return
        loop = asyncio.get_running_loop()
        if is_full or loop.time() >= self._due:
            await self.flush()
        else:
            self._timer = loop.call_at(self._due, self._flush_later)

    async def flush(self) -> None:
        """Send the text that is held back, if any, and wait until it is sent. Raises what the send raises; the text is
        lost then.

        The timer for the held text is cancelled, and a send that has begun is waited for first.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # The timer may have begun a send, which the next one must follow.
        async with self._send_lock:
            text = "".join(self._buffer)
            self._buffer.clear()
            self._buffered = 0
            if text:
                await self._send(text)
                self._due = asyncio.get_running_loop().time() + self._every_s()

    async def drop(self) -> None:
        """Discard the text that is held back; waits for a send that has begun."""
        self._buffer.clear()
        self._buffered = 0
        await self.flush()

    def close(self) -> None:
        """Discard all text from now on, including that held back, because the receiver is gone."""
        self._send = _drop

    def _flush_later(self) -> None:
        self._timer = None
        # Kept, because event loops hold only weak references to tasks.
        self._flushing = asyncio.ensure_future(self.flush())
