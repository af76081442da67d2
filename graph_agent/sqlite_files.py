"""SQLite files that several processes open at once."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable

BUSY_S = 30.0
"""Seconds to wait for another connection's write: a commit is short, but on a busy disk there may be many before it."""
_PAUSE_S = 0.02


async def until_free(make_tables: Callable[[], Awaitable[None]]) -> None:
    """Make tables, also while another process makes them: what this one wanted to add is there then.

    SQLite does not wait its usual time where a journal's mode is changed, so this does.

    Args:
        make_tables: Makes those that are not there; called again for `BUSY_S` seconds at most.

    Raises:
        sqlite3.Error: When they cannot be made.
    """
    until = time.monotonic() + BUSY_S
    while True:
        try:
            return await make_tables()
        except (sqlite3.OperationalError, sqlite3.IntegrityError):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(_PAUSE_S)
