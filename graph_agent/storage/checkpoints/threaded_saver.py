"""Adapts a saver to event loops that its asynchronous methods do not serve: its blocking ones are called in a thread.

LangGraph's blocking savers have no asynchronous methods, and its asynchronous ones belong to the event loop in which
they were made. Both kinds serve blocking calls from any other thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.base import CheckpointTuple as Found

from graph_agent.base._internal.sync_bridge import call_in_thread, running_loop


async def saver_for_this_loop(saver: BaseCheckpointSaver[Any], session_id: str) -> BaseCheckpointSaver[Any]:
    """Return a saver that runs of the running event loop can use: the given one, or a `ThreadedSaver` of it.

    Args:
        session_id: Any session, whose newest checkpoint is read from a saver of an unknown kind.
    """
    loop = getattr(saver, "loop", None)
    if isinstance(loop, asyncio.AbstractEventLoop):
        return ThreadedSaver(saver) if loop.is_running() and loop is not running_loop() else saver
    try:
        # A saver may also define the methods only to raise this.
        await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
    except NotImplementedError:
        return ThreadedSaver(saver)
    return saver


class ThreadedSaver(BaseCheckpointSaver[Any]):
    """A saver whose asynchronous methods call the blocking ones of another saver in a thread.

    Attributes of that saver, such as its connection, are also its own.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self.wrapped_saver = saver
        """The other saver."""

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped_saver":
            raise AttributeError(name)
        return getattr(self.wrapped_saver, name)

    @property
    def config_specs(self) -> list[Any]:
        """As those of the other saver."""
        return list(self.wrapped_saver.config_specs)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """As the other saver."""
        return self.wrapped_saver.get_next_version(current, channel)

    def get_tuple(self, config: RunnableConfig) -> Found | None:
        """As the other saver."""
        return self.wrapped_saver.get_tuple(config)

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[Found]:
        """As the other saver."""
        return self.wrapped_saver.list(config, **options)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As the other saver."""
        return self.wrapped_saver.put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As the other saver."""
        self.wrapped_saver.put_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        """As the other saver."""
        self.wrapped_saver.delete_thread(thread_id)

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        """As the other saver."""
        return self.wrapped_saver.get_delta_channel_history(config=config, channels=channels)

    async def aget_tuple(self, config: RunnableConfig) -> Found | None:
        """Behaves like `get_tuple`."""
        return await call_in_thread(self.wrapped_saver.get_tuple, config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[Found]:
        """Behaves like `list`."""
        found = iter(self.wrapped_saver.list(config, **options))
        while (each := await call_in_thread(lambda: next(found, None))) is not None:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Behaves like `put`."""
        return await call_in_thread(self.wrapped_saver.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Behaves like `put_writes`."""
        await call_in_thread(self.wrapped_saver.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Behaves like `delete_thread`."""
        await call_in_thread(self.wrapped_saver.delete_thread, thread_id)

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        """Behaves like `get_delta_channel_history`."""
        read = partial(self.wrapped_saver.get_delta_channel_history, config=config, channels=channels)
        return await call_in_thread(read)
