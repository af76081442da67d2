"""Defines Prometheus metrics, and reserves disk space for their files.

With several worker processes, prometheus_client keeps values in memory-mapped files of a folder that they share. A
write to a mapped page without disk space would kill the process (SIGBUS), so the space is reserved first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from graph_agent.interfaces.server.admission.worker_folder import is_alive, warn_of_folder

_FIRST_BYTES = 1 << 16
"""Size of a new file in bytes."""
_OVERHEAD_BYTES = 64
"""Upper bound of the bytes that a value takes in addition to its key."""

_CALLS = {"tool_call": "name", "delegation_request": "target"}
"""Type of an event that starts a call → field with the name of the tool or delegate."""
_RESULTS = {"tool_result": "name", "delegation_response": "target"}
"""Type of an event that ends a call → field with the name of the tool or delegate."""
_MODEL_ERRORS = {"transient", "auth", "permission", "unknown_model"}
"""Kinds of errors that affect every caller; the other kinds can be caused by a single request."""


class ReservedFile(MmapedDict):
    """A file of metric values of prometheus_client, whose pages are allocated on disk before they are mapped into
    memory.

    Creating it, and adding a value, raise `OSError` if the disk is full.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        if not read_mode:
            _reserve(filename, _FIRST_BYTES)
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]  # prometheus_client is untyped

    def _init_value(self, key: str) -> None:
        """Add a value with the key `key`, after doubling the file if the value might not fit. prometheus_client calls
        it.

        Raises `OSError` if the disk is full.
        """
        own: Any = self
        if own._used + len(key.encode()) + _OVERHEAD_BYTES > own._capacity:
            _reserve(own._fname, 2 * own._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]  # prometheus_client is untyped


def _reserve(filename: str, size: int) -> None:
    """Create or extend a file so that it has `size` bytes, all of them allocated on disk.

    A larger file stays as it is.

    On failure, the old size is restored, a file that was new or empty deleted, and `OSError` raised.
    """
    file = os.open(filename, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        before = os.fstat(file).st_size
        try:
            missing = size - before
            while missing > 0:
                # Written, not truncated to a length: a sparse file has no disk space, and a write to its page would end
                # the process.
                missing -= os.write(file, bytes(missing))
        except OSError:
            os.truncate(filename, before)
            if before == 0:
                os.unlink(filename)
            raise
    finally:
        os.close(file)


class Metrics:
    """Counts runs, steps, waves (parallel batches of calls), calls and tokens, in a registry of its own.

    If the shared folder cannot be used, a warning is logged and only this process is counted.

    Args:
        tools: Names of tools that may be labels. Any other name counts as `other`, because callers can invent names.
        shared: The folder in which several processes count together; None for this process alone.
    """

    def __init__(self, tools: frozenset[str] = frozenset(), shared: Path | None = None) -> None:
        self._tools = tools
        self._shared = shared
        self.last_model_error: tuple[str, float] | None = None
        """Kind and time (seconds since 1970) of the newest model error that can affect every caller; None after a
        success.
        """
        if shared is not None:
            # prometheus_client looks its class of files up in that module for each value.
            values.MmapedDict = ReservedFile  # type: ignore[attr-defined]  # there is no setting for the class
            try:
                _remove_dead_workers(shared)
                self._create()
            except OSError as error:
                warn_of_folder(shared, error)
                self._shared = None
                values.ValueClass = values.MutexValue
        if self._shared is None:
            self._create()

    def _create(self) -> None:
        """Create the metrics; raise `OSError` if their files cannot be created."""
        self._registry = registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        ended = (
            "Runs that ended, by session status, or `BUSY`, `CANCELLED`, `DRAINED` or `REFUSED` for a run without one."
        )
        self._runs = counter("graph_agent_runs", ended, ["status"])
        lasted = "Seconds from a run's start to its end, by the same status."
        self._seconds = histogram("graph_agent_run_seconds", lasted, ["status"])
        self._steps = counter("graph_agent_steps", "Plans made.")
        self._iterations = counter("graph_agent_iterations", "Waves of calls started.")
        called = "Seconds from a call's start to its result, by tool and result status; tools of callers are `other`."
        self._latency = histogram("graph_agent_tool_seconds", called, ["tool", "status"])
        self._tokens = counter("graph_agent_tokens", "Tokens of model calls, by kind: `input` or `output`.", ["kind"])
        early = (
            "Calls and requests that began before a plan asked for them, by source and outcome: `used` or `dropped`."
        )
        self._speculation = counter("graph_agent_speculation", early, ["source", "outcome"])
        dropped = "Seconds that the dropped ones ran, by source."
        self._dropped_s = counter("graph_agent_speculation_dropped_seconds", dropped, ["source"])
        cost = "Cost of the dropped ones, by source, in the currency of the agent's prices."
        self._dropped_cost = counter("graph_agent_speculation_dropped_cost", cost, ["source"])
        lead = "Seconds that calls had run before their plans asked for them."
        self._early_s = counter("graph_agent_early_seconds", lead)
        self.active_requests = Gauge(
            "graph_agent_requests_under_way",
            "Requests that are being answered.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def count(self, entry: Mapping[str, Any], open_calls: MutableMapping[str, datetime]) -> None:
        """Count an event of a run.

        - A plan counts as a step and, if it has calls, as a wave.
        - The start of a call is noted in `open_calls`. Its result observes the seconds in between, by tool and status;
          a tool that is not the agent's is labelled `other`. A result whose start was not noted has no seconds.
        - A model error that can affect every caller becomes `last_model_error`; an answer without an error clears it.
        - Any event may report calls and requests that began before a plan asked for them (`early`), which are counted,
          too.

        Args:
            entry: The event.
            open_calls: Id of a call → start time, for the run's calls that have no result yet. It is updated in place.
        """
        with self._counting():
            kind = entry["type"]
            for source, counts in entry.get("early", {}).items():
                for outcome in ("used", "dropped"):
                    self._speculation.labels(source, outcome).inc(counts.get(outcome, 0))
                self._dropped_s.labels(source).inc(counts.get("dropped_s", 0.0))
                self._dropped_cost.labels(source).inc(counts.get("cost", 0.0))
            if kind == "plan":
                self._steps.inc()
                # A plan without calls is an answer, and no wave.
                self._iterations.inc(bool(entry["calls"]))
            elif kind in _CALLS:
                open_calls[entry["id"]] = datetime.fromisoformat(entry["ts"])
            elif kind in _RESULTS:
                started = open_calls.pop(entry["id"], None)
                name = entry[_RESULTS[kind]]
                self._early_s.inc(entry.get("early_s", 0.0))
                if started is not None:
                    seconds = (datetime.fromisoformat(entry["ts"]) - started).total_seconds()
                    # Each label is a series that is kept forever.
                    label = name if name in self._tools else "other"
                    self._latency.labels(label, entry["status"]).observe(max(0.0, seconds))
            elif kind == "error" and entry["kind"] in _MODEL_ERRORS:
                self.last_model_error = (entry["kind"], datetime.fromisoformat(entry["ts"]).timestamp())
            elif kind == "agent_response" and "error" not in entry:
                self.last_model_error = None

    def count_run(self, status: str, seconds: float) -> None:
        """Count a run that has ended, with its seconds.

        Args:
            status: The session's status, or the reason why there is none, such as `CANCELLED`.
            seconds: Seconds from the run's start to its end.
        """
        with self._counting():
            self._runs.labels(status).inc()
            self._seconds.labels(status).observe(seconds)

    def count_tokens(self, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a run."""
        with self._counting():
            self._tokens.labels("input").inc(input_tokens)
            self._tokens.labels("output").inc(output_tokens)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Context manager that ignores an `OSError` of counting, such as a full disk, so that no run fails because of
        it; a warning is logged.
        """
        try:
            yield
        except OSError as error:
            warn_of_folder(self._shared, error)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format, summed over all processes that share the folder."""
        if self._shared is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._shared))  # type: ignore[no-untyped-call]  # untyped
        return generate_latest(registry)


def _remove_dead_workers(shared: Path) -> None:
    """Delete the gauges that worker processes which no longer exist have left in the folder."""
    for file in shared.glob("gauge_live*.db"):
        worker = file.stem.rpartition("_")[2]
        if worker.isdigit() and not is_alive(int(worker)):
            mark_process_dead(int(worker), str(shared))  # type: ignore[no-untyped-call]  # untyped
