"""Describes an agent that a server can open: its metadata, and how it is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.agent_file.credentials import CredentialSource, read_credentials
from graph_agent.agent_file.delegates import SkillSpec
from graph_agent.agent_file.factory import ServedAgent, open_agent, today_from_env
from graph_agent.agent_file.spec import AgentSpec, load_spec, recording, with_sources
from graph_agent.base.errors import ConfigError
from graph_agent.session.compiled import CompiledAgentGraph


@dataclass(frozen=True, slots=True)
class AgentSource:
    """An agent that a server can open, with the metadata that is needed before it is open."""

    name: str
    """Name of the agent, which is the model's name in the chat APIs."""
    description: str
    db: str
    """URL of the database of the agent's sessions, which an option of the server may replace."""
    open: Callable[[], AbstractAsyncContextManager[CompiledAgentGraph]]
    """Returns a context manager that yields the compiled agent, without a checkpointer and a store.

    The server adds its own.
    """
    skills: tuple[SkillSpec, ...] = ()
    """Skills in the agent's A2A card, in addition to its tools."""
    push_notifications: bool = False
    """Whether A2A clients may subscribe to push notifications."""
    credential_headers: Mapping[str, str] = field(default_factory=dict)
    """Credential name → the request header that may carry it."""
    show_outputs: bool = False
    """Whether A2A clients receive the outputs of tools."""
    needs_callers: bool = False
    """Whether the server must have API keys, because the agent has a memory and only keys distinguish its users."""


def of_file(
    path: str | Path,
    credentials: Mapping[str, CredentialSource] | None = None,
    *,
    record: bool = False,
    db: str | None = None,
    caller: str | None = None,
) -> AgentSource:
    """Return the source of an agent file. The agent itself is opened when the server starts, and closed when it stops.

    Args:
        path: Path of the agent file.
        credentials: Credential name → source; replaces the file's credentials of the same names.
        record: Whether to record what models receive, even if the file does not ask for it.
        db: A database URL that replaces the file's, also for the memory; None for the file's.
        caller: The user of all requests, for a transport without keys such as standard input; None if keys name the
            users.

    Raises:
        ConfigError: The file is missing or invalid, or a credential has no value.
    """
    spec = with_sources(load_spec(path), credentials or {})
    return of_spec(recording(spec) if record else spec, db, caller=caller)


def of_spec(spec: AgentSpec, db: str | None = None, *, caller: str | None = None) -> AgentSource:
    """Return the source of a parsed agent file.

    Args:
        spec: The agent file.
        db: A database URL that replaces the file's, also for the memory; None for the file's.
        caller: The user of all requests, for a transport without keys; None if keys name the users.

    Raises:
        ConfigError: A credential has no value.
    """
    # Read here only to fail at the start of the server, not at the first request; the values are read again at the
    # opening.
    read_credentials(spec.credentials)
    spec = spec if db is None else spec.model_copy(update={"db": db})
    # Without a database: the server opens it itself, once, for all of its APIs.
    source = _source(spec, lambda: open_agent(spec, today=today_from_env(), db="", caller=caller))
    return replace(source, needs_callers=spec.memory is not None and caller is None)


def of_served(agent: ServedAgent) -> AgentSource:
    """Return the source of an agent that this process serves already; both share its MCP servers.

    Opening the source opens the agent if it is not open. Closing the source closes the agent, which its next use opens
    again.
    """

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        """Yield the served agent, which is kept open within the context."""
        async with agent.lifespan():
            yield await agent()

    return _source(agent.spec, opened)


def of_agent(agent: CompiledAgentGraph, description: str = "", *, db: str, name: str | None = None) -> AgentSource:
    """Return the source of an agent that a program has built. The program's own handlers can run the agent, too.

    The server needs API keys if the agent has a memory. Closing the source does not close the agent.

    Args:
        agent: The agent, without a checkpointer: the server adds that of `db`.
        description: What the agent does, for its A2A card.
        db: URL of the database of the agent's sessions.
        name: Name of the agent in the APIs; None for its own.

    Raises:
        ConfigError: The agent has a checkpointer.
    """
    if isinstance(agent.checkpointer, BaseCheckpointSaver):
        raise ConfigError("The server stores sessions in db=...; build the agent without checkpointer=...")

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        """Yield the agent, which the program keeps."""
        yield agent

    needs_callers = agent.builder.deps.memory is not None
    return AgentSource(name or agent.get_name(), description, db, opened, needs_callers=needs_callers)


def _source(spec: AgentSpec, opened: Callable[[], AbstractAsyncContextManager[CompiledAgentGraph]]) -> AgentSource:
    """Return the source of an agent file; `opened` opens its agent.

    The skills of the source are the file's entries that describe a skill; folders of skills are not among them.
    """
    return AgentSource(
        spec.name,
        spec.description,
        spec.db,
        opened,
        tuple(skill for skill in spec.skills if isinstance(skill, SkillSpec)),
        spec.push_notifications,
        spec.credential_headers,
    )
