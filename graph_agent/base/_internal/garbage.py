"""Pauses cyclic garbage collection while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY_OBJECTS = 20_000
"""New objects from which they are moved to the oldest generation."""


@contextmanager
def paused_collection() -> Iterator[None]:
    """Run the block without cyclic garbage collection, unless the program has disabled it already.

    Each collection would traverse the objects made so far, which takes longer than to make them. The block must not
    wait: all threads are affected.
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
