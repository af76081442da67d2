"""Sources of a server's agent: an agent file, or the graph factory of `langgraph dev`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a2a.types import AgentSkill

from graph_agent.a2a.server.executor import A2A_DEFAULTS
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.spec.agent_file import AgentSpec, load_spec, with_sources
from graph_agent.spec.credentials import CredentialSource, read_credentials
from graph_agent.spec.opening import open_agent
from graph_agent.spec.served import ServedAgent, today_from_env


@dataclass(frozen=True, slots=True)
class AgentSource:
    """An agent that can be opened, with its metadata."""

    name: str
    """The model's name in the chat APIs."""
    description: str
    db: str
    """Database URL of its sessions, unless the server overrides it."""
    open: Callable[[], AbstractAsyncContextManager[CompiledAgentGraph]]
    """Opens it without checkpointer and store; the server adds its own."""
    skills: tuple[AgentSkill, ...] = ()
    """Skills in its A2A card, in addition to its tools."""
    push_notifications: bool = False
    """Whether A2A clients may subscribe to push notifications."""
    a2a_context: Mapping[str, Any] = field(default_factory=lambda: A2A_DEFAULTS)
    """Context overrides for the runs of A2A clients."""
    credential_headers: Mapping[str, str] = field(default_factory=dict)
    """Credential name → the request header that may carry it."""
    show_outputs: bool = False
    """Whether A2A clients receive the outputs of tools."""


def of_file(path: str | Path, credentials: Mapping[str, CredentialSource] | None = None) -> AgentSource:
    """Return the source of an agent file, opened when the server starts and closed when it stops.

    Args:
        path: The file.
        credentials: Credential name → source; replaces the file's credentials of the same names.

    Raises:
        ConfigError: If the file is missing or invalid, or a credential has no value.
    """
    return of_spec(with_sources(load_spec(path), credentials or {}))


def of_spec(spec: AgentSpec) -> AgentSource:
    """Return the source of a parsed agent file, opened when the server starts and closed when it stops.

    Raises:
        ConfigError: If a credential has no value.
    """
    read_credentials(spec.credentials)
    return _source(spec, lambda: open_agent(spec, today=today_from_env(), db=""))


def of_served(agent: ServedAgent) -> AgentSource:
    """Return the source of an agent that this process serves already; its MCP servers are shared."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        async with agent.lifespan():
            yield await agent()

    return _source(agent.spec, opened)


def _source(spec: AgentSpec, opened: Callable[[], AbstractAsyncContextManager[CompiledAgentGraph]]) -> AgentSource:
    return AgentSource(
        spec.name,
        spec.description,
        spec.db,
        opened,
        tuple(skills_of(spec)),
        spec.push_notifications,
        a2a_context_of(spec),
        spec.credential_headers,
    )


def skills_of(spec: AgentSpec) -> list[AgentSkill]:
    """Return the skills of an agent file as A2A card entries."""
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
    """Return the context overrides for A2A runs: the A2A defaults that the agent file does not set itself."""
    return {name: value for name, value in A2A_DEFAULTS.items() if name not in spec.config}
