"""How much one caller may ask for at the same time, and in a minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graph_agent.server.problems import ProblemError

WINDOW_S = 60.0
"""Seconds in which the requests of one minute are counted."""


class Limits:
    """The requests under way and the requests of the last minute, by caller, in this process.

    Args:
        concurrent: Requests of one caller at the same time.
        per_minute: Requests of one caller in any minute; None for no limit.
        clock: Seconds that only grow.
    """

    def __init__(
        self, concurrent: int, per_minute: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._concurrent = concurrent
        self._per_minute = per_minute
        self._clock = clock
        self._under_way: dict[str, int] = {}
        self._begun: dict[str, deque[float]] = {}

    def enter(self, caller: str) -> None:
        """Begin a request; every one that is begun is ended with `leave`.

        Raises:
            ProblemError: When the caller has too many under way, or has begun too many.
        """
        self._check_concurrent(self._under_way.get(caller, 0))
        self._begin(caller)
        self._under_way[caller] = self._under_way.get(caller, 0) + 1

    def count(self, caller: str) -> None:
        """Count an input that is begun later, such as a follow-up, against the rate alone.

        Raises:
            ProblemError: When the caller has begun too many.
        """
        self._begin(caller)

    def leave(self, caller: str) -> None:
        """End a request."""
        self._under_way[caller] -= 1
        if not self._under_way[caller]:
            del self._under_way[caller]

    def _begin(self, caller: str) -> None:
        if self._per_minute is None:
            return
        begun = self._begun.setdefault(caller, deque())
        now = self._clock()
        while begun and begun[0] <= now - WINDOW_S:
            begun.popleft()
        self._check_rate(len(begun), begun[0] if begun else None, now)
        begun.append(now)

    @contextmanager
    def held(self, caller: str) -> Iterator[None]:
        """One request, from beginning to end.

        Raises:
            ProblemError: As for `enter`.
        """
        self.enter(caller)
        try:
            yield
        finally:
            self.leave(caller)

    def _check_concurrent(self, under_way: int) -> None:
        if under_way >= self._concurrent:
            raise ProblemError(
                "busy", f"Too many requests at the same time; this key may have {self._concurrent}.", retry_after_s=1
            )

    def _check_rate(self, begun: int, oldest: float | None, now: float) -> None:
        if self._per_minute is not None and oldest is not None and begun >= self._per_minute:
            raise ProblemError(
                "busy",
                f"Too many requests; this key may send {self._per_minute} a minute.",
                retry_after_s=oldest + WINDOW_S - now,
            )
