"""Implements the command line: commands, control of sessions, and handling of Ctrl-C."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop until it ends, and return its result.

    Exceptions of the coroutine are raised here.
    """
    # Imported here: a fifth of the time of `--help`.
    import asyncio

    return asyncio.run(work)
