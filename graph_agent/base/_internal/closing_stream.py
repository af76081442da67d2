"""Defines generators that detect an abandoned reader and can then be closed, and joins text chunks for slow readers."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class ConsumerTracker:
    """Tracks whether a stream still has a reader."""

    def __init__(self) -> None:
        self.is_left = False
        """Whether the `async for` loop over the stream exited early and no other loop has started."""
        self._stream: weakref.ref[ClosingStream[Any] | ClosingIterator[Any]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that reads an asynchronous stream; None for a blocking one."""

    def begin(self, stream: ClosingStream[Any] | ClosingIterator[Any]) -> None:
        """Record that the running event loop, if any, reads a stream."""
        self.is_left = False
        self._stream = weakref.ref(stream)
        self._loop = asyncio.get_running_loop() if isinstance(stream, ClosingStream) else None

    def close_if_left(self) -> None:
        """Close an abandoned stream, or begin to if it cannot be closed at once; callable from any thread.

        A stream without references is already being closed.
        """
        stream = self._stream() if self._stream is not None else None
        if not self.is_left or stream is None:
            return
        if isinstance(stream, ClosingIterator):
            stream.close()
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(stream.aclose()))


class ClosingStream(AsyncGenerator[T, None]):
    """An async generator that records in its `readership` when it loses its reader.

    `async for` reads it through a separate iterator, which is dropped when the loop exits by `break`, `return` or an
    exception. Another loop may continue to read the stream, as with any generator.
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
        """See `AsyncGenerator.asend`."""
        self._readership.begin(self)
        return await self._source.asend(value)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> T:
        """See `AsyncGenerator.athrow`."""
        error = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        return await self._source.athrow(error)

    async def aclose(self) -> None:
        """See `AsyncGenerator.aclose`."""
        self._readership.is_left = True
        await self._source.aclose()

    def __del__(self) -> None:
        self._readership.is_left = True


class _StreamIterator(ClosingStream[T]):
    def __aiter__(self) -> AsyncGenerator[T, None]:
        return self

    def __anext__(self) -> Awaitable[T]:  # type: ignore[override] # as above
        return self._source.__anext__()


class ClosingIterator(Iterator[T]):
    """Behaves like `ClosingStream`, for a blocking generator."""

    def __init__(self, source: Generator[T], readership: ConsumerTracker) -> None:
        self._source = source
        self._readership = readership

    def __iter__(self) -> Iterator[T]:
        return _LoopIterator(self, self._readership)

    def __next__(self) -> T:
        self._readership.begin(self)
        return next(self._source)

    def close(self) -> None:
        """Behaves like `Generator.close`."""
        self._readership.is_left = True
        self._source.close()

    def __del__(self) -> None:
        self._readership.is_left = True


class _LoopIterator(Iterator[T]):
    def __init__(self, stream: ClosingIterator[T], readership: ConsumerTracker) -> None:
        self._stream = stream
        self._readership = readership

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._stream)

    def close(self) -> None:
        """Behaves like `Generator.close`."""
        self._stream.close()

    def __del__(self) -> None:
        self._readership.is_left = True


BETWEEN_PIECES_S = 0.016
"""Minimum seconds between two sends, about one screen refresh; chunks in between are joined."""


_MOST_JOINED = 65_536
"""Characters at which buffered chunks are sent before their interval has passed, or wait for the send before."""


async def _drop(text: str) -> None:
    """Do nothing."""


class TextCoalescer:
    """Sends the first chunk at once, and joins later chunks into one send per interval of `every_s()` seconds.

    To keep the order, call `flush` before anything else is sent to the same receiver. Sends never overlap.
    """

    def __init__(
        self, send: Callable[[str], Awaitable[None]], every_s: Callable[[], float] = lambda: BETWEEN_PIECES_S
    ) -> None:
        self._send = send
        self._every_s = every_s
        self._buffer: list[str] = []
        self._buffered = 0
        """Characters in the buffer."""
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._send_lock = asyncio.Lock()

    async def add(self, text: str) -> None:
        """Send a chunk now, or with those that follow within the interval; wait while the buffer is full."""
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
        """Send the buffered text; the buffer is empty on return."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._send_lock:
            text = "".join(self._buffer)
            self._buffer.clear()
            self._buffered = 0
            if text:
                await self._send(text)
                self._due = asyncio.get_running_loop().time() + self._every_s()

    async def drop(self) -> None:
        """Drop the buffered text, after a send that has begun."""
        self._buffer.clear()
        self._buffered = 0
        await self.flush()

    def close(self) -> None:
        """Drop the receiver, and all text from now on."""
        self._send = _drop

    def _flush_later(self) -> None:
        self._timer = None
        self._flushing = asyncio.ensure_future(self.flush())
