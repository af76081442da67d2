"""An agent file, served to A2A clients from a process of its own: what `graph-agent a2a` runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import typer
import uvicorn
from a2a.types import AgentSkill
from langgraph.checkpoint.base import BaseCheckpointSaver
from sse_starlette.sse import AppStatus
from starlette.applications import Starlette

from graph_agent.a2a.server import a2a_app
from graph_agent.a2a.server_card import agent_card
from graph_agent.a2a.server_executor import A2A_DEFAULTS
from graph_agent.a2a.server_sessions import at_work
from graph_agent.a2a.server_store import open_stores
from graph_agent.addresses import bound, url_of
from graph_agent.collector import spare_what_is_loaded
from graph_agent.command_log import log_at
from graph_agent.running import sees_other_processes
from graph_agent.spec import AgentSpec, open_agent

_STOP_S = 5
"""Seconds more that open streams may take to end."""


def serve_a2a(
    spec: AgentSpec,
    *,
    host: str,
    port: int,
    url: str = "",
    db: str | None = None,
    show_outputs: bool = False,
    drain_s: int,
    log_level: str | None = None,
) -> None:
    """Serve an agent until the process is asked to stop; says on standard output where it listens.

    Args:
        spec: The agent file's content.
        host: The address to listen at.
        port: The port; 0 for any free one.
        url: Where clients reach it; empty for where it listens.
        db: Another database than the file's.
        show_outputs: Whether clients are told what tools gave.
        drain_s: Seconds that tasks may take to their next boundary when the server is stopped.
        log_level: Name of the level from which this package's log and uvicorn's are written to standard error; None
            for WARNING, unless the program has set logging up itself.

    Raises:
        ConfigError: When the address is taken or is none, or something the file names cannot be built.
    """
    log_at(log_level)
    with bound(host, port) as listener:
        # Whoever reads where it listens, and comes before it serves, waits instead of being refused.
        listener.listen()
        asyncio.run(_serve(spec, listener, url or url_of(listener), db, show_outputs, drain_s, log_level))


async def _serve(
    spec: AgentSpec,
    listener: socket.socket,
    url: str,
    db: str | None,
    show_outputs: bool,
    drain_s: int,
    log_level: str | None,
) -> None:
    # The SDK's streams would end at the first signal, and their tasks with them; tasks are given time to end.
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # it has no types
    async with open_a2a(spec, url, db=db, show_outputs=show_outputs, drain_s=drain_s) as app:
        spare_what_is_loaded()
        typer.echo(f"{spec.name} listens at {url}")
        config = uvicorn.Config(
            app,
            log_config=None,  # its records go to the handler of `log_at`
            log_level=log_level or "warning",
            timeout_graceful_shutdown=drain_s + _STOP_S,
        )
        await uvicorn.Server(config).serve([listener])


@asynccontextmanager
async def open_a2a(
    spec: AgentSpec, url: str, *, db: str | None = None, show_outputs: bool = False, drain_s: float | None = None
) -> AsyncIterator[Starlette]:
    """Open the agent of a file, and make its A2A application; both are closed on leaving.

    Unless the file says otherwise, a run takes ten steps at most, and its reply without calls is the answer. Tasks are
    kept where the sessions are.

    Args:
        spec: The file's content.
        url: Where clients reach the agent.
        db: Another database than the file's.
        show_outputs: Whether clients are told what tools gave.
        drain_s: As for `a2a_app`.

    Raises:
        ConfigError: When something the file names cannot be built.
    """
    address = spec.db if db is None else db
    async with AsyncExitStack() as stack:
        graph = await stack.enter_async_context(open_agent(spec, db=address))
        saver = graph.checkpointer
        shared = isinstance(saver, BaseCheckpointSaver) and await sees_other_processes(saver)
        others = at_work(graph) if shared else None
        stores = await stack.enter_async_context(open_stores(address, at_work=others))
        card = agent_card(
            graph,
            url,
            name=spec.name,
            description=spec.description,
            skills=skills_of(spec),
            push_notifications=spec.push_notifications,
        )
        context = a2a_context_of(spec)
        yield a2a_app(
            graph,
            card,
            stores=stores,
            context=context,
            show_outputs=show_outputs,
            credential_headers=spec.credential_headers,
            drain_s=drain_s,
        )


def skills_of(spec: AgentSpec) -> list[AgentSkill]:
    """What an agent file says that the agent can do, for its card."""
    return [
        AgentSkill(
            id=skill.id,
            name=skill.name or skill.id,
            description=skill.description,
            tags=skill.tags or ["skill"],
            examples=skill.examples,
        )
        for skill in spec.skills
    ]


def a2a_context_of(spec: AgentSpec) -> dict[str, Any]:
    """Overrides for the runs of A2A clients: what they take there, where an agent file says nothing."""
    return {name: value for name, value in A2A_DEFAULTS.items() if name not in spec.config}
