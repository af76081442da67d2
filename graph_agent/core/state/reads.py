"""Reads the state of a session while other processes prune it; a read that meets a removed checkpoint is repeated.

To prune is to remove old checkpoints of a session from the database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from graph_agent.base._compat.checkpoints import ClockedStateGraph
from graph_agent.core.state.lengths import CheckpointRemovedError, read_again, read_again_blocking


class ReadAgainGraph(ClockedStateGraph):
    """A compiled graph whose reads of states are repeated if a pruning removes a checkpoint between two queries."""

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Return a session's state in the form of LangGraph's `StateSnapshot`; empty `values` for an unknown session.

        Reads up to five times if a pruning interferes, and then raises `CheckpointRemovedError`. Raises
        `DamagedSessionError` if stored entries are missing.

        Args:
            config: Its `configurable` has `thread_id`, and `checkpoint_id` for a state other than the newest.
            subgraphs: Whether to include the states of graphs that run inside this one.
        """
        return read_again_blocking(lambda: super(ReadAgainGraph, self).get_state(config, subgraphs=subgraphs))

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Return a session's state in the form of LangGraph's `StateSnapshot`; empty `values` for an unknown session.

        Reads up to five times if a pruning interferes, and then raises `CheckpointRemovedError`. Raises
        `DamagedSessionError` if stored entries are missing. The arguments are those of `get_state`.
        """
        return await read_again(lambda: super(ReadAgainGraph, self).aget_state(config, subgraphs=subgraphs))

    def get_state_history(
        self,
        config: RunnableConfig,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[StateSnapshot]:
        """Yield the states of a session, newest first, without checkpoints that a pruning removes during the iteration.

        After such a removal, the iteration continues below the last state that was yielded.

        Args:
            config: Its `configurable` has `thread_id`.
            filter: Values that the metadata of each checkpoint must have; None for all checkpoints.
            before: Config of a checkpoint; only older ones are yielded. None for all.
            limit: Maximum number of states; None for no limit.
        """
        while limit is None or limit > 0:
            try:
                for found in super().get_state_history(config, filter=filter, before=before, limit=limit):
                    yield found
                    # The iteration can then go on below this state, and yields none of them twice.
                    before, limit = found.config, limit and limit - 1
            # LangGraph reads each checkpoint after the list of ids, so one may be gone meanwhile.
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
        """Yield the states of a session, newest first, without checkpoints that a pruning removes during the iteration.

        The arguments are those of `get_state_history`.
        """
        while limit is None or limit > 0:
            try:
                async for found in super().aget_state_history(config, filter=filter, before=before, limit=limit):
                    yield found
                    before, limit = found.config, limit and limit - 1
            except CheckpointRemovedError:
                continue
            return
