"""The agent card of one of our graphs: what it can do, and nothing that it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, TransportProtocol

from graph_agent.a2a.wire import EXTENSION
from graph_agent.compiled import AgentStateGraph, CompiledAgentGraph
from graph_agent.types import delegate_name, is_delegation

INPUT_MODES = ["text/plain", "text/markdown", "text/csv", "text", "application/json"]
"""What a client may send; anything else is refused."""

RPC_PATH = "/a2a"
REST_PATH = "/a2a/rest"
_BINDINGS = ((TransportProtocol.JSONRPC, RPC_PATH), (TransportProtocol.HTTP_JSON, REST_PATH))
_VERSIONS = (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3)


def agent_card(
    graph: CompiledAgentGraph,
    url: str,
    *,
    name: str = "",
    description: str = "",
    version: str = "1.0.0",
    skills: Sequence[AgentSkill] = (),
    push_notifications: bool = False,
) -> AgentCard:
    """Make the card of an agent.

    Args:
        graph: The agent; its tools and delegates become skills.
        url: Where it is reached from outside, without a path of ours, e.g. `http://127.0.0.1:9001`.
        name: What it is called; empty for the graph's own name.
        description: What it is good for; empty for one that says no more than its skills do.
        version: Of the agent.
        skills: What it can do beside its tools, told first.
        push_notifications: Whether its server sends them.
    """
    url = url.rstrip("/")
    told = {skill.id for skill in skills}
    return AgentCard(
        name=name or graph.name,
        description=description or f"The agent {name or graph.name}.",
        version=version,
        supported_interfaces=[
            AgentInterface(url=url + path, protocol_binding=binding.value, protocol_version=spoken)
            for spoken in _VERSIONS
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
        skills=[*skills, *(skill for skill in _own_skills(graph) if skill.id not in told)] or [_conversation()],
    )


def _own_skills(graph: CompiledAgentGraph) -> list[AgentSkill]:
    schemas = graph.builder.offers if isinstance(graph.builder, AgentStateGraph) else []
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
    """An agent without tools still answers, and the protocol wants a skill."""
    return AgentSkill(id="conversation", name="conversation", description="Answers questions.", tags=["conversation"])
