"""Whether requests can be answered: what they need is looked at side by side, each in a time of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from graph_agent.compiled import AgentStateGraph
from graph_agent.failures import is_out_of_space, log_failure
from graph_agent.server.under_way import Runs
from graph_agent.write_probe import Probed

logger = logging.getLogger(__name__)

OK = "ok"
CHECK_S = 5.0
"""Seconds that one check may take."""
_ASK_S = 3.0
"""Seconds that a model's endpoint has to answer."""
_ASKED_FOR_S = 10.0
"""Seconds that its answer counts, so that frequent probes do not become traffic of its provider's."""
FRESH_S = 5.0
"""Seconds that the state of the database and of the MCP servers counts: anybody may ask for it, and to find it out
costs a write, or a process of a server that is down."""
_MODEL_DOWN_S = 60
"""Seconds that a failure of the model counts; then a request must find out."""
_REFUSED = {401: "auth", 403: "permission"}


class Readiness:
    """Looks at the model, the MCP servers and the database.

    Args:
        runs: The server's runs.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._model = _Check("model", self._ask_model, _ASKED_FOR_S)
        self._database = _Check("database", self._try_database, FRESH_S)
        self._mcp = _Check("mcp", self._ask_mcp, FRESH_S)

    async def checks(self) -> dict[str, str]:
        """Each part's state: `ok`, or what is wrong with it in one word; `timeout` for one that does not say in time.

        A database on a full disk is `full`. Why a part failed is in the log, as this is shown to strangers.
        A model that failed within a minute is not ready, whatever its endpoint says.
        """
        found = await asyncio.gather(self._model.states(), self._database.states(), self._mcp.states())
        states = {name: state for part in found for name, state in part.items()}
        failed = self._runs.metrics.last_model_error
        if failed is not None and time.time() - failed[1] <= _MODEL_DOWN_S:
            states["model"] = failed[0]
        return {"server": "stopping" if self._runs.draining else OK, **states}

    async def _ask_model(self) -> dict[str, str]:
        builder = self._runs.host.kept.builder
        return {"model": await endpoint_state(builder.model if isinstance(builder, AgentStateGraph) else None)}

    async def _try_database(self) -> dict[str, str]:
        host = self._runs.host
        await host.saver.aget_tuple({"configurable": {"thread_id": "/ready"}})
        await host.store.aget(("graph_agent", "ready"), "ready")
        for part in (host.saver, host.store):
            if isinstance(part, Probed):
                await part.aprobe()
        return {"database": OK}

    async def _ask_mcp(self) -> dict[str, str]:
        return {f"mcp:{name}": state for name, state in (await self._runs.host.mcp_states()).items()}


async def endpoint_state(model: Any) -> str:
    """Whether a model's endpoint answers and takes its key: `ok`, `auth`, `permission` or `unreachable`.

    The models are listed, once, which takes no tokens; servers that have no such list answer 404 or 405 and are there.

    Args:
        model: The chat model; one without a client of OpenAI's kind counts as there, since it could be built.
    """
    client: Any = getattr(model, "root_async_client", None)
    if not callable(getattr(client, "with_options", None)):
        return OK
    try:
        await client.with_options(max_retries=0, timeout=_ASK_S).models.with_raw_response.list()
    except Exception as error:  # noqa: BLE001 - a client may raise anything; that it does is what is asked
        status = getattr(error, "status_code", None)
        if not isinstance(status, int) or status >= 500:
            return "unreachable"
        return _REFUSED.get(status, OK)
    return OK


class _Check:
    """One part's check, which is under way once at most, however many ask and however long it takes."""

    def __init__(self, name: str, look: Callable[[], Awaitable[dict[str, str]]], fresh_s: float = 0.0) -> None:
        self._name = name
        self._look = look
        self._fresh_s = fresh_s
        self._found: tuple[float, dict[str, str]] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._failed = False
        """Whether the last look failed, which is logged once."""

    async def states(self) -> dict[str, str]:
        if self._found is not None and time.monotonic() - self._found[0] < self._fresh_s:
            return self._found[1]
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._find())
        looking = self._looking
        # It is waited for, not cancelled: a query that is cut short may leave its connection in disorder.
        await asyncio.wait([looking], timeout=CHECK_S)
        if not looking.done() or self._found is None:
            return {self._name: "timeout"}
        return self._found[1]

    async def _find(self) -> None:
        try:
            states = await self._look()
            self._failed = False
        except Exception as error:  # noqa: BLE001 - a part may fail in any way; that it does is what is asked
            states = {self._name: "full" if is_out_of_space(error) else "failed"}
            if not self._failed:
                log_failure(logger, f"The check of /ready of the {self._name}", error, level=logging.WARNING)
            self._failed = True
        self._found = (time.monotonic(), states)
