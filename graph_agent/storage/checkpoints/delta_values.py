"""Rebuilds the messages and events of a checkpoint without a compiled graph.

Both are stored in delta channels: LangGraph stores only what each step wrote to such a channel, and the value is
rebuilt from the writes of the checkpoint's ancestors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.base._compat.checkpoints import replay_delta
from graph_agent.base.history.events import append_events
from graph_agent.core.state.channels import GrowingDelta, MessagesChannel
from graph_agent.storage.checkpoints.fenced_writes import At

CHANNELS: Mapping[str, DeltaChannel[Any]] = {"messages": MessagesChannel(), "events": GrowingDelta(append_events)}
"""Name → delta channel of an agent's state, as an agent's graph defines it."""


async def delta_values(
    saver: BaseCheckpointSaver[Any], at: At, checkpoint_id: str, channels: Iterable[str]
) -> dict[str, Any]:
    """Rebuild delta channels of one checkpoint, and return channel name → value, which is a list of messages or of
    events.

    Args:
        saver: The saver that stores the checkpoint; it is only read.
        at: The thread and namespace of the checkpoint.
        checkpoint_id: The id of the checkpoint. The writes of its ancestors are applied, not its own pending writes.
        channels: Names of keys in `CHANNELS` without a value of their own in the checkpoint; another name is a
            `KeyError`.

    Raises:
        DamagedSessionError: If a part of the history is missing, or the checkpoint was removed.
    """
    names = sorted(channels)
    histories = await saver.aget_delta_channel_history(config=config_at(at, checkpoint_id), channels=names)
    return {name: replay_delta(CHANNELS[name], histories[name]) for name in names}


def config_at(at: At, checkpoint_id: str) -> RunnableConfig:
    """Return the config that addresses a checkpoint: `{"configurable": {"thread_id": …, "checkpoint_ns": …,
    "checkpoint_id": …}}`.
    """
    return {"configurable": {"thread_id": at[0], "checkpoint_ns": at[1], "checkpoint_id": checkpoint_id}}
