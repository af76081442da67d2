"""Async generators that detect an abandoned reader and can then be closed."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Readership:
    """Tracks whether a stream still has a reader."""

    def __init__(self) -> None:
        self.is_left = False
        """Whether the `async for` loop over the stream exited early and no other loop has started."""
        self._stream: weakref.ref[ClosingStream[Any]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, stream: ClosingStream[Any]) -> None:
        """Record that the running event loop reads a stream."""
        self.is_left = False
        self._stream = weakref.ref(stream)
        self._loop = asyncio.get_running_loop()

    def close_if_left(self) -> None:
        """Schedule the close of an abandoned stream and return; callable from any thread.

        A stream without references is already being closed by its event loop.
        """
        stream = self._stream() if self._stream is not None else None
        if self.is_left and stream is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(stream.aclose()))


class ClosingStream(AsyncGenerator[T, None]):
    """An async generator that records when it loses its reader.

    `async for` reads it through a separate iterator, which is dropped when the loop exits by `break`, `return` or an
    exception. Another loop may continue to read the stream, as with any generator.

    Args:
        source: The generator to read from.
        readership: Records whether the stream has a reader.
    """

    def __init__(self, source: AsyncGenerator[T], readership: Readership) -> None:
        self._source = source
        self._readership = readership

    def __aiter__(self) -> AsyncGenerator[T, None]:
        return _StreamIterator(self, self._readership)

    async def __anext__(self) -> T:
        self._readership.begin(self)
        return await self._source.__anext__()

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
        await self._source.aclose()

    def __del__(self) -> None:
        self._readership.is_left = True


class _StreamIterator(ClosingStream[T]):
    """The iterator of one `async for` loop over a stream."""

    def __aiter__(self) -> AsyncGenerator[T, None]:
        return self

    async def __anext__(self) -> T:
        return await self._source.__anext__()
