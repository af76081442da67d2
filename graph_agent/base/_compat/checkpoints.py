"""Imports LangGraph's private names behind checkpoint ids, and behind the full copies of delta channels.

Like those of `_compat`, each has a test that fails when it moves: `tests/base/test_compat.py`.
"""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import ormsgpack
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import Checkpoint, DeltaChannelHistory
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._checkpoint import _replay
from langgraph.types import Send

_REPLAY_STATE = "__pregel_replay_state"
_COPY_DUE = "is_copy_due"
"""Method of a delta channel that decides when to write a full copy, by updates and supersteps since the last."""
_DECIDES = "delta_channels_to_snapshot"
"""Name of LangGraph's function that returns the delta channels whose full copies are due."""
_pregel_modules: list[Any] = [import_module(f"langgraph.pregel.{name}") for name in ("_checkpoint", "_loop")]


def loads_older_checkpoint(configurable: Mapping[str, Any]) -> bool:
    """Whether a run names the checkpoint from which it starts, so that it may start from an older one than the
    newest."""
    return bool(
        configurable.get("checkpoint_id")
        or configurable.get(_REPLAY_STATE)
        or configurable.get("checkpoint_ns", "") in configurable.get("checkpoint_map", {})
    )


_ids = import_module("langgraph.checkpoint.base.id")
_TICKS_AT_EPOCH = 0x01B21DD213814000
"""100 ns intervals between the UUID epoch and the Unix epoch."""


class _IdClock:
    """A wall clock for the times in LangGraph's checkpoint ids that never returns less than a floor.

    LangGraph's own floor, `_last_v6_timestamp`, cannot be raised safely, because `uuid6` reads and writes it without a
    lock.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._floor_ns = 0

    def time_ns(self) -> int:
        return max(time.time_ns(), self._floor_ns)

    def raise_to(self, floor_ns: int) -> None:
        with self._guard:
            self._floor_ns = max(self._floor_ns, floor_ns)


_id_clock = _IdClock()


def raise_checkpoint_id_floor(checkpoint_id: str) -> None:
    """Make all checkpoint ids generated later in this process greater than the given one.

    The newest checkpoint of a thread is the one with the greatest id, and ids contain the wall clock's time. A process
    whose clock is slow would otherwise store checkpoints below those of another process. A text that is not a UUID of
    version 6, and an id with the greatest possible time, are ignored.
    """
    try:
        version, digits = uuid.UUID(checkpoint_id).version, checkpoint_id.replace("-", "")
    except ValueError:
        return
    # The 13th digit is the version, and not a part of the time.
    ticks = int(digits[:12] + digits[13:16], 16) + 1
    if version != 6 or ticks >= 1 << 60:
        return
    _ids.time = _id_clock  # type: ignore[attr-defined]  # the module reads the clock by this name
    _id_clock.raise_to((ticks - _TICKS_AT_EPOCH) * 100)


class ClockedStateGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled graph whose new checkpoint ids are greater than any that it has loaded, with every saver."""

    def _migrate_checkpoint(self, checkpoint: Checkpoint) -> None:
        # LangGraph calls this with each checkpoint that a run, `update_state` or `get_state` starts from.
        super()._migrate_checkpoint(checkpoint)
        raise_checkpoint_id_floor(checkpoint["id"])


def let_channels_decide_on_copies(add_length: Callable[[dict[str, tuple[int, int]], str, list[Any]], None]) -> None:
    """Patch LangGraph, once per process, so that delta channels with a method `is_copy_due` decide when to write a full
    copy. A delta channel stores its changes, and sometimes a full copy. All other channels still write one after a
    fixed number of updates or supersteps.

    Args:
        add_length: Adds the length of a deciding channel to LangGraph's counters, which the checkpoint's metadata
            keeps; receives the counters, the channel's name and its list. Called for each deciding channel that has a
            version, a counter and a value.
    """
    before = getattr(_pregel_modules[0], _DECIDES)
    if hasattr(before, "__wrapped__"):
        return

    @functools.wraps(before)
    def to_snapshot(
        channels: Mapping[str, Any], counters: dict[str, tuple[int, int]], versions: Mapping[str, Any]
    ) -> set[str]:
        deciding = {name: channel for name, channel in channels.items() if hasattr(channel, _COPY_DUE)}
        others = {name: channel for name, channel in channels.items() if name not in deciding}
        due: set[str] = before(others, counters, versions)
        written = [name for name in deciding if name in counters and name in versions]
        for name in written:
            if channels[name].is_available():
                add_length(counters, name, channels[name].get())
        return due | {name for name in written if channels[name].is_copy_due(*counters[name])}

    for module in _pregel_modules:
        setattr(module, _DECIDES, to_snapshot)


def replay_delta(channel: DeltaChannel[Any], history: DeltaChannelHistory) -> Any:
    """Return the value of a delta channel, rebuilt from its last full copy and the later writes, as LangGraph does."""
    return _replay(channel, history).get()


def delta_snapshot(value: Any) -> Any:
    """Wrap a value in the class in which LangGraph stores the full copy of a delta channel."""
    return _DeltaSnapshot(value)


def copied_list(stored: Any) -> list[Any] | None:
    """Return the list in a stored full copy of a delta channel; None for any other stored value."""
    return stored.value if isinstance(stored, _DeltaSnapshot) and isinstance(stored.value, list) else None


def packed(value: Any) -> bytes:
    """Return a value serialized by LangGraph's msgpack encoder.

    Encodes `Send`, of which a turn stores two, directly; LangGraph would compare it with 20 other types first.

    Raises:
        ormsgpack.MsgpackEncodeError: An object in the value cannot be encoded.
    """
    return ormsgpack.packb(value, default=_packed_object, option=jsonplus._option)


def _packed_object(value: Any) -> Any:
    if type(value) is not Send or value.timeout is not None:
        return jsonplus._msgpack_default(value)
    parts = (Send.__module__, Send.__name__, (value.node, value.arg))
    return ormsgpack.Ext(jsonplus.EXT_CONSTRUCTOR_POS_ARGS, packed(parts))
