"""Decides whether an input with an id is run, resumed, or has its result already."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import StateSnapshot

from graph_agent._internal.sync_bridge import in_blocking_run
from graph_agent.errors import InputSupersededError
from graph_agent.execution.checkpoints import load
from graph_agent.runs.input_marks import INPUT_ID, InputMark, mark_in

ReadState = Callable[[RunnableConfig], Awaitable[StateSnapshot]]
"""Reads the state of a checkpoint; `aget_state` of a compiled graph."""


class InputStoredError(Exception):
    """An input is not run, because it has its result: an answer, or a question that is still open.

    Args:
        state: The state that holds the result.
    """

    def __init__(self, state: StateSnapshot) -> None:
        super().__init__("The input has its result already.")
        self.state = state


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits an input of one session with an id; call it while the session is locked.

    Args:
        saver: The session's saver.
        read: Reads the session's state.
        thread_id: The session.
    """

    saver: BaseCheckpointSaver[Any]
    read: ReadState
    thread_id: str

    async def admit(self, given: Any, mark: InputMark) -> Any:
        """Return the graph's input: `given` for a new input, None to resume one that has no result yet.

        Raises:
            InputStoredError: If the input has its result.
            InputConflictError: If the id belongs to a different input of the session.
            InputSupersededError: If a later input came before this one had its result.
        """
        newest = await load(self.saver, self._thread)
        if newest is None:
            return given
        known = newest if _has_id(newest, mark.id) else await self._find(mark.id)
        if known is None:
            return given
        mark.names(mark_in(known.metadata), self.thread_id)
        state = await self.read(known.config)
        if not state.tasks:
            raise InputStoredError(state)
        if known is not newest:
            raise InputSupersededError(
                f"The input {mark.id!r} of session {self.thread_id!r} has no answer: a later input came before it was "
                "finished, and its open calls were settled then. Read the session's events, and send what is still "
                "needed under a new id."
            )
        if any(task.interrupts and task.result is None for task in state.tasks):
            raise InputStoredError(state)
        return None

    async def inherited(self, configurable: dict[str, Any]) -> InputMark | None:
        """Return the mark of the input that a run without new input continues; None for an input without an id.

        Args:
            configurable: The run's `configurable`; a `checkpoint_id` in it names the checkpoint to continue.
        """
        at = {name: configurable[name] for name in ("checkpoint_id",) if configurable.get(name)}
        continued = await load(self.saver, {"configurable": {**self._thread["configurable"], **at}})
        return mark_in(continued.metadata) if continued is not None else None

    @property
    def _thread(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": ""}}

    async def _find(self, input_id: str) -> CheckpointTuple | None:
        """Return the newest checkpoint of an input; the savers of `open_saver` have an index for it."""
        wanted = {INPUT_ID: input_id}
        if not in_blocking_run.get():
            try:
                return await anext(self.saver.alist(self._thread, filter=wanted, limit=1), None)
            except NotImplementedError:
                pass  # a saver without asynchronous methods
        return next(iter(self.saver.list(self._thread, filter=wanted, limit=1)), None)


def _has_id(checkpoint: CheckpointTuple, input_id: str) -> bool:
    mark = mark_in(checkpoint.metadata)
    return mark is not None and mark.id == input_id
