"""Pauses cyclic garbage collection while many long-lived objects are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY_OBJECTS = 20_000
"""Number of new objects above which they are moved to the oldest generation."""


@contextmanager
def paused_collection() -> Iterator[None]:
    """Run the block without cyclic garbage collection, in all threads; does nothing if the program has disabled it.

    Each collection would traverse the objects created so far, which takes longer than creating them. After a block that
    has created many objects, they are moved to the oldest generation, unless it raises. The block must not wait for
    anything.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        # The next two collections would traverse the new objects, too. This moves them to the oldest generation.
        if gc.get_count()[0] > _MANY_OBJECTS and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
    finally:
        gc.enable()
