"""Full copies of the delta channels of agents, as LangGraph stores them in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent._compat.deltas import delta_snapshot, replay_delta
from graph_agent.events.types import append_events
from graph_agent.state.channels import MessagesChannel

CHANNELS: Mapping[str, DeltaChannel[Any]] = {
    "messages": MessagesChannel(),
    "events": DeltaChannel(append_events),
}
"""The delta channels of an agent's state."""
_MARK = "loop"
"""A channel that only an agent's state has."""

At = tuple[str, str]
"""A thread and a checkpoint namespace."""

Copies = Mapping[str, tuple[str, bytes]]
"""Channel → the type and the bytes of a serialized full copy."""


def agent_deltas(versions: Iterable[str]) -> frozenset[str]:
    """Return the delta channels of which this module can make copies, if a checkpoint is one of an agent.

    Args:
        versions: The channels that have a version in the checkpoint.
    """
    names = frozenset(versions)
    return names & CHANNELS.keys() if _MARK in names else frozenset()


async def full_copies(saver: BaseCheckpointSaver[Any], at: At, checkpoint_id: str, channels: Iterable[str]) -> Copies:
    """Return a serialized full copy of delta channels at a checkpoint, by channel.

    Args:
        saver: The saver of the checkpoint.
        at: Its thread and namespace.
        checkpoint_id: Its id.
        channels: Names in `CHANNELS`; none of them has a stored value in the checkpoint.
    """
    values = await delta_values(saver, at, checkpoint_id, channels)
    return {name: saver.serde.dumps_typed(delta_snapshot(value)) for name, value in values.items()}


async def delta_values(
    saver: BaseCheckpointSaver[Any], at: At, checkpoint_id: str, channels: Iterable[str]
) -> dict[str, Any]:
    """As `full_copies`, but not serialized."""
    config: RunnableConfig = {
        "configurable": {"thread_id": at[0], "checkpoint_ns": at[1], "checkpoint_id": checkpoint_id}
    }
    names = sorted(channels)
    histories = await saver.aget_delta_channel_history(config=config, channels=names)
    return {name: replay_delta(CHANNELS[name], histories[name]) for name in names}
