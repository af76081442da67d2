"""Agents for servers that ask for a graph at each request, such as `langgraph dev`: opened once, kept, and closed.

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

from graph_agent.compiled import CompiledAgentGraph
from graph_agent.errors import ConfigError
from graph_agent.spec.agent_file import TODAY_VARIABLE, AgentSpec, load_spec, open_agent

_CLOSE_S = 30.0
"""Seconds the MCP servers may take to end when the process does."""


def served(path: str | Path) -> ServedAgent:
    """Make a graph factory of an agent file; the same file gives the same factory.

    The agent, and its stdio MCP servers, take the date in the environment variable `GRAPH_AGENT_TODAY` for today.

    Raises:
        ConfigError: When the file is missing or wrong; nothing is started yet.
    """
    return _served(Path(path).resolve())


@functools.cache
def _served(path: Path) -> ServedAgent:
    return ServedAgent(load_spec(path))


class ServedAgent:
    """One agent for the whole process, as a factory that every request may call.

    The agent's MCP sessions live on an event loop in a thread of their own, so they belong to no request and to none
    of the server's loops. The graph has no checkpointer: the server brings its own.
    """

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec
        """The file's content."""
        self._lock = threading.Lock()
        self._keeper: _Keeper | None = None

    async def __call__(self) -> CompiledAgentGraph:
        """Give the agent's graph, opened by the first call; after a failure the next call tries again.

        Raises:
            ConfigError: When something the file names cannot be built.
        """
        with self._lock:
            if self._keeper is None or self._keeper.failed:
                self._keeper = _Keeper(self.spec)
            keeper = self._keeper
        # Shielded: requests share the opening, and one that is cancelled must not take it from the others.
        return await asyncio.shield(asyncio.wrap_future(keeper.opened))

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Open the agent when a server starts, and close it when the server stops; for Starlette or FastAPI.

        A server that is ended by SIGTERM may never come to Python's exit, so this is what ends its MCP servers.
        """
        await self()
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the MCP sessions and wait for it, for half a minute at most; a later call opens the agent anew."""
        with self._lock:
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()


class _Keeper:
    """A thread whose event loop holds an agent open until it is closed or the process exits."""

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
        """Close the agent, once it is open, and wait for it."""
        atexit.unregister(self.close)
        with suppress(RuntimeError):  # the loop has closed, because the agent could not be opened
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._keep())

    async def _keep(self) -> None:
        try:
            async with open_agent(self.spec, today=today_from_env(), db="") as graph:
                self.opened.set_result(graph)
                await self._stop.wait()
        except BaseException as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)  # those who wait must hear of it, whatever it is


def today_from_env() -> date | None:
    """The date that our own environment sets for the agent; None for the real one."""
    text = os.environ.get(TODAY_VARIABLE, "")
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigError(f"{TODAY_VARIABLE}={text!r} is no ISO date; write e.g. 2026-12-04, or unset it.") from None
