"""Checks whether the model, the MCP servers and the database can be used now."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from starlette.responses import JSONResponse

from graph_agent.base._internal.failure_log import is_out_of_space, log_failure
from graph_agent.base._internal.signals import Drainable
from graph_agent.base.types import OK
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.session.agent_checks import model_state, probe_database

logger = logging.getLogger("graph_agent.server.monitoring")

CHECK_S = 5.0
"""Seconds after which one check counts as `timeout`."""
_ENDPOINT_CACHE_S = 10.0
"""Seconds for which the state of the model's endpoint is cached, so that frequent probes do not reach the provider."""
CACHE_S = 5.0
"""Seconds for which the states of the database and the MCP servers are cached.

The route is public, and a check costs a write, or starts the process of a server that is down.
"""
_MODEL_DOWN_S = 60
"""Seconds after a failed model request during which the model counts as down."""


class ReadinessCheck:
    """Checks whether requests can be answered: the model, the MCP servers and the database.

    Args:
        host: The open agent.
        metrics: Has the newest model error.
        runs: Reports whether the server is stopping.
    """

    def __init__(self, host: Host, metrics: Metrics, runs: Drainable) -> None:
        self._host = host
        self._metrics = metrics
        self._runs = runs
        self._remark = ""
        """What was wrong with the endpoint's list of models at the last check, so that it is logged only once."""
        self._model = StateCheck("model", self._check_model, _ENDPOINT_CACHE_S)
        self._database = StateCheck("database", partial(database_states, host.saver, host.store), CACHE_S)
        self._mcp = StateCheck("mcp", self._check_mcp, CACHE_S)

    async def checks(self) -> dict[str, str]:
        """Return the state of each part, name → `ok` or the fault in one word, such as `failed`, `timeout`, or `full`
        for a full disk.

        The part `server` is `stopping` once the server ends its runs. A model that failed a request within the last
        minute has the kind of that error as its state, even if its endpoint answers. The cause of a failure is only
        logged, because the route is public.
        """
        found = await asyncio.gather(self._model.states(), self._database.states(), self._mcp.states())
        states = {name: state for part in found for name, state in part.items()}
        failed = self._metrics.last_model_error
        # An endpoint may list its models and still refuse each request.
        if failed is not None and time.time() - failed[1] <= _MODEL_DOWN_S:
            states["model"] = failed[0]
        return {"server": "stopping" if self._runs.draining else OK, **states}

    async def _check_model(self) -> dict[str, str]:
        """Return the state of the model's endpoint as `{"model": STATE}`.

        A remark on its list of models is logged as a warning, unless the last check had the same remark.
        """
        state, remark = await model_state(self._host.kept)
        if remark and remark != self._remark:
            logger.warning("The check of /ready of the model: %s; completion requests are %s.", remark, state)
        self._remark = remark
        return {"model": state}

    async def _check_mcp(self) -> dict[str, str]:
        """Return the states of the MCP servers, `mcp:NAME` → `ok` or `down`."""
        return {f"mcp:{name}": state for name, state in (await self._host.mcp_states()).items()}


def readiness(checks: Mapping[str, str]) -> JSONResponse:
    """Return the response of `/ready` for the state of each part. The status is 200 if all are `ok`, otherwise 503."""
    is_ready = all(state == OK for state in checks.values())
    return JSONResponse({"ready": is_ready, "checks": checks}, 200 if is_ready else 503)


async def database_states(saver: BaseCheckpointSaver[Any], store: BaseStore | None) -> dict[str, str]:
    """Check that the database, and the store if there is one, can be read and written; return `{"database": "ok"}`.

    Raises the error of the database if not.
    """
    await probe_database(saver, store)
    return {"database": OK}


class StateCheck:
    """The check of one part. Its result is cached, and concurrent callers share one check.

    Args:
        name: Name of the part, which has the state if the check fails.
        check: Returns name → state. If it raises, the state is `failed`, or `full` for a full disk.
        cache_s: Seconds for which a result is used again.
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
        """Return the states of the part, name → state: those of the last check for `cache_s` seconds, otherwise those
        of a new check, for which this waits. Callers share a running check.

        If a check takes more than 5 seconds, the state is `timeout`; the check continues, and its result is used later.
        Never raises an exception of the check.
        """
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
        """Run the check and store its result with the time; an exception is the state `failed`, or `full` for a full
        disk.

        Of consecutive failures, only the first is logged. Never raises.
        """
        try:
            states = await self._check()
            self._failed = False
        except Exception as error:  # noqa: BLE001 - a part may fail in any way; any error is a state
            states = {self._name: "full" if is_out_of_space(error) else "failed"}
            # Probes come every few seconds, and would fill the log.
            if not self._failed:
                log_failure(logger, f"The check of /ready of the {self._name}", error, level=logging.WARNING)
            self._failed = True
        self._result = (time.monotonic(), states)
