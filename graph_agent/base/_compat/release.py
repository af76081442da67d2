"""Reaches the private names by which a process releases LangGraph's stores and caches."""

from __future__ import annotations

import asyncio
from typing import Any


async def stop_batching(store: Any) -> None:
    """Stop the background task of one of LangGraph's asynchronous stores, and wait until it has ended.

    Does nothing if it has not been started. The stores have no public method for it.
    """
    if store._task is not None:
        store._task.cancel()
        await asyncio.wait([store._task])


def close_sqlite_cache(cache: Any) -> None:
    """Close the connection of LangGraph's `SqliteCache`, which has no method for it."""
    cache._conn.close()
