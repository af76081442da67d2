"""Checks the model, the MCP servers and the database concurrently, each with a timeout."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from graph_agent._internal.failure_log import is_out_of_space, log_failure
from graph_agent._internal.signals import Drainable
from graph_agent.checkpoints.write_probe import SupportsWriteProbe
from graph_agent.models.resolve import OK as OK  # other modules read it here
from graph_agent.models.resolve import endpoint_state
from graph_agent.server.hosting.host import Host
from graph_agent.server.monitoring.metrics import Metrics

logger = logging.getLogger(__name__)

CHECK_S = 5.0
"""Timeout of one check in seconds."""
_ENDPOINT_CACHE_S = 10.0
"""Seconds that the endpoint's state is cached, to keep frequent probes from reaching the provider."""
CACHE_S = 5.0
"""Seconds that the states of the database and of the MCP servers are cached: the route is public, and a check costs a
write, or starts the process of a server that is down."""
_MODEL_DOWN_S = 60
"""Seconds after a failed model request during which the model counts as down."""


class Readiness:
    """Checks the model, the MCP servers and the database.

    Args:
        runs: The server is stopping while it drains.
    """

    def __init__(self, host: Host, metrics: Metrics, runs: Drainable) -> None:
        self._host = host
        self._metrics = metrics
        self._runs = runs
        self._remark = ""
        """What was wrong with the endpoint's list of models at the last check; logged once."""
        self._model = _Check("model", self._check_model, _ENDPOINT_CACHE_S)
        self._database = _Check("database", self._check_database, CACHE_S)
        self._mcp = _Check("mcp", self._check_mcp, CACHE_S)

    async def checks(self) -> dict[str, str]:
        """Return the state of each part: `ok`, or the fault in one word; `timeout` if the check takes too long.

        A database on a full disk is `full`. The cause of a failure is only logged, because the route is public. A
        model that failed a request within the last minute is not ready, even if its endpoint answers.
        """
        found = await asyncio.gather(self._model.states(), self._database.states(), self._mcp.states())
        states = {name: state for part in found for name, state in part.items()}
        failed = self._metrics.last_model_error
        if failed is not None and time.time() - failed[1] <= _MODEL_DOWN_S:
            states["model"] = failed[0]
        return {"server": "stopping" if self._runs.draining else OK, **states}

    async def _check_model(self) -> dict[str, str]:
        state, remark = await endpoint_state(self._host.kept.builder.model)
        if remark and remark != self._remark:
            logger.warning("The check of /ready of the model: %s; completion requests are %s.", remark, state)
        self._remark = remark
        return {"model": state}

    async def _check_database(self) -> dict[str, str]:
        await self._host.saver.aget_tuple({"configurable": {"thread_id": "/ready"}})
        await self._host.store.aget(("graph_agent", "ready"), "ready")
        for part in (self._host.saver, self._host.store):
            if isinstance(part, SupportsWriteProbe):
                await part.aprobe()
        return {"database": OK}

    async def _check_mcp(self) -> dict[str, str]:
        return {f"mcp:{name}": state for name, state in (await self._host.mcp_states()).items()}


class _Check:
    """The check of one part: cached, shared by concurrent callers, and run at most once at a time."""

    def __init__(self, name: str, check: Callable[[], Awaitable[dict[str, str]]], cache_s: float = 0.0) -> None:
        self._name = name
        self._check = check
        self._cache_s = cache_s
        self._result: tuple[float, dict[str, str]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failed = False
        """Whether the last check failed; consecutive failures are logged once."""

    async def states(self) -> dict[str, str]:
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
        try:
            states = await self._check()
            self._failed = False
        except Exception as error:  # noqa: BLE001 - a part may fail in any way; any error is a state
            states = {self._name: "full" if is_out_of_space(error) else "failed"}
            if not self._failed:
                log_failure(logger, f"The check of /ready of the {self._name}", error, level=logging.WARNING)
            self._failed = True
        self._result = (time.monotonic(), states)
