"""Python's garbage collector in a process that does nothing but serve."""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 20_000, 20, 20
"""Objects made before the youngest are looked at, and looks before the next older ones are too."""


def spare_what_is_loaded() -> None:
    """Keep the collector from walking through every module again and again, half of a busy server's time.

    What is loaded by now stays to the end, and is left out; requests leave few cycles, which may wait a little longer.
    For programs that own their process, once, when everything is imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
