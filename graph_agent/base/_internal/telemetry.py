"""Holds the observer of runs, which `graph_agent.otel` sets; without one, runs only test for None."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Protocol


class Observer(Protocol):
    """Receives what agent runs do, at the time and in the task in which they do it, e.g. to record traces."""

    def run(self, run: Any, name: str) -> AbstractContextManager[None]:
        """Return a context manager around one run of an agent, which may be exited in another context than entered.

        Args:
            run: The `Run`, whose attribute `observed` is reserved for the observer.
            name: The name of the agent.
        """
        ...

    def enter(self, run: Any) -> None:
        """Make a run the current one of this task."""

    def event(self, entry: Mapping[str, Any]) -> None:
        """Receive an event of the current run as a dict, in the form in which it is stored."""

    def feedback(self, entry: Mapping[str, Any], session_id: str, agent: str) -> None:
        """Receive the `feedback` event of an answer, which may come when no run is active.

        `session_id` and `agent` name the session of the answer and its agent.
        """

    def plan(self, step: int) -> AbstractContextManager[None]:
        """Return a context manager around the model requests for one plan; `step` is the plan's number."""
        ...

    def model_call(self, request: Any) -> None:
        """Receive a `TimedRequest` that has ended."""

    def speculation(self, source: str, outcome: str, seconds: float, cost: float) -> None:
        """Receive the outcome of a call or request that began before a plan asked for it: `used` or `dropped`.

        Args:
            source: A `SpeculationSource`.
            outcome: What became of it.
            seconds: Seconds that it has run.
            cost: Its cost; 0.0 if it is unknown.
        """

    def begin_call(self, call: Any) -> Any:
        """Begin a tool call or delegation in this task; return an object to give to `leave_call` and `end_call`."""
        ...

    def leave_call(self, begun: Any) -> None:
        """Leave the call in the task that began it; it may still be running elsewhere."""

    def end_call(self, begun: Any, status: str, content: Any = None) -> None:
        """End a call, in any task.

        Args:
            begun: The object that `begin_call` returned.
            status: The call's `ResultStatus`, or `interrupted`.
            content: The call's output; None if it has none.
        """

    def inject(self, carrier: dict[str, Any]) -> None:
        """Add the current trace context to headers or to the `_meta` of an MCP request, in place."""

    def extract(self, carrier: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return a context manager in which the trace that `inject` wrote into a carrier is the current one."""
        ...

    def middleware(self, app: Any) -> Any:
        """Wrap an ASGI application to continue the trace in the headers of each request."""
        ...


observer: Observer | None = None
"""The observer of all runs in this process; None if there is none."""


@asynccontextmanager
async def observed(run: Any, name: str) -> AsyncIterator[None]:
    """Report a run to the observer of this process during an `async with` block; without an observer, do nothing.

    Args:
        run: The `Run`.
        name: Name of the agent, for the run's span.
    """
    if observer is None:
        yield
        return
    with observer.run(run, name):
        yield
