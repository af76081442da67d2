"""Holds the observer of runs, which `graph_agent.otel` sets; without one, runs only test for None."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Observer(Protocol):
    """Receives what runs do, at the time and in the task in which they do it."""

    def run(self, run: Any, name: str) -> AbstractContextManager[None]:
        """Return a context manager around one run of an agent; it may be exited in another context than entered.

        The attribute `observed` of the `Run` is reserved for the observer.
        """
        ...

    def enter(self, run: Any) -> None:
        """Make a run the current one of this task."""
        ...

    def event(self, entry: Mapping[str, Any]) -> None:
        """Receive an event of the current run, in the form in which it is stored."""
        ...

    def feedback(self, entry: Mapping[str, Any], session_id: str, agent: str) -> None:
        """Receive the `feedback` event of an answer, which may come without a run, with the names of session and
        agent.
        """
        ...

    def plan(self, step: int) -> AbstractContextManager[None]:
        """Return a context manager around the model requests for one plan; `step` is the plan's number."""
        ...

    def model_call(self, request: Any) -> None:
        """Receive a `TimedRequest` that has ended."""
        ...

    def speculation(self, source: str, outcome: str, seconds: float, cost: float) -> None:
        """Receive the outcome of a call or request that began before a plan asked for it: `used` or `dropped`.

        Args:
            source: A `SpeculationSource`.
            outcome: What became of it.
            seconds: Seconds that it has run.
            cost: Its cost; 0.0 if it is unknown.
        """
        ...

    def begin_call(self, call: Any) -> Any:
        """Begin a tool call or delegation in this task; return an object for `leave_call` and `end_call`."""
        ...

    def leave_call(self, begun: Any) -> None:
        """Leave the call in the task that began it; it may still be running elsewhere."""
        ...

    def end_call(self, begun: Any, status: str, content: Any = None) -> None:
        """End a call with its `ResultStatus`, or `interrupted`; `content` is its output, None without one."""
        ...

    def inject(self, carrier: dict[str, Any]) -> None:
        """Add the current trace context to headers or to the `_meta` of an MCP request, in place."""
        ...

    def extract(self, carrier: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return a context manager in which the trace that `inject` added to a carrier is continued."""
        ...

    def middleware(self, app: Any) -> Any:
        """Wrap an ASGI application to continue the trace in the headers of each request."""
        ...


observer: Observer | None = None
"""The observer of all runs in this process; None if there is none."""
