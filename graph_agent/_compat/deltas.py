"""Imports LangGraph's private names for delta channels: their full copies, and when these are written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.pregel._checkpoint import _replay

_COPY_DUE = "is_copy_due"
"""Method of a delta channel that decides itself, by the numbers of updates and supersteps since its last full copy."""
_DECIDES = "delta_channels_to_snapshot"
_modules: list[Any] = [import_module(f"langgraph.pregel.{name}") for name in ("_checkpoint", "_loop")]


def let_channels_decide_on_copies(add_length: Callable[[dict[str, tuple[int, int]], str, int], None]) -> None:
    """Make LangGraph ask the delta channels that have `is_copy_due` when to write a full copy of them.

    LangGraph writes one after a fixed number of updates or of supersteps; it does so for all other channels. The
    lengths of the deciding channels are added to its counters, which it stores in the checkpoint's metadata.

    Args:
        add_length: Adds the length of a channel to the counters.
    """
    before = getattr(_modules[0], _DECIDES)
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
                add_length(counters, name, len(channels[name].get()))
        return due | {name for name in written if channels[name].is_copy_due(*counters[name])}

    for module in _modules:
        setattr(module, _DECIDES, to_snapshot)


def replay_delta(channel: DeltaChannel[Any], history: DeltaChannelHistory) -> Any:
    """Return the value of a delta channel from its stored history, as LangGraph rebuilds it.

    Args:
        channel: A channel of its kind; it does not change.
        history: Its last full copy and the writes after it.
    """
    return _replay(channel, history).get()


def delta_snapshot(value: Any) -> Any:
    """Return a full copy of a delta channel, as LangGraph stores it among a checkpoint's values."""
    return _DeltaSnapshot(value)
