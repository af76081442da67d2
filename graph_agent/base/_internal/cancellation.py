"""Distinguishes a cancellation of a run from older ones of the task that the run is in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

_older: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()


@contextmanager
def ignoring_older_cancellations(task: asyncio.Task[Any]) -> Iterator[None]:
    """Let `is_cancelled` ignore the cancellations of a task before this block, until the block ends.

    asyncio counts a cancellation for the rest of a task's life, also one that the task has caught and survived.
    """
    before, _older[task] = _older.get(task, 0), task.cancelling()
    try:
        yield
    finally:
        _older[task] = before


def is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    """Whether a task was cancelled, and within a run, since the run began; False for None."""
    return task is not None and task.cancelling() > _older.get(task, 0)
