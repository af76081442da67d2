"""The run of one input: its precondition and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from graph_agent.runs.input_marks import InputMark
from graph_agent.runs.run import RUN, Run, RunScope
from graph_agent.session.run_result import RunResult


class InputRun:
    """The run of one input, which reads its result before the session's lock is released.

    If the lock was lost, another run may have continued the session, so the result is read from a checkpoint of the
    input's own run.

    Args:
        read: Reads the result of a run; for None, the session's newest result.
        before: Checks, once the session is locked, that the run may begin; None for no check.
        mark: The input's id; None for an input without an id.
    """

    def __init__(
        self,
        read: Callable[[Run | None], Awaitable[RunResult]],
        before: Callable[[], Awaitable[None]] | None = None,
        mark: InputMark | None = None,
    ) -> None:
        self._read = read
        self._before = before
        self._mark = mark
        self._result: RunResult | None = None
        self.aborted = False
        """Whether the run was aborted, also if its answer was complete before."""

    @contextmanager
    def opened(self, configurable: Mapping[str, Any]) -> Iterator[RunnableConfig]:
        """Yield the run's config; meanwhile an abort of the surrounding run also aborts this one.

        Args:
            configurable: The `configurable` of the run.
        """
        surrounding = configurable.get(RUN) or ensure_config().get("configurable", {}).get(RUN)
        scope = RunScope(parent=surrounding, before=self._before, after=self._set_result, mark=self._mark)
        with scope.attached():
            yield {"configurable": {**configurable, RUN: scope}}

    async def result(self) -> RunResult:
        """Return the result of the input. A graph of another package does not report its end: it is read now."""
        return self._result or await self._read(None)

    def set_stored(self, result: RunResult) -> None:
        """Set the result of an input that was run before."""
        self._result = result

    async def _set_result(self, run: Run) -> None:
        self._result, self.aborted = await self._read(run), run.aborted
