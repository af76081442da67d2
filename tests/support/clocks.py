"""Wall clocks that differ between processes, simulated in one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from graph_agent.base._compat import checkpoints

_time, _time_ns = time.time, time.time_ns


@contextmanager
def process_with_clock(offset_s: float) -> Iterator[None]:
    """Simulate another process for checkpoint ids: its own clock, and no earlier ids.

    Args:
        offset_s: Seconds that its wall clock is ahead; negative where it is behind.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: _time() + offset_s)
        patch.setattr(time, "time_ns", lambda: _time_ns() + int(offset_s * 1e9))
        patch.setattr(checkpoints._ids, "_last_v6_timestamp", None)
        patch.setattr(checkpoints._id_clock, "_floor_ns", 0)
        yield
