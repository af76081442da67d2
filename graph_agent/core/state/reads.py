"""Reads the state of a session while other processes prune it: what a pruning has removed meanwhile is read again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from graph_agent.base._compat.checkpoints import ClockedStateGraph
from graph_agent.core.state.lengths import CheckpointRemovedError, read_again, read_again_blocking


class ReadAgainGraph(ClockedStateGraph):
    """A compiled graph whose reads of states are repeated if a pruning interferes."""

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Behaves like LangGraph's `get_state`, while other processes prune the session."""
        return read_again_blocking(lambda: super(ReadAgainGraph, self).get_state(config, subgraphs=subgraphs))

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Behaves like `get_state`."""
        return await read_again(lambda: super(ReadAgainGraph, self).aget_state(config, subgraphs=subgraphs))

    def get_state_history(
        self,
        config: RunnableConfig,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[StateSnapshot]:
        """Behaves like LangGraph's `get_state_history`, without checkpoints that a pruning removes meanwhile."""
        while limit is None or limit > 0:
            try:
                for found in super().get_state_history(config, filter=filter, before=before, limit=limit):
                    yield found
                    before, limit = found.config, limit and limit - 1
            except CheckpointRemovedError:
                continue
            return

    async def aget_state_history(
        self,
        config: RunnableConfig,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[StateSnapshot]:
        """Behaves like `get_state_history`."""
        while limit is None or limit > 0:
            try:
                async for found in super().aget_state_history(config, filter=filter, before=before, limit=limit):
                    yield found
                    before, limit = found.config, limit and limit - 1
            except CheckpointRemovedError:
                continue
            return
