"""Draining of a run: it stops at its next boundary, unless only its answer is left to give."""

from __future__ import annotations

from langgraph.runtime import RunControl

from graph_agent.runs.run import Run


class AnsweringControl(RunControl):
    """A caller's control of a run, which lets the run end if its calls are done and `finalize` is next.

    Otherwise a run whose answer has been streamed would be stopped before the answer is stored.

    Args:
        control: The caller's control.
        run: The run.
    """

    __slots__ = ("_control", "_run")

    def __init__(self, control: RunControl, run: Run) -> None:
        super().__init__()
        self._control = control
        self._run = run

    def request_drain(self, reason: str = "shutdown") -> None:
        """Request the drain of the caller's control."""
        self._control.request_drain(reason)

    @property
    def drain_requested(self) -> bool:
        """Whether the run stops before its next task."""
        return self._control.drain_requested and not self._run.answering

    @property
    def drain_reason(self) -> str | None:
        """The reason of the caller's request; None without one."""
        return self._control.drain_reason
