"""Async generators whose reader may leave before the end, and that can be closed once it has."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Readership:
    """Whether somebody still reads a stream."""

    def __init__(self) -> None:
        self.is_left = False
        """Whether the loop that read the stream was left before the end, and no other one has begun."""
        self._stream: weakref.ref[ClosingStream[Any]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, stream: ClosingStream[Any]) -> None:
        """Note that a stream is read, in the running event loop."""
        self.is_left = False
        self._stream = weakref.ref(stream)
        self._loop = asyncio.get_running_loop()

    def close_if_left(self) -> None:
        """Close the stream that nobody reads; from any thread, and without waiting.

        A stream that nothing refers to is being closed by its event loop already.
        """
        stream = self._stream() if self._stream is not None else None
        if self.is_left and stream is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(stream.aclose()))


class ClosingStream(AsyncGenerator[T, None]):
    """An async generator that notes when it is no longer read.

    `async for` reads it through an object of its own: where the loop is left, by `break`, `return` or an exception,
    that object is dropped. The stream may be read on by another loop, as any generator.

    Args:
        source: What is read.
        readership: Where to note it.
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
        """As a generator's."""
        self._readership.begin(self)
        return await self._source.asend(value)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> T:
        """As a generator's."""
        error = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        return await self._source.athrow(error)

    async def aclose(self) -> None:
        """As a generator's."""
        await self._source.aclose()

    def __del__(self) -> None:
        self._readership.is_left = True


class _StreamIterator(ClosingStream[T]):
    """What one `async for` holds of a stream."""

    def __aiter__(self) -> AsyncGenerator[T, None]:
        return self

    async def __anext__(self) -> T:
        return await self._source.__anext__()
