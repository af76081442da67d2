"""Runs that a server for `langgraph.json` dispatches, and may deliver to a second process.

A server that leases its runs delivers a run again after its lease has expired: because the first process was killed, is
paused, or cannot renew the lease. In the last two cases, the first process may still hold the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from graph_agent.errors import SessionLostError

DISPATCH_S = 30.0
"""Seconds that a dispatched run waits for its session, and after the loss of it for its cancellation."""
RECENT_RUNS = "graph_agent_runs"
"""Key in checkpoint metadata: ids of the runs that a server dispatched to the session before this one, oldest first."""
MOST_RECENT = 8
"""Maximum number of these ids. A server delivers a run again within minutes, so few runs come in between."""
_POLL_S = 0.25


def is_dispatched(configurable: Mapping[str, Any]) -> bool:
    """Whether a server has dispatched a run: it sets the run's id.

    Args:
        configurable: The run's `configurable`.
    """
    return bool(configurable.get("run_id"))


def runs_until(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the latest dispatched runs of a session, with that of its newest checkpoint as the last.

    Args:
        metadata: The metadata of that checkpoint.
    """
    recent, newest = tuple(metadata.get(RECENT_RUNS, ())), metadata.get("run_id")
    return (*(each for each in recent if each != newest), *([newest] if newest else []))[-MOST_RECENT:]


async def take_when_free(take: Callable[[], Awaitable[bool]]) -> bool:
    """Acquire a session that another delivery of the run, or another run, holds; False after `DISPATCH_S` seconds.

    Args:
        take: Attempts to acquire it.
    """
    clock = asyncio.get_running_loop()
    until = clock.time() + DISPATCH_S
    while clock.time() < until:
        await asyncio.sleep(_POLL_S)
        if await take():
            return True
    return False


@asynccontextmanager
async def until_cancelled() -> AsyncIterator[None]:
    """Delay the loss of a dispatched run's session until the server cancels the run, for up to `DISPATCH_S` seconds.

    The server cancels a run whose lease another process has. An error would become the run's state in the server's
    records, although the other process continues the run.
    """
    try:
        yield
    except SessionLostError:
        await asyncio.sleep(DISPATCH_S)
        raise
