"""Holds the observer of runs, which `graph_agent.otel` sets; without one, runs only check that it is None."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Observer(Protocol):
    """Receives what runs do, in the task and at the time at which they do it."""

    def run(self, run: Any, name: str) -> AbstractContextManager[None]:
        """Return a context around one run of an agent, which may be left in another context than entered.

        The `Run`'s `observed` belongs to the observer.
        """
        ...

    def enter(self, run: Any) -> None:
        """Make a run the current one of this task."""
        ...

    def event(self, entry: Mapping[str, Any]) -> None:
        """Receive an event of the current run, as stored."""
        ...

    def plan(self, step: int) -> AbstractContextManager[None]:
        """Return a context that the requests for one plan are within."""
        ...

    def model_call(self, request: Any) -> None:
        """Receive a `TimedRequest` that has ended."""
        ...

    def begin_call(self, call: Any) -> Any:
        """Begin a call in this task; return what `leave_call` and `end_call` receive."""
        ...

    def leave_call(self, begun: Any) -> None:
        """Leave the call in the task that began it."""
        ...

    def end_call(self, begun: Any, status: str, content: Any = None) -> None:
        """End a call with its `ResultStatus`, or `interrupted`."""
        ...

    def inject(self, carrier: dict[str, Any]) -> None:
        """Add the current trace context to headers, or to the `_meta` of an MCP request."""
        ...

    def extract(self, carrier: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return a context that continues the trace that `inject` has added to a carrier."""
        ...

    def middleware(self, app: Any) -> Any:
        """Return an ASGI application that continues the trace of each request's headers."""
        ...


observer: Observer | None = None
"""The observer; None if there is none."""
