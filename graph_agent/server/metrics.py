"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from graph_agent.server.metric_files import count_alone, reserve_space
from graph_agent.server.shared_folder import warn_of_folder
from graph_agent.server.shared_limits import is_alive

_CALLS = {"tool_call": "name", "delegation_request": "target"}
_RESULTS = {"tool_result": "name", "delegation_response": "target"}
_OF_THE_MODEL = {"transient", "auth", "permission", "unknown_model"}
"""Kinds of errors that the next request will meet too; any caller can bring about the others for itself."""


class Metrics:
    """Runs, steps, waves, calls and tokens, in a registry of their own.

    Args:
        tools: Names that may be a label; any other is counted as `other`, as callers can make names up.
        shared: Where several processes count together; None for this one alone.
    """

    def __init__(self, tools: frozenset[str] = frozenset(), shared: Path | None = None) -> None:
        self._tools = tools
        self._shared = shared
        self.last_model_error: tuple[str, float] | None = None
        """Kind and time (seconds since 1970) of the newest model error that no success followed."""
        if shared is not None:
            reserve_space()
            try:
                _forget_the_dead(shared)
                self._make()
            except OSError as error:
                warn_of_folder(shared, error)
                self._shared = None
                count_alone()
        if self._shared is None:
            self._make()

    def _make(self) -> None:
        self._registry = CollectorRegistry()
        self._runs = Counter("graph_agent_runs", "Runs that ended.", ["status"], registry=self._registry)
        self._seconds = Histogram(
            "graph_agent_run_seconds", "Seconds from a run's beginning to its end.", ["status"], registry=self._registry
        )
        self._steps = Counter("graph_agent_steps", "Plans made.", registry=self._registry)
        self._iterations = Counter("graph_agent_iterations", "Waves of calls begun.", registry=self._registry)
        self._latency = Histogram(
            "graph_agent_tool_seconds",
            "Seconds from a call's beginning to its result.",
            ["tool", "status"],
            registry=self._registry,
        )
        self._tokens = Counter("graph_agent_tokens", "Tokens of the model.", ["kind"], registry=self._registry)
        self.under_way = Gauge(
            "graph_agent_requests_under_way",
            "Requests under way.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )

    def count(self, update: Mapping[str, Any], open_calls: MutableMapping[str, datetime]) -> None:
        """Count what one task of a run wrote: its events.

        Args:
            update: What LangGraph's `updates` stream gave.
            open_calls: The run's calls without a result: id → when it began. It is kept up to date here.
        """
        for change in update.values():
            for entry in change.get("events", []) if isinstance(change, dict) else []:
                with self._counting():
                    self._event(entry, open_calls)

    def _event(self, entry: Mapping[str, Any], open_calls: MutableMapping[str, datetime]) -> None:
        kind = entry["type"]
        if kind == "plan":
            self._steps.inc()
            self._iterations.inc(bool(entry["calls"]))
        elif kind in _CALLS:
            open_calls[entry["id"]] = datetime.fromisoformat(entry["ts"])
        elif kind in _RESULTS:
            begun = open_calls.pop(entry["id"], None)
            name = entry[_RESULTS[kind]]
            if begun is not None:
                seconds = (datetime.fromisoformat(entry["ts"]) - begun).total_seconds()
                label = name if name in self._tools else "other"
                self._latency.labels(label, entry["status"]).observe(max(0.0, seconds))
        elif kind == "error" and entry["kind"] in _OF_THE_MODEL:
            self.last_model_error = (entry["kind"], datetime.fromisoformat(entry["ts"]).timestamp())
        elif kind == "agent_response" and "error" not in entry:
            self.last_model_error = None

    def run_ended(self, status: str, seconds: float) -> None:
        """Count a run: its session's status, or why there is none, and how long it took."""
        with self._counting():
            self._runs.labels(status).inc()
            self._seconds.labels(status).observe(seconds)

    def used(self, input_tokens: int, output_tokens: int) -> None:
        """Count tokens."""
        with self._counting():
            self._tokens.labels("input").inc(input_tokens)
            self._tokens.labels("output").inc(output_tokens)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Leave out what there is no space for: a new label needs some in the folder, and no run may fail for it."""
        try:
            yield
        except OSError as error:
            warn_of_folder(self._shared, error)

    def text(self) -> bytes:
        """Everything, over all processes that count together, in Prometheus's text format."""
        if self._shared is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._shared))  # type: ignore[no-untyped-call]  # it has no types
        return generate_latest(registry)


def _forget_the_dead(shared: Path) -> None:
    for file in shared.glob("gauge_live*.db"):
        worker = file.stem.rpartition("_")[2]
        if worker.isdigit() and not is_alive(int(worker)):
            mark_process_dead(int(worker), str(shared))  # type: ignore[no-untyped-call]  # it has no types
