"""Results of one MCP server reach the model, the stream and the person."""

from __future__ import annotations

import asyncio
import base64
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypedDict, cast

import mcp.types as types
import pytest
import pytest_asyncio
from langchain_core.messages import ToolMessage
from langchain_core.tools import ToolException
from langchain_mcp_adapters.callbacks import CallbackContext
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.base._internal.text import text_of
from graph_agent.errors import SyncInLoopError
from graph_agent.integrations.mcp import loop_bridge
from graph_agent.integrations.mcp.client_session import elicitation_for
from graph_agent.integrations.mcp.connections import ServerConfig
from graph_agent.integrations.mcp.server import McpServer
from graph_agent.integrations.mcp.tools import to_langchain_tool
from graph_agent.mcp import McpTools, open_mcp_tools
from tests.support.agents import asks
from tests.support.mcp_servers import running
from tests.support.mcp_servers.demo_server import PIXEL
from tests.support.mcp_servers.running import lines, stdio, text, until
from tests.support.warm_process import warm_python

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mcp")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tools(folder: Path) -> AsyncIterator[McpTools]:
    async with open_mcp_tools({"demo": stdio(folder)}) as tools:
        yield tools


async def message(tools: McpTools, name: str) -> ToolMessage:
    tool = next(tool for tool in tools if tool.name == name)
    result = await tool.ainvoke({"type": "tool_call", "id": "c1", "name": name, "args": {}})
    assert isinstance(result, ToolMessage)
    return result


def without_ids(content: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.items() if key != "id"} for block in content]


async def test_the_session_is_kept(tools: McpTools, folder: Path) -> None:
    pids = {await text(tools, "pid") for _ in range(5)}
    assert lines(folder, "starts") == list(pids)


async def test_names_and_marks(tools: McpTools) -> None:
    metadata = {tool.name: tool.metadata for tool in tools}
    assert metadata["dotted.echo"] == {
        "title": "A reader",
        "readOnlyHint": True,
        "effect": "read",
        "idempotent": False,
        "mcp_server": "demo",
    }
    assert metadata["room"] == {"effect": "write", "idempotent": False, "mcp_server": "demo"}
    assert metadata["die_idempotent"] == {
        "idempotentHint": True,
        "effect": "write",
        "idempotent": True,
        "mcp_server": "demo",
    }


async def test_the_schema_is_the_servers_and_always_has_properties(tools: McpTools) -> None:
    bare = types.Tool(name="bare", inputSchema={"type": "object"})
    server = McpServer(ServerConfig(name="demo", transport="stdio", options={}), None)
    assert to_langchain_tool(server, bare, loop_bridge.LoopBridge()).args == {}
    assert next(tool for tool in tools if tool.name == "dotted.echo").args["text"]["type"] == "string"


async def test_arguments_may_have_names_that_langchain_uses(tools: McpTools) -> None:
    names = {"config": "a", "runtime": "b", "run_manager": "c", "callbacks": "d"}
    assert await text(tools, "odd_names", **names) == "a b c d"


async def test_structured_content_is_the_artifact(tools: McpTools) -> None:
    result = await message(tools, "room")
    assert result.artifact == {"structured_content": {"number": 7, "sea_view": True}}


async def test_a_result_is_held_to_its_servers_schema_in_bounded_time() -> None:
    script = str(Path(running.__file__).with_name("slow_schema_server.py"))
    connection = {"transport": "stdio", "command": warm_python(), "args": [script]}
    async with open_mcp_tools({"slow": connection}) as slow:
        with pytest.raises(ToolException, match="takes too long to be searched for"):
            await message(slow, "word")


async def test_structured_content_without_text_is_shown_to_the_model(tools: McpTools) -> None:
    result = await message(tools, "room_without_text")
    assert without_ids(result.content) == [{"type": "text", "text": '{"number": 7, "name": "Süd"}'}]
    assert result.artifact == {"structured_content": {"number": 7, "name": "Süd"}}


async def test_images_and_audio_pass_through(tools: McpTools) -> None:
    picture, sound = await message(tools, "picture"), await message(tools, "sound")
    assert without_ids(picture.content) == [
        {"type": "text", "text": "a pixel"},
        {"type": "image", "base64": base64.b64encode(PIXEL).decode(), "mime_type": "image/png"},
    ]
    assert without_ids(sound.content) == [
        {"type": "file", "base64": base64.b64encode(b"RIFF").decode(), "mime_type": "audio/wav"}
    ]


async def test_an_error_result_raises_its_text(tools: McpTools) -> None:
    with pytest.raises(ToolException, match="no room left"):
        await text(tools, "fails")


async def test_elicitation_without_a_callback_is_reported_as_unsupported(tools: McpTools) -> None:
    with pytest.raises(ToolException, match="Elicitation not supported"):
        await text(tools, "confirm")


class State(TypedDict):
    output: str


def counting_graph(tools: McpTools) -> Any:
    async def count(state: State) -> State:
        return {"output": await text(tools, "counts", to=2)}

    return StateGraph(State).add_node("count", count).add_edge(START, "count").compile()


PROGRESS = [
    {"type": "mcp_progress", "server": "demo", "tool": "counts", "progress": n, "total": 2, "message": f"step {n}"}
    for n in (1, 2)
]


async def test_progress_is_written_to_the_custom_stream(tools: McpTools) -> None:
    graph = counting_graph(tools)
    assert [part async for part in graph.astream({"output": ""}, stream_mode="custom")] == PROGRESS


async def test_progress_outside_a_graph_is_no_error(tools: McpTools) -> None:
    assert await text(tools, "counts", to=2) == "counted"


async def test_calls_from_another_loop_return_results_and_progress(tools: McpTools) -> None:
    async def run() -> list[Any]:
        graph = counting_graph(tools)
        return [part async for part in graph.astream({"output": ""}, stream_mode=["custom", "values"])]

    parts = await asyncio.to_thread(lambda: asyncio.run(run()))
    assert parts == [
        ("values", {"output": ""}),
        *(("custom", event) for event in PROGRESS),
        ("values", {"output": "counted"}),
    ]


async def test_a_thread_may_call_synchronously(tools: McpTools) -> None:
    echo = next(tool for tool in tools if tool.name == "dotted.echo")
    (block,) = await asyncio.to_thread(echo.invoke, {"text": "hi"})
    assert block["text"] == "hi"


async def test_a_synchronous_call_in_a_running_loop_is_refused(tools: McpTools) -> None:
    echo = next(tool for tool in tools if tool.name == "dotted.echo")
    with pytest.raises(SyncInLoopError, match="which it would block"):
        echo.invoke({"text": "hi"})


@pytest.mark.parametrize("sync", [True, False])
async def test_a_call_that_waits_for_a_blocked_loop_is_refused(
    tools: McpTools, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    monkeypatch.setattr(loop_bridge, "START_TIMEOUT_S", 0.05)
    echo = next(tool for tool in tools if tool.name == "dotted.echo")
    caught: list[BaseException] = []

    def call() -> None:
        try:
            echo.invoke({"text": "hi"}) if sync else asyncio.run(echo.ainvoke({"text": "hi"}))
        except SyncInLoopError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()  # as graph.invoke would, in the thread of the loop that owns the sessions
    assert "is blocked, most likely by a synchronous call" in str(caught[0])


async def test_a_cancelled_call_is_cancelled_on_the_server(tools: McpTools, folder: Path) -> None:
    before = await text(tools, "pid")
    call = asyncio.create_task(text(tools, "hang"))
    await until(lambda: lines(folder, "effects") == ["hanging"])

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    await until(lambda: lines(folder, "effects") == ["hanging", "cancelled"])
    assert await text(tools, "pid") == before


async def test_cancelling_at_the_moment_a_call_begins_is_not_lost() -> None:
    owner, begun, cancelled = loop_bridge.LoopBridge(), threading.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def run() -> None:
        call = asyncio.create_task(owner.run(work))
        await asyncio.sleep(0)
        begun.wait(30)  # blocking: this loop sees the start of the work in the pass in which it cancels it
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    async with asyncio.timeout(30):
        await asyncio.to_thread(lambda: asyncio.run(run()))
        await cancelled.wait()


async def test_cancelling_on_another_loop_reaches_the_server(tools: McpTools, folder: Path) -> None:
    (folder / "effects").unlink(missing_ok=True)

    async def run() -> None:
        call = asyncio.create_task(text(tools, "hang"))
        await until(lambda: lines(folder, "effects") == ["hanging"])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    await asyncio.to_thread(lambda: asyncio.run(run()))
    await until(lambda: lines(folder, "effects") == ["hanging", "cancelled"])


async def test_elicitation_is_answered_and_other_calls_go_on_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked, decided = asyncio.Event(), asyncio.Event()
    answers: list[types.ElicitResult | Exception] = [
        types.ElicitResult(action="accept", content={"sure": True}),
        LookupError("nobody is there"),
    ]
    seen: list[Any] = []

    async def ask(context: Any, params: types.ElicitRequestParams, call: CallbackContext) -> types.ElicitResult:
        seen.append((params.message, call.server_name))
        asked.set()
        await decided.wait()
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with open_mcp_tools({"demo": stdio(tmp_path)}, on_elicitation=ask) as tools:
        confirm = asyncio.create_task(text(tools, "confirm"))
        await asked.wait()
        assert await text(tools, "dotted.echo", text="meanwhile") == "meanwhile"
        decided.set()
        assert await confirm == "accept True"
        with pytest.raises(ToolException, match="The client could not ask: LookupError"):
            await text(tools, "confirm")
    assert seen == [("Really?", "demo")] * 2
    assert "The elicitation callback for the MCP server 'demo' failed" in caplog.text


async def test_the_elicitation_callback_may_have_the_sdks_shape() -> None:
    async def ask(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    fitted = elicitation_for("demo", ask)
    assert fitted is not None
    answer = await fitted(cast("Any", None), cast("Any", None))
    assert answer == types.ElicitResult(action="decline")
    assert elicitation_for("demo", None) is None


async def test_a_call_sends_its_idempotency_key(tools: McpTools) -> None:
    script = [asks(("c1", "key", {})), "No more actions.", "Done."]
    agent = create_graph_agent(ScriptedChatModel(script), tools=tools, checkpointer=InMemorySaver())

    result = await Session(agent, "s1").run("go")

    key = text_of(result.results["c1"])
    assert (re.fullmatch("[0-9a-f]{64}", key) is not None, await text(tools, "key")) == (True, "None")


async def test_a_connection_declares_whose_text_the_results_have(folder: Path) -> None:
    connection = {**stdio(folder), "source": ["body"], "sinks": {"dotted.echo": ["text"]}}
    async with open_mcp_tools({"demo": connection}) as tools:
        metadata = {tool.name: tool.metadata or {} for tool in tools}

    assert [(metadata[name]["source"], metadata[name].get("sinks")) for name in ("dotted.echo", "room")] == [
        (("body",), ("text",)),
        (("body",), None),
    ]
