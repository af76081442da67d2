"""The time limits of one model request: to its first token, between tokens, and in total."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler


class ModelTimeoutError(TimeoutError):
    """A model request exceeded a time limit; the message names the limit and its setting."""


class TokenTimeout(AsyncCallbackHandler):
    """Limits the time of one model request; pass it as a callback, and send the request within `bounded()`.

    A reply that is not streamed has no tokens before its end, so `token_s` limits all of it.

    Args:
        token_s: Seconds to the first token and between tokens; None for no limit.
        total_s: Seconds from the request to the end of its reply; None for no limit.
    """

    run_inline = True
    """Avoids a task per token."""

    def __init__(self, token_s: float | None, total_s: float | None = None) -> None:
        self._token_s = token_s
        self._total_s = total_s
        self._scope: asyncio.Timeout | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends_at: float | None = None
        self._tokens = 0

    def begin(self) -> None:
        """Start the limits of a request that is sent now."""
        self._loop = asyncio.get_running_loop()
        self._ends_at = None if self._total_s is None else self._loop.time() + self._total_s
        self._tokens = 0

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[None]:
        """Start the limits, and cancel the body, which receives the whole reply, if a limit is exceeded.

        Raises:
            ModelTimeoutError: Instead of the cancellation.
        """
        self.begin()
        async with self.waiting():
            yield

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Cancel the body, which waits for the next token after `begin()`, if a limit is exceeded.

        Raises:
            ModelTimeoutError: Instead of the cancellation.
        """
        try:
            async with asyncio.timeout_at(self._next_limit()) as self._scope:
                yield
        except TimeoutError as error:
            if self._scope is None or not self._scope.expired():
                raise
            raise ModelTimeoutError(self._exceeded_limit()) from error
        finally:
            self._scope = None

    def restart(self) -> None:
        """Restart the time to the next token; callable from any thread."""
        self._tokens += 1
        self._move(self._next_limit)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend `token_s` within the context, while a reader processes a token."""
        self._move(lambda: self._ends_at)
        try:
            yield
        finally:
            self._move(self._next_limit)

    def _move(self, limit: Callable[[], float | None]) -> None:
        if self._loop is None:
            return

        def move() -> None:
            # An expired limit must not be moved, and a finished request has none.
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

    def _exceeded_limit(self) -> str:
        assert self._loop is not None
        if self._ends_at is not None and self._loop.time() >= self._ends_at:
            return f"the reply was not complete after {self._total_s:g} s (model_total_timeout_s)"
        if self._tokens:
            return f"no further token came for {self._token_s:g} s (model_timeout_s)"
        return f"no token came for {self._token_s:g} s (model_timeout_s)"

    async def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Do nothing; without this method LangChain would serialize the whole request for `on_llm_start`."""

    async def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        """Restart the time to the next token."""
        self.restart()

    async def on_stream_event(self, *_: Any, **__: Any) -> None:
        """Restart the time to the next token."""
        self.restart()
