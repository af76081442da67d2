"""Defines Prometheus metrics, reserves disk space for their files, and checks readiness.

With several worker processes, prometheus_client keeps values in memory-mapped files of a folder that they share. A
write to a mapped page without disk space would kill the process (SIGBUS), so the space is reserved first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.responses import JSONResponse

from graph_agent.base._internal.failure_log import is_out_of_space, log_failure
from graph_agent.base._internal.signals import Drainable
from graph_agent.base.types import OK
from graph_agent.interfaces.server.admission.worker_folder import is_alive, warn_of_folder
from graph_agent.interfaces.server.host import Host
from graph_agent.session.agent_checks import model_state, probe_database

_FIRST_BYTES = 1 << 16
"""Bytes that a new file has."""
_OVERHEAD_BYTES = 64
"""Upper bound of the bytes that a value takes in addition to its key."""


class ReservedFile(MmapedDict):
    """prometheus_client's file of values, whose pages are all allocated on disk before they are mapped.

    Construction and new values raise `OSError` if the disk is full.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        if not read_mode:
            _reserve(filename, _FIRST_BYTES)
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]  # prometheus_client is untyped

    def _init_value(self, key: str) -> None:
        """Add a value with a key; called by prometheus_client."""
        own: Any = self
        if own._used + len(key.encode()) + _OVERHEAD_BYTES > own._capacity:
            _reserve(own._fname, 2 * own._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]  # prometheus_client is untyped


def _reserve(filename: str, size: int) -> None:
    """Extend a file to a size with all bytes allocated on disk; restore the old size on failure."""
    file = os.open(filename, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        before = os.fstat(file).st_size
        try:
            missing = size - before
            while missing > 0:
                missing -= os.write(file, bytes(missing))
        except OSError:
            os.truncate(filename, before)
            if before == 0:
                os.unlink(filename)
            raise
    finally:
        os.close(file)


_CALLS = {"tool_call": "name", "delegation_request": "target"}
"""Type of an event that starts a call → field with the name of the tool or delegate."""
_RESULTS = {"tool_result": "name", "delegation_response": "target"}
"""Type of an event that ends a call → field with the name of the tool or delegate."""
_MODEL_ERRORS = {"transient", "auth", "permission", "unknown_model"}
"""Kinds of errors that affect every caller; the other kinds can be caused by a single request."""


class Metrics:
    """Metrics of runs, steps, waves, calls and tokens, in their own registry.

    If the folder cannot be used, this process counts alone, with a logged warning.

    Args:
        tools: Tool names that may be a label; any other counts as `other`, because callers can invent names.
        shared: The folder in which several processes count together; None for this process alone.
    """

    def __init__(self, tools: frozenset[str] = frozenset(), shared: Path | None = None) -> None:
        self._tools = tools
        self._shared = shared
        self.last_model_error: tuple[str, float] | None = None
        """Kind and time (seconds since 1970) of the newest model error since the last success."""
        if shared is not None:
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
        """Create the metrics; raise `OSError` if their files cannot be."""
        self._registry = CollectorRegistry()
        self._runs = Counter(
            "graph_agent_runs",
            "Runs that ended, by session status, or `BUSY`, `CANCELLED`, `DRAINED` or `REFUSED` for a run without one.",
            ["status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "graph_agent_run_seconds",
            "Seconds from a run's start to its end, by the same status.",
            ["status"],
            registry=self._registry,
        )
        self._steps = Counter("graph_agent_steps", "Plans made.", registry=self._registry)
        self._iterations = Counter("graph_agent_iterations", "Waves of calls started.", registry=self._registry)
        self._latency = Histogram(
            "graph_agent_tool_seconds",
            "Seconds from a call's start to its result, by tool and result status; tools of callers are `other`.",
            ["tool", "status"],
            registry=self._registry,
        )
        self._tokens = Counter(
            "graph_agent_tokens",
            "Tokens of model calls, by kind: `input` or `output`.",
            ["kind"],
            registry=self._registry,
        )
        self.active_requests = Gauge(
            "graph_agent_requests_under_way",
            "Requests that are being answered.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )

    def count(self, event: Mapping[str, Any], open_calls: MutableMapping[str, datetime]) -> None:
        """Count an event of a run.

        `open_calls` has the start times of the run's calls without a result; it is updated in place.
        """
        with self._counting():
            self._event(event, open_calls)

    def _event(self, entry: Mapping[str, Any], open_calls: MutableMapping[str, datetime]) -> None:
        """Count one event of a session's history."""
        kind = entry["type"]
        if kind == "plan":
            self._steps.inc()
            # A plan without calls is an answer, and no wave.
            self._iterations.inc(bool(entry["calls"]))
        elif kind in _CALLS:
            open_calls[entry["id"]] = datetime.fromisoformat(entry["ts"])
        elif kind in _RESULTS:
            started = open_calls.pop(entry["id"], None)
            name = entry[_RESULTS[kind]]
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
        """Count an ended run, by the session's status or the reason why there is none, e.g. `CANCELLED`."""
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
        """Skip the count if the disk is full: a new label needs space, and no run may fail because of it."""
        try:
            yield
        except OSError as error:
            warn_of_folder(self._shared, error)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format, summed over the processes that share the folder."""
        if self._shared is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._shared))  # type: ignore[no-untyped-call]  # untyped
        return generate_latest(registry)


def _remove_dead_workers(shared: Path) -> None:
    """Delete the gauges of worker processes that have ended."""
    for file in shared.glob("gauge_live*.db"):
        worker = file.stem.rpartition("_")[2]
        if worker.isdigit() and not is_alive(int(worker)):
            mark_process_dead(int(worker), str(shared))  # type: ignore[no-untyped-call]  # untyped


logger = logging.getLogger("graph_agent.server.monitoring")

CHECK_S = 5.0
"""Timeout of one check in seconds."""
_ENDPOINT_CACHE_S = 10.0
"""Seconds that the endpoint's state is cached, to keep frequent probes from reaching the provider."""
CACHE_S = 5.0
"""Seconds that the states of the database and of the MCP servers are cached: the route is public, and a check costs a
write, or starts the process of a server that is down."""
_MODEL_DOWN_S = 60
"""Seconds after a failed model request during which the model counts as down."""


class ReadinessCheck:
    """Checks whether requests can be answered: the model, the MCP servers and the database.

    Args:
        host: The open agent.
        metrics: Remembers the newest model error.
        runs: Reports whether the server stops.
    """

    def __init__(self, host: Host, metrics: Metrics, runs: Drainable) -> None:
        self._host = host
        self._metrics = metrics
        self._runs = runs
        self._remark = ""
        """What was wrong with the endpoint's list of models at the last check; logged once."""
        self._model = StateCheck("model", self._check_model, _ENDPOINT_CACHE_S)
        self._database = StateCheck("database", partial(database_states, host.saver, host.store), CACHE_S)
        self._mcp = StateCheck("mcp", self._check_mcp, CACHE_S)

    async def checks(self) -> dict[str, str]:
        """Return the state of each part: `ok`, or the fault in one word; `timeout` if the check takes too long.

        A database on a full disk is `full`. The cause of a failure is only logged, because the route is public. A
        model that failed a request within the last minute is not ready, even if its endpoint answers.
        """
        found = await asyncio.gather(self._model.states(), self._database.states(), self._mcp.states())
        states = {name: state for part in found for name, state in part.items()}
        failed = self._metrics.last_model_error
        # An endpoint may list its models and still refuse each request.
        if failed is not None and time.time() - failed[1] <= _MODEL_DOWN_S:
            states["model"] = failed[0]
        return {"server": "stopping" if self._runs.draining else OK, **states}

    async def _check_model(self) -> dict[str, str]:
        """Return the state of the model's endpoint, and log once what is wrong with its list of models."""
        state, remark = await model_state(self._host.kept)
        if remark and remark != self._remark:
            logger.warning("The check of /ready of the model: %s; completion requests are %s.", remark, state)
        self._remark = remark
        return {"model": state}

    async def _check_mcp(self) -> dict[str, str]:
        """Return the states of the MCP servers, as `mcp:NAME`."""
        return {f"mcp:{name}": state for name, state in (await self._host.mcp_states()).items()}


def readiness(checks: Mapping[str, str]) -> JSONResponse:
    """Return the response of `/ready`: status 503 unless the state of every part is `ok`."""
    is_ready = all(state == OK for state in checks.values())
    return JSONResponse({"ready": is_ready, "checks": checks}, 200 if is_ready else 503)


async def database_states(saver: BaseCheckpointSaver[Any], store: BaseStore | None) -> dict[str, str]:
    """Check that the database of sessions can be read and written; return `{"database": "ok"}`.

    Raises the error of the database, or of the Store, if not.
    """
    await probe_database(saver, store)
    return {"database": OK}


class StateCheck:
    """The check of one part: cached, shared by concurrent callers, and run at most once at a time.

    Args:
        name: Name of the part, for its state if the check fails.
        check: Returns the states of the part by name; any exception counts as `failed`, or `full` on a full disk.
        cache_s: Seconds that a result is used again.
    """

    def __init__(self, name: str, check: Callable[[], Awaitable[dict[str, str]]], cache_s: float = 0.0) -> None:
        self._name = name
        self._check = check
        self._cache_s = cache_s
        self._result: tuple[float, dict[str, str]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failed = False
        """Whether the last check failed; consecutive failures are logged once."""

    async def states(self) -> dict[str, str]:
        """Return the states of the part; `timeout` if the check takes more than 5 seconds, in which it continues."""
        if self._result is not None and time.monotonic() - self._result[0] < self._cache_s:
            return self._result[1]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        task = self._task
        # Not cancelled on timeout: a cancelled query may leave its connection in an undefined state.
        await asyncio.wait([task], timeout=CHECK_S)
        if not task.done() or self._result is None:
            return {self._name: "timeout"}
        return self._result[1]

    async def _run(self) -> None:
        """Run the check, and store its result; the first of consecutive failures is logged."""
        try:
            states = await self._check()
            self._failed = False
        except Exception as error:  # noqa: BLE001 - a part may fail in any way; any error is a state
            states = {self._name: "full" if is_out_of_space(error) else "failed"}
            if not self._failed:
                log_failure(logger, f"The check of /ready of the {self._name}", error, level=logging.WARNING)
            self._failed = True
        self._result = (time.monotonic(), states)
