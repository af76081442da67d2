"""The time limit of one model request: to its first token, between tokens, and in all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler


class ModelTimeoutError(TimeoutError):
    """A model request took longer than its limit; the text names the limit and its setting."""


class TokenTimeout(AsyncCallbackHandler):
    """Bounds one model request; give it to the request as a callback, and send the request within `bounded()`.

    A reply that is not streamed has no tokens before its end, so `token_s` bounds the whole of it.

    Args:
        token_s: Seconds to the first token and from each token to the next; None for no limit.
        total_s: Seconds from the request to the end of its reply; None for no limit.
    """

    run_inline = True
    """Without it each token would be a task of its own."""

    def __init__(self, token_s: float | None, total_s: float | None = None) -> None:
        self._token_s = token_s
        self._total_s = total_s
        self._scope: asyncio.Timeout | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends_at: float | None = None
        self._tokens = 0

    def begin(self) -> None:
        """Count from now, for a request that is sent now."""
        self._loop = asyncio.get_running_loop()
        self._ends_at = None if self._total_s is None else self._loop.time() + self._total_s
        self._tokens = 0

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[None]:
        """Begin, and cancel the body, which receives the whole reply, when a limit is met.

        Raises:
            ModelTimeoutError: In place of the cancellation.
        """
        self.begin()
        async with self.waiting():
            yield

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Cancel the body, which waits for the next token of a request that has begun, when a limit is met.

        Raises:
            ModelTimeoutError: In place of the cancellation.
        """
        try:
            async with asyncio.timeout_at(self._next_limit()) as self._scope:
                yield
        except TimeoutError as error:
            if self._scope is None or not self._scope.expired():
                raise
            raise ModelTimeoutError(self._met()) from error
        finally:
            self._scope = None

    def restart(self) -> None:
        """Count the time to the next token from now. Any thread may call it."""
        self._tokens += 1
        self._move(self._next_limit)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While within, `token_s` does not count: the time is that of whoever reads the tokens."""
        self._move(lambda: self._ends_at)
        try:
            yield
        finally:
            self._move(self._next_limit)

    def _move(self, limit: Callable[[], float | None]) -> None:
        if self._loop is None:
            return

        def move() -> None:
            # A limit that was met stays met, and a request that has ended has none.
            if self._scope is not None and not self._scope.expired():
                self._scope.reschedule(limit())

        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            move()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(move)

    def _next_limit(self) -> float | None:
        assert self._loop is not None
        if self._token_s is None:
            return self._ends_at
        next_token_at = self._loop.time() + self._token_s
        return next_token_at if self._ends_at is None else min(next_token_at, self._ends_at)

    def _met(self) -> str:
        assert self._loop is not None
        if self._ends_at is not None and self._loop.time() >= self._ends_at:
            return f"the reply was not complete after {self._total_s:g} s (model_total_timeout_s)"
        if self._tokens:
            return f"no further token came for {self._token_s:g} s (model_timeout_s)"
        return f"no token came for {self._token_s:g} s (model_timeout_s)"

    async def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Do nothing; without this method LangChain would write out the whole request for `on_llm_start`."""

    async def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        """Start counting anew."""
        self.restart()

    async def on_stream_event(self, *_: Any, **__: Any) -> None:
        """Start counting anew."""
        self.restart()
