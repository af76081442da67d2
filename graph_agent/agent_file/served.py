"""Opens agents once per process for servers that request a graph per request, such as `langgraph dev`.

```python
make_graph = served(Path(__file__).with_name("agent.yaml"))  # "graphs" in langgraph.json
app = Starlette(lifespan=make_graph.lifespan)  # "http": {"app": …} there
```
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

from graph_agent.agent_file.factory import open_agent
from graph_agent.agent_file.spec import TODAY_VARIABLE, AgentSpec, load_spec
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.errors import ConfigError

_CLOSE_S = 30.0
"""Seconds that the MCP servers get to stop when the process exits."""


def served(path: str | Path) -> ServedAgent:
    """Return the graph factory of an agent file; the same factory for the same file.

    The agent and its stdio MCP servers use the date in the environment variable `GRAPH_AGENT_TODAY` as today.

    Raises:
        ConfigError: If the file is missing or invalid; nothing is started yet.
    """
    return _served(Path(path).resolve())


@functools.cache
def _served(path: Path) -> ServedAgent:
    return ServedAgent(load_spec(path))


class ServedAgent:
    """One agent for the whole process, as a graph factory that every request may call.

    The agent's MCP sessions run on an event loop in their own thread, independent of requests and of the server's
    loops. The graph has no checkpointer: the server provides its own.
    """

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec
        """The file's content."""
        self._lock = threading.Lock()
        self._thread: _AgentThread | None = None
        # A server may read a factory's type hints, which `typing` refuses for an object without annotations.
        self.__annotations__: dict[str, Any] = {}

    async def __call__(self) -> CompiledAgentGraph:
        """Return the agent's graph, opened by the first call; after a failure the next call tries again.

        Raises:
            ConfigError: If something that the file names cannot be built.
        """
        with self._lock:
            if self._thread is None or self._thread.failed:
                self._thread = _AgentThread(self.spec)
            thread = self._thread
        # Shielded: requests share the future, and cancelling one request must not cancel it for the others.
        return await asyncio.shield(asyncio.wrap_future(thread.opened))

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Lifespan for Starlette or FastAPI: opens the agent when the server starts, closes it when the server stops.

        It stops the MCP servers of a server ended by SIGTERM, which may never run Python's exit handlers.
        """
        await self()
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the MCP sessions, and wait at most `_CLOSE_S` seconds for it; a later call opens the agent again."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()


class _AgentThread:
    """A thread whose event loop keeps an agent open until it is closed or the process exits."""

    def __init__(self, spec: AgentSpec) -> None:
        self.opened: Future[CompiledAgentGraph] = Future()
        self.spec = spec
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"{spec.name}-agent", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def failed(self) -> bool:
        """Whether the agent could not be opened."""
        return self.opened.done() and self.opened.exception() is not None

    def close(self) -> None:
        """Close the agent, once it is open, and wait for the thread."""
        atexit.unregister(self.close)
        with suppress(RuntimeError):  # the loop is closed if the agent could not be opened
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._keep_open())

    async def _keep_open(self) -> None:
        try:
            async with open_agent(self.spec, today=today_from_env(), db="") as graph:
                self.opened.set_result(graph)
                await self._stop.wait()
        except BaseException as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)  # any failure must reach the waiting requests


def today_from_env() -> date | None:
    """Return the date that `GRAPH_AGENT_TODAY` sets for the agent; None for the real date."""
    text = os.environ.get(TODAY_VARIABLE, "")
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigError(f"{TODAY_VARIABLE}={text!r} is no ISO date; write e.g. 2026-12-04, or unset it.") from None
