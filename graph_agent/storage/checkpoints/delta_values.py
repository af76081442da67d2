"""Rebuilds the messages and events of a checkpoint from its ancestors' writes, without a compiled graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.base._compat.checkpoints import replay_delta
from graph_agent.core.state.channels import GrowingDelta, MessagesChannel
from graph_agent.core.state.events import append_events

CHANNELS: Mapping[str, DeltaChannel[Any]] = {"messages": MessagesChannel(), "events": GrowingDelta(append_events)}
"""The delta channels of an agent's state."""

At = tuple[str, str]
"""A thread and a checkpoint namespace."""


async def delta_values(
    saver: BaseCheckpointSaver[Any], at: At, checkpoint_id: str, channels: Iterable[str]
) -> dict[str, Any]:
    """Return the values at a checkpoint of delta channels in `CHANNELS` that have no stored value in it.

    Raises `DamagedSessionError` if a part of the history is missing.
    """
    names = sorted(channels)
    histories = await saver.aget_delta_channel_history(config=config_at(at, checkpoint_id), channels=names)
    return {name: replay_delta(CHANNELS[name], histories[name]) for name in names}


def config_at(at: At, checkpoint_id: str) -> RunnableConfig:
    """Return the config that addresses a checkpoint."""
    return {"configurable": {"thread_id": at[0], "checkpoint_ns": at[1], "checkpoint_id": checkpoint_id}}
