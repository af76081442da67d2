"""SQLite files that several processes open at once."""

from __future__ import annotations

import time

BUSY_S = 30.0
"""Seconds to wait for another connection's write: a commit is short, but on a busy disk there may be many before it."""
_PAUSE_S = 0.02


class Patience:
    """How long to try again to make tables while another process makes them: what is wanted is there then.

    SQLite does not wait its usual time where a journal's mode is changed, so whoever does it has to.
    """

    def __init__(self) -> None:
        self._until = time.monotonic() + BUSY_S

    def pause_s(self, error: Exception) -> float:
        """Seconds to wait before the next attempt.

        Args:
            error: What the last attempt failed with.

        Raises:
            Exception: That error, when `BUSY_S` seconds are over.
        """
        if time.monotonic() > self._until:
            raise error
        return _PAUSE_S
