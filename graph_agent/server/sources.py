"""Where a server's agent comes from: a file, or the factory that `langgraph dev` is given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a2a.types import AgentSkill

from graph_agent.a2a.server_executor import A2A_DEFAULTS
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.credentials import CredentialSource, read_credentials
from graph_agent.serving import ServedAgent, today_from_env
from graph_agent.spec import AgentSpec, load_spec, open_agent, with_sources


@dataclass(frozen=True, slots=True)
class AgentSource:
    """An agent that can be opened, and what is known of it before."""

    name: str
    """The model's name in the chat APIs."""
    description: str
    db: str
    """Where its sessions are kept, unless the server is told another place."""
    open: Callable[[], AbstractAsyncContextManager[CompiledAgentGraph]]
    """Opens it without any memory; the server brings its own."""
    skills: tuple[AgentSkill, ...] = ()
    """What A2A clients are told that it can do, beside its tools."""
    push_notifications: bool = False
    """Whether A2A clients may ask to be notified."""
    a2a_context: Mapping[str, Any] = field(default_factory=lambda: A2A_DEFAULTS)
    """Overrides for the runs of A2A clients."""
    credential_headers: Mapping[str, str] = field(default_factory=dict)
    """Credential name → the header in which a request may bring it."""
    show_outputs: bool = False
    """Whether A2A clients are sent the outputs of tools."""


def of_file(path: str | Path, credentials: Mapping[str, CredentialSource] | None = None) -> AgentSource:
    """The agent of a file, opened when the server starts and closed when it stops.

    Args:
        path: The file.
        credentials: Credential name → where it is, in place of the file's own of the same names.

    Raises:
        ConfigError: When the file is missing or wrong, or a credential has no value.
    """
    return of_spec(with_sources(load_spec(path), credentials or {}))


def of_spec(spec: AgentSpec) -> AgentSource:
    """The agent of a file's content, opened when the server starts and closed when it stops.

    Raises:
        ConfigError: When a credential has no value.
    """
    read_credentials(spec.credentials)
    return _source(spec, lambda: open_agent(spec, today=today_from_env(), db=""))


def of_served(agent: ServedAgent) -> AgentSource:
    """An agent that this process serves already; the two share its MCP servers."""

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
