"""Creates the agent card of a compiled graph; it lists supported capabilities only."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, TransportProtocol

from graph_agent.compiled import CompiledAgentGraph
from graph_agent.delegates.a2a_parts import EXTENSION
from graph_agent.server.settings import REST_PATH, RPC_PATH
from graph_agent.types import delegate_name, is_delegation

INPUT_MODES = ["text/plain", "text/markdown", "text/csv", "text", "application/json"]
"""Accepted media types of messages; others are refused."""

_BINDINGS = ((TransportProtocol.JSONRPC, RPC_PATH), (TransportProtocol.HTTP_JSON, REST_PATH))
_VERSIONS = (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3)


def agent_card(
    graph: CompiledAgentGraph,
    url: str,
    *,
    name: str = "",
    description: str = "",
    version: str = "",
    skills: Sequence[AgentSkill] = (),
    push_notifications: bool = False,
) -> AgentCard:
    """Build the card of an agent.

    Args:
        graph: The agent; its tools and delegates become skills.
        url: The server's public address without our paths, e.g. `http://127.0.0.1:9001`.
        name: The agent's name; empty for the graph's name.
        description: The agent's purpose; empty for a default text with the name.
        version: The agent's version; empty for that of this package.
        skills: Additional skills, listed first; one with a tool's name replaces the tool's skill.
        push_notifications: Whether the server sends push notifications.
    """
    url = url.rstrip("/")
    given = {skill.id for skill in skills}
    return AgentCard(
        name=name or graph.name,
        description=description or f"The agent {name or graph.name}.",
        version=version or metadata.version("graph-agent"),
        supported_interfaces=[
            AgentInterface(url=url + path, protocol_binding=binding.value, protocol_version=protocol_version)
            for protocol_version in _VERSIONS
            for binding, path in _BINDINGS
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=push_notifications,
            extended_agent_card=False,
            extensions=[
                AgentExtension(uri=EXTENSION, description="Takes what is left of a delegating run, and keeps to it.")
            ],
        ),
        default_input_modes=INPUT_MODES,
        default_output_modes=["text/plain"],
        skills=[*skills, *(skill for skill in _own_skills(graph) if skill.id not in given)] or [_conversation()],
    )


def _own_skills(graph: CompiledAgentGraph) -> list[AgentSkill]:
    schemas = graph.builder.deps.toolbox.schemas
    return [
        AgentSkill(
            id=function["name"],
            name=delegate_name(function["name"]),
            description=function.get("description") or function["name"],
            tags=["delegate" if is_delegation(function["name"]) else "tool"],
        )
        for function in (schema["function"] for schema in schemas)
    ]


def _conversation() -> AgentSkill:
    """The skill of an agent without tools; the protocol requires at least one."""
    return AgentSkill(id="conversation", name="conversation", description="Answers questions.", tags=["conversation"])
