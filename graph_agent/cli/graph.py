"""Implements `graph-agent graph`, which draws an agent as a Mermaid flowchart without building it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent._internal.text import printable
from graph_agent.cli.options import AGENT_FILE, ConfigOption

if TYPE_CHECKING:
    from graph_agent.agent_file.spec import AgentSpec

EDGES = (
    ("__start__", "plan", False),
    ("plan", "tools", True),
    ("plan", "delegate", True),
    ("plan", "finalize", True),
    ("tools", "plan", False),
    ("delegate", "plan", False),
    ("finalize", "plan", True),
    ("finalize", "__end__", True),
)
"""Edges of every agent: source, target, and whether the edge is conditional."""
APPROVAL_EDGES = (("plan", "approve", True), ("approve", "plan", False))
"""Edges of an agent whose file asks for approvals."""


def graph(
    config: ConfigOption = AGENT_FILE,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Build the agent, without its model, and print LangGraph's drawing.")
    ] = False,
) -> None:
    """Print an agent's graph as a Mermaid flowchart, with the tools and delegates that its file names."""
    from graph_agent.agent_file.spec import load_spec

    spec = load_spec(config)
    typer.echo(asyncio.run(_draw_compiled(spec)) if compiled else mermaid(spec))


async def _draw_compiled(spec: AgentSpec) -> str:
    from graph_agent.agent_file.factory import open_parts
    from graph_agent.models.scripted import MockChatModel

    async with open_parts(spec, MockChatModel(responses=["OK"])) as agent:
        drawn: str = agent.get_graph().draw_mermaid()
    return drawn


def mermaid(spec: AgentSpec) -> str:
    """Return the Mermaid text of an agent's graph."""
    tools = [name.replace(":", ".").rpartition(".")[2] for name in spec.tools]
    tools += [f"{name} (MCP)" for name in spec.mcp_servers]
    asks = spec.approve is not None or spec.config.get("approve") is not None
    edges = (*EDGES, *APPROVAL_EDGES) if asks else EDGES
    lines = [
        "---",
        f"title: {_quoted(spec.name)}",
        "---",
        "flowchart TD",
        "    __start__([start])",
        "    plan[plan]",
        f"    tools[{_label('tools', tools)}]",
        f"    delegate[{_label('delegate', [each.name or str(each.agent) for each in spec.delegates])}]",
        *(["    approve[approve]"] if asks else []),
        "    finalize[finalize]",
        "    __end__([end])",
        *(f"    {source} {'-.->' if conditional else '-->'} {target}" for source, target, conditional in edges),
    ]
    return "\n".join(lines)


def _label(node: str, names: list[str]) -> str:
    return _quoted("<br/>".join([node, *map(_escaped, names)]))


def _quoted(text: str) -> str:
    return f'"{printable(text).replace(chr(34), "#quot;")}"'


def _escaped(text: str) -> str:
    return text.replace("&", "#amp;").replace("<", "#lt;").replace(">", "#gt;")
