"""The run of one input, from outside the graph: what must hold when it begins, and the result it ends with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from graph_agent.results import RunResult
from graph_agent.runs import RUN, Around, Run


class InputRun:
    """One input's run.

    Its result is read while no other run of the session can begin. Where the session's lock was lost, another run may
    have continued the session all the same, so the result is read from a checkpoint of the input's own run.

    Args:
        read: Reads the result of a run; without one, the session's newest result.
        before: Checks, when the run has its session, that it may begin; None for no check.
    """

    def __init__(
        self, read: Callable[[Run | None], Awaitable[RunResult]], before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._read = read
        self._before = before
        self._result: RunResult | None = None
        self.aborted = False
        """Whether the run was stopped, also where its answer was complete before."""

    @contextmanager
    def begun(self, configurable: Mapping[str, Any]) -> Iterator[RunnableConfig]:
        """The run's config; an abort of the run that surrounds this code reaches it while within.

        Args:
            configurable: The `configurable` of the run.
        """
        surrounding = configurable.get(RUN) or ensure_config().get("configurable", {}).get(RUN)
        around = Around(parent=surrounding, before=self._before, after=self._ended)
        with around.under():
            yield {"configurable": {**configurable, RUN: around}}

    async def result(self) -> RunResult:
        """What the input came to. A graph that is not an agent's own does not report its end: it is read now."""
        return self._result or await self._read(None)

    async def _ended(self, run: Run) -> None:
        self._result, self.aborted = await self._read(run), run.aborted
