"""Servers that use the protocol's freedom: schemas with references, tools as tasks, links, and lists left out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.mcp import McpTools, open_mcp_tools
from tests.support.agents import asks
from tests.support.mcp_servers import running
from tests.support.warm_process import warm_python

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCRIPT = str(Path(running.__file__).with_name("plain_server.py"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tools() -> AsyncIterator[McpTools]:
    connection = {"transport": "stdio", "command": warm_python(), "args": [SCRIPT], "resources": True}
    async with open_mcp_tools({"plain": connection}) as tools:
        yield tools


async def test_tools_that_no_call_can_reach_are_left_out_alone(tools: McpTools) -> None:
    model = ScriptedChatModel(["Hello."])
    await Session(create_graph_agent(model, tools=tools, checkpointer=InMemorySaver()), "s").run("Hi.")
    assert (tools.failed, model.requests[0].tool_names) == (
        {},
        ["referring", "links", "files", "plain_list_resources", "plain_read_resource"],
    )


async def test_properties_that_a_schema_refers_to_are_offered(tools: McpTools) -> None:
    referring = next(tool for tool in tools if tool.name == "referring")
    model = ScriptedChatModel([asks(("c", "referring", {"word": "sea"})), "Done."])
    result = await Session(create_graph_agent(model, tools=tools, checkpointer=InMemorySaver()), "s").run("Find it.")
    assert (referring.args, result.results) == ({"word": {"type": "string"}}, {"c": '{"word": "sea"}'})


async def test_a_resource_link_is_text_that_every_provider_takes(tools: McpTools) -> None:
    model = ScriptedChatModel([asks(("c", "links", {})), "Done."])
    await Session(create_graph_agent(model, tools=tools, checkpointer=InMemorySaver()), "s").run("Link it.")
    content: Any = next(message.content for message in model.requests[1].messages if message.type == "tool")
    assert [block["type"] for block in content] == ["text"]
    assert json.loads(content[0]["text"]) == {
        "type": "resource_link",
        "uri": "plain://report",
        "name": "report",
        "description": "Of today.",
        "mimeType": "text/plain",
    }


async def test_resources_are_listed_without_templates(tools: McpTools) -> None:
    listed = await next(tool for tool in tools if tool.name == "plain_list_resources").ainvoke({})
    assert json.loads(listed) == {"name": "report", "uri": "plain://report"}


async def test_text_that_is_sent_as_bytes_is_text(tools: McpTools) -> None:
    named = {tool.name: tool for tool in tools}
    read = await named["plain_read_resource"].ainvoke({"uri": "plain://report"})
    texts = [block["text"] for block in await named["files"].ainvoke({})]
    unknown = "[plain://report: unknown type, 9 bytes, which are not text]"
    assert (read, texts) == ("städte;1", ["städte;1", unknown])
