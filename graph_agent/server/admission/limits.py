"""Limits of a caller's concurrent requests and of its requests per minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graph_agent.server.errors.problems import ProblemError

WINDOW_S = 60.0
"""Length in seconds of the sliding window for the limit per minute."""


class Limits:
    """Active requests and requests of the last minute, per caller, in this process.

    Args:
        concurrent: Maximum concurrent requests of one caller.
        per_minute: Maximum requests of one caller in any 60 seconds; None for no limit.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, concurrent: int, per_minute: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._concurrent = concurrent
        self._per_minute = per_minute
        self._clock = clock
        self._active: dict[str, int] = {}
        self._started: dict[str, deque[float]] = {}

    def enter(self, caller: str) -> None:
        """Count the start of a request, which must be ended with `leave`.

        Raises:
            ProblemError: If the caller has too many active requests, or has started too many.
        """
        self._check_concurrent(self._active.get(caller, 0))
        self._count_start(caller)
        self._active[caller] = self._active.get(caller, 0) + 1

    def count(self, caller: str) -> None:
        """Count an input that runs later, such as a follow-up, against the rate only.

        Raises:
            ProblemError: If the caller has started too many requests.
        """
        self._count_start(caller)

    def leave(self, caller: str) -> None:
        """Count the end of a request."""
        self._active[caller] -= 1
        if not self._active[caller]:
            del self._active[caller]

    def _count_start(self, caller: str) -> None:
        if self._per_minute is None:
            return
        started = self._started.setdefault(caller, deque())
        now = self._clock()
        while started and started[0] <= now - WINDOW_S:
            started.popleft()
        self._check_rate(len(started), started[0] if started else None, now)
        started.append(now)

    @contextmanager
    def slot(self, caller: str) -> Iterator[None]:
        """Count one request for the duration of the context.

        Raises:
            ProblemError: As for `enter`.
        """
        self.enter(caller)
        try:
            yield
        finally:
            self.leave(caller)

    def _check_concurrent(self, active: int) -> None:
        if active >= self._concurrent:
            raise ProblemError(
                "busy", f"Too many requests at the same time; this key may have {self._concurrent}.", retry_after_s=1
            )

    def _check_rate(self, started: int, oldest: float | None, now: float) -> None:
        if self._per_minute is not None and oldest is not None and started >= self._per_minute:
            raise ProblemError(
                "busy",
                f"Too many requests; this key may send {self._per_minute} a minute.",
                retry_after_s=oldest + WINDOW_S - now,
            )
