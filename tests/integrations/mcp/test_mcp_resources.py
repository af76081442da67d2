"""Resources and prompts of a server are tools, if its connection asks for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.marks import marked
from graph_agent.mcp import McpCallError, McpTools, open_mcp_tools
from tests.support.agents import asks
from tests.support.mcp_servers.running import HttpServer, asking

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tools(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpTools]:
    folder = tmp_path_factory.mktemp("resources")
    async with open_mcp_tools({"hotel": asking(folder, resources=True, prompts=True)}) as tools:
        yield tools


async def call(tools: McpTools, tool_name: str, **arguments: Any) -> Any:
    return await next(tool for tool in tools if tool.name == tool_name).ainvoke(arguments)


async def test_resources_are_listed_and_read(tools: McpTools) -> None:
    listed = [json.loads(line) for line in (await call(tools, "hotel_list_resources")).splitlines()]
    read = await call(tools, "hotel_read_resource", uri="hotel://rooms/7")
    binary = await call(tools, "hotel_read_resource", uri="hotel://picture")
    addresses = [each.get("uri") or each["uriTemplate"] for each in listed]
    assert addresses == ["hotel://house", "hotel://picture", "hotel://rooms/{room}"]
    assert (read, binary) == (
        "Room 7 has a view.",
        "[hotel://picture: image/png, 8 bytes, which are not text]",
    )


async def test_prompts_are_listed_and_filled_in(tools: McpTools) -> None:
    listed = json.loads(await call(tools, "hotel_list_prompts"))
    text = await call(tools, "hotel_get_prompt", name="greet", arguments={"guest": "Ann"})
    assert (listed["name"], text) == ("greet", "user: Write a greeting for Ann.")


async def test_a_missing_resource_is_an_error_result(tools: McpTools) -> None:
    with pytest.raises(ToolException, match="MCP server 'hotel': Unknown resource: hotel://cellar"):
        await call(tools, "hotel_read_resource", uri="hotel://cellar")


@pytest.mark.parametrize(("declared", "tainted"), [({}, [[["room"]]]), ({"source": "trusted"}, [])])
async def test_a_server_is_untrusted_unless_it_is_declared_trusted(
    tmp_path: Path, declared: dict[str, Any], tainted: list[Any]
) -> None:
    def reserve(room: str) -> str:
        """Reserve a room."""
        return f"Reserved {room}."

    script = [
        asks(("1", "hotel_read_resource", {"uri": "hotel://rooms/7"})),
        asks(("2", "reserve", {"room": "Room 7"})),
        "Done.",
    ]
    async with open_mcp_tools({"hotel": asking(tmp_path, resources=True, **declared)}) as tools:
        agent = create_graph_agent(
            ScriptedChatModel(script),
            tools=[*tools, marked(reserve, sinks=["room"])],
            config=LoopConfig(origins=True),
            checkpointer=InMemorySaver(),
        )
        result = await agent.session("s").run("Book a room with a view.")

    assert [each.value["tainted"] for each in result.interrupts] == tainted


async def test_they_are_marked_as_reading(tools: McpTools) -> None:
    marks = {"effect": "read", "idempotent": True, "mcp_server": "hotel"}
    assert [tool.metadata for tool in tools if tool.name.startswith("hotel_")] == [marks] * 4


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
async def test_over_http_a_lost_request_is_an_error_and_a_restarted_server_is_used(
    tmp_path: Path, transport: str
) -> None:
    async with (
        HttpServer(tmp_path, transport, PROGRAM="asking_server") as server,
        open_mcp_tools({"hotel": server.connection(resources=True)}) as tools,
        asyncio.timeout(60),
    ):
        server.kill()
        with pytest.raises(McpCallError, match="'hotel' cannot be reached: ConnectError") as raised:
            await call(tools, "hotel_read_resource", uri="hotel://house")
        await server.start()
        up = await call(tools, "hotel_read_resource", uri="hotel://house")
        server.kill()
        await server.start()
        # The new server does not know the session.
        again = await call(tools, "hotel_list_resources")
    assert (raised.value.may_have_run, up, len(again.splitlines())) == (False, "Ten rooms.", 3)
