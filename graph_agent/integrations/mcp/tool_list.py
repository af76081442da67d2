"""Lists the tools of an MCP server, without those that cannot be offered."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import islice
from typing import Any

import mcp.types as types
from langchain_core.utils.json_schema import dereference_refs

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.integrations.mcp.client_session import McpSession, read_pages

logger = get_logger("graph_agent.mcp")

MOST_SERVER_TOOLS = 1_000
"""Maximum number of one server's tools that are offered; no provider accepts as many."""
_MOST_PARTS = 50_000
"""Maximum parts of a tool's schema with references expanded; each level of `$ref` can double them."""


async def list_tools(session: McpSession) -> dict[str, types.Tool]:
    """Return name → definition of a server's tools.

    Left out, and logged, are a tool that cannot be offered to a model, the second tool of a name, and all tools beyond
    `MOST_SERVER_TOOLS`. Raises `McpError` if the server answers with an error.
    """
    listed: dict[str, types.Tool] = {}
    async with aclosing(read_pages(session.list_tools)) as pages:
        async for page in pages:
            for tool in page.tools[:MOST_SERVER_TOOLS]:
                if listed.setdefault(tool.name, tool) is not tool:
                    logger.warning("An MCP server lists the tool %r twice; the second one is ignored.", tool.name)
            if len(listed) > MOST_SERVER_TOOLS or len(page.tools) > MOST_SERVER_TOOLS:
                logger.warning("An MCP server lists more than %d tools; the others are left out.", MOST_SERVER_TOOLS)
                listed = dict(islice(listed.items(), MOST_SERVER_TOOLS))
                break
    # In a thread: the schemas are the server's.
    faults = await asyncio.to_thread(lambda: {name: fault for name, tool in listed.items() if (fault := _fault(tool))})
    for name, fault in faults.items():
        logger.warning("An MCP server's tool %r is left out: %s", name, fault)
        del listed[name]
    return listed


def _fault(tool: types.Tool) -> str:
    """Return why a tool cannot be offered, as a clause; empty if it can."""
    if tool.execution is not None and tool.execution.taskSupport == "required":
        return "it runs only as a task of MCP, which is not supported"
    try:
        if _is_large(tool.inputSchema):
            return f"its schema has more than {_MOST_PARTS} parts, with its references in place"
        dereference_refs(tool.inputSchema)
    except RecursionError:
        return "its schema is nested too deeply"
    except (KeyError, ValueError) as error:
        return f"its schema cannot be resolved: {error.args[0]}"
    return ""


def _is_large(schema: dict[str, Any]) -> bool:
    """Whether expanding a schema's references would give `_MOST_PARTS` parts or more; circles are expanded once."""
    left = _MOST_PARTS
    pending: list[tuple[Any, frozenset[str]]] = [(schema, frozenset())]
    while pending and left > 0:
        node, within = pending.pop()
        left -= 1
        if isinstance(node, list):
            pending += [(item, within) for item in node]
        elif isinstance(node, dict):
            if isinstance(reference := node.get("$ref"), str) and reference not in within:
                pending.append((_at(schema, reference), within | {reference}))
            pending += [(item, within) for key, item in node.items() if key != "$defs"]
    return left <= 0


def _at(schema: dict[str, Any], reference: str) -> Any:
    """Return the part of a schema at a local reference such as `#/$defs/Address`; None if there is none."""
    node: Any = schema
    for step in reference.removeprefix("#/").split("/"):
        if isinstance(node, list):
            node = node[int(step)] if step.isdigit() and int(step) < len(node) else None
        else:
            node = node.get(step) if isinstance(node, dict) else None
    return node
