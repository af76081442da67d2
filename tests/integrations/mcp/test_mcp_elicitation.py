"""A question of an MCP server is an interrupt, which people answer in this process or another one."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from graph_agent import RunResult, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import DecisionError
from graph_agent.mcp import McpTools, open_mcp_tools
from graph_agent.persistence import open_saver
from tests.support.agents import asks
from tests.support.mcp_servers.running import ROOT, HttpServer, asking, asking_servers, lines, text, until
from tests.support.warm_process import start_python

SCHEMA = {
    "properties": {"sure": {"title": "Sure", "type": "boolean"}},
    "required": ["sure"],
    "title": "Confirmation",
    "type": "object",
}
LOST = {
    "error": "MCP server 'hotel': the call of 'book' ended while it waited for a person's answer, which was not "
    "delivered; it may have taken effect."
}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asking")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tools(folder: Path) -> AsyncIterator[McpTools]:
    async with open_mcp_tools({"hotel": asking(folder)}) as tools:
        yield tools


def effects(folder: Path, room: str) -> list[str]:
    return [line.split()[0] for line in lines(folder, "effects") if line.endswith(f" {room}")]


def go_on(folder: Path) -> None:
    with (folder / "effects").open("a") as file:
        file.write("go on\n")


def session(tools: McpTools, *script: Any, id_: str = "s1") -> Session:
    return Session(create_graph_agent(ScriptedChatModel([*script]), tools=tools, checkpointer=InMemorySaver()), id_)


def messages(result: RunResult) -> list[str]:
    return [asked.value["message"] for asked in result.interrupts]


def book(*rooms: str) -> Any:
    return asks(*((f"c{room}", "book", {"room": room}) for room in rooms))


async def test_a_question_is_an_interrupt_and_its_answer_continues_the_open_call(tools: McpTools, folder: Path) -> None:
    agent = session(tools, book("1"), "Done.")
    waiting = await agent.run("go")
    result = await agent.resume({"action": "accept", "content": {"sure": True}})
    value = {
        "type": "elicitation",
        "server": "hotel",
        "id": "c1",
        "name": "book",
        "mode": "form",
        "message": "Book room 1?",
        "questions": [waiting.interrupts[0].value["questions"][0]],
        "repeatable": False,
        "requested_schema": SCHEMA,
    }
    assert [asked.value for asked in waiting.interrupts] == [value]
    assert (result.results, effects(folder, "1")) == ({"c1": "booked 1"}, ["begin", "booked"])


async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(
    tools: McpTools, folder: Path
) -> None:
    graph = create_graph_agent(ScriptedChatModel([book("2"), "Done."]), tools=tools, checkpointer=InMemorySaver())
    agent = Session(graph, "s1")
    await agent.run("go")
    with pytest.raises(DecisionError, match="'maybe' is not of type 'boolean'"):
        await agent.resume({"sure": "maybe"})
    # LangGraph's own API stores an answer before it is checked, so the question is repeated.
    thread: RunnableConfig = {"configurable": {"thread_id": "s1"}}
    await graph.ainvoke(Command(resume={"sure": 7}), thread)
    asked = (await graph.aget_state(thread)).interrupts
    result = await agent.resume("yes")
    assert [each.value["error"] for each in asked] == [
        'The answer does not fit the question: 7 is not of type \'boolean\'. Answer "accept", "decline", or "cancel".'
    ]
    assert (result.results, effects(folder, "2")) == ({"c2": "booked 2"}, ["begin", "booked"])


async def test_a_call_may_ask_twice(tools: McpTools, folder: Path) -> None:
    agent = session(tools, asks(("c1", "look", {"room": "3"})), "Done.")
    first = await agent.run("go")
    second = await agent.resume("yes")
    result = await agent.resume("Ann")
    assert (messages(first), messages(second)) == (["Look at 3?"], ["Who asks?"])
    assert (result.results, effects(folder, "3")) == ({"c1": "3 for Ann, 1 night(s)"}, ["look"])


async def test_calls_of_one_wave_ask_at_once_and_are_answered_one_by_one(tools: McpTools, folder: Path) -> None:
    agent = session(tools, book("4", "5"), "Done.")
    both = await agent.run("go")
    by_call = {asked.value["id"]: (asked.id, asked.value["message"]) for asked in both.interrupts}
    one = await agent.resume({by_call["c5"][0]: "yes"})
    result = await agent.resume({by_call["c4"][0]: "no"})
    assert {id_: message for id_, (_, message) in by_call.items()} == {"c4": "Book room 4?", "c5": "Book room 5?"}
    assert messages(one) == ["Book room 4?"]
    assert result.results == {"c4": "decline: not booked", "c5": "booked 5"}
    assert (effects(folder, "4"), effects(folder, "5")) == (["begin"], ["begin", "booked"])


async def test_a_url_is_shown_and_accepted_when_the_person_has_opened_it(tools: McpTools) -> None:
    agent = session(tools, asks(("c1", "pay", {})), "Done.")
    (asked,) = (await agent.run("go")).interrupts
    result = await agent.resume("accept")
    assert (asked.value["mode"], asked.value["url"]) == ("url", "https://pay.example/1")
    assert result.results == {"c1": "pay: accept"}


async def test_a_call_that_needs_an_opened_url_is_made_again_after_it(tools: McpTools) -> None:
    agent = session(tools, asks(("c1", "connect", {})), asks(("c2", "connect", {})), "Done.")
    (asked,) = (await agent.run("go")).interrupts
    result = await agent.resume("accept")
    assert (asked.value["url"], asked.value["repeatable"]) == ("https://account.example/2", True)
    assert result.results == {"c1": "connected", "c2": "connected"}


async def test_new_input_in_place_of_an_answer_ends_the_open_call(tools: McpTools, folder: Path) -> None:
    agent = session(tools, book("6"), book("7"), "Done.")
    await agent.run("go")
    await agent.run("never mind")
    await until(lambda: "cancelled" in effects(folder, "6"))
    result = await agent.resume("yes")
    assert result.results == {"c7": "booked 7"}


async def test_after_a_crash_only_calls_that_may_run_twice_are_repeated(tmp_path: Path) -> None:
    ended = start_python(
        ["tests.support.asked_run", str(tmp_path)],
        cwd=ROOT,
        env=os.environ,
        stdin=subprocess.DEVNULL,
        stdout=1,
        stderr=2,
    )
    assert await asyncio.to_thread(ended.wait) == -9
    async with open_saver(f"sqlite:///{tmp_path}/db") as saver, open_mcp_tools(asking_servers(tmp_path)) as tools:

        def again(id_: str) -> Session:
            return Session(create_graph_agent(ScriptedChatModel(["Done."]), tools=tools, checkpointer=saver), id_)

        unanswered = await again("book").resume()
        assert (messages(unanswered), effects(tmp_path, "1")) == (["Book room 1?"], ["begin"])

        written = await again("book").resume("yes")
        statuses = [event["status"] for event in await again("book").events() if event["type"] == "tool_result"]
        assert (written.results, statuses, effects(tmp_path, "1")) == ({"c": LOST}, ["unknown"], ["begin"])

        repeated = await again("repeat").resume("yes")
        assert repeated.results == {"c": "booked 2"}
        assert effects(tmp_path, "2") == ["begin", "begin", "booked"]

        second = await again("look").resume("yes")
        read = await again("look").resume({"name": "Ann", "nights": 2})
        assert (messages(second), read.results) == (["Who asks?"], {"c": "3 for Ann, 2 night(s)"})
        assert effects(tmp_path, "3") == ["look", "look"]

        refused = await again("connect").resume("accept")
        assert refused.results == {"c": "connected"}


@asynccontextmanager
async def two_processes(folder: Path, *scripts: list[Any]) -> AsyncIterator[list[Session]]:
    """One session in two agents, each with servers of its own, as worker processes have them."""
    saver, store = InMemorySaver(), InMemoryStore()
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_mcp_tools({"hotel": asking(folder)})) for _ in scripts]
        graphs = [
            create_graph_agent(ScriptedChatModel(script), tools=tools, checkpointer=saver, store=store)
            for script, tools in zip(scripts, opened, strict=True)
        ]
        yield [Session(graph, "s1") for graph in graphs]


async def test_an_answer_that_another_process_receives_continues_the_open_call(tmp_path: Path) -> None:
    async with two_processes(tmp_path, [book("1")], ["Done."]) as (first, second):
        waiting = await first.run("go")
        result = await second.resume("yes")
    assert (messages(waiting), result.results) == (["Book room 1?"], {"c1": "booked 1"})
    assert effects(tmp_path, "1") == ["begin", "booked"]


@pytest.mark.parametrize("last", [0, 1], ids=["where it was made", "elsewhere"])
async def test_questions_of_a_call_are_answered_in_any_process(tmp_path: Path, last: int) -> None:
    swap = asks(("c", "swap", {"room": "1"}))
    async with two_processes(tmp_path, [swap, *["Done."] * (1 - last)], ["Done."] * last) as sessions:
        await sessions[0].run("go")
        waiting = await sessions[1].resume({"sure": True})
        result = await sessions[last].resume({"sure": False})
    assert (messages(waiting), result.results) == (["Sure?"], {"c": "True False"})
    assert effects(tmp_path, "1") == ["begin", "swapped"]


async def test_a_call_that_no_process_holds_any_more_is_lost(tmp_path: Path) -> None:
    saver, store = InMemorySaver(), InMemoryStore()
    results: list[Any] = []
    for script in ([book("1")], ["Done."]):
        async with open_mcp_tools({"hotel": asking(tmp_path)}) as tools:
            graph = create_graph_agent(ScriptedChatModel(script), tools=tools, checkpointer=saver, store=store)
            agent = Session(graph, "s1")
            results.append(await (agent.resume("yes") if results else agent.run("go")))
    assert results[1].results == {"c1": LOST}
    assert store.search(("graph_agent", "mcp")) == []


async def test_a_call_whose_question_expired_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_mcp_tools({"hotel": asking(tmp_path, answer_timeout_s=0.01)}) as tools:
        agent = session(tools, book("7"), "Done.")
        await agent.run("go")
        await until(lambda: "its question had no answer within 0.01 s" in caplog.text)
        assert (await agent.resume("yes")).results == {"c7": LOST}


@pytest.mark.parametrize("over_http", [False, True])
async def test_a_question_never_reaches_another_session(tmp_path: Path, over_http: bool) -> None:
    async with connected(tmp_path, over_http) as tools:
        other = session(tools, asks(("w", "wait", {"line": "go on"})), "Done.", id_="other")
        waits = asyncio.create_task(other.run("wait"))
        await until(lambda: "waiting" in lines(tmp_path, "effects"))
        asking_run = asyncio.create_task(session(tools, book("7"), "Done.").run("go"))
        await until(lambda: effects(tmp_path, "7") == ["begin"])
        if not over_http:
            # Nothing in the question names its call, so it waits until only one call remains.
            go_on(tmp_path)
        waiting = await asking_run
        go_on(tmp_path)
        assert ((await waits).results, messages(waiting)) == ({"w": "waited"}, ["Book room 7?"])


@asynccontextmanager
async def connected(folder: Path, over_http: bool) -> AsyncIterator[McpTools]:
    async with AsyncExitStack() as stack:
        connection = asking(folder)
        if over_http:
            connection = (await stack.enter_async_context(HttpServer(folder, PROGRAM="asking_server"))).connection()
        yield await stack.enter_async_context(open_mcp_tools({"hotel": connection}))


async def test_questions_are_refused_outside_an_agent_and_by_setting(tmp_path: Path) -> None:
    async with open_mcp_tools({"hotel": asking(tmp_path)}) as tools:
        with pytest.raises(ToolException, match="Elicitation not supported"):
            await text(tools, "book", room="7")
    async with open_mcp_tools({"hotel": asking(tmp_path, elicitation="refuse")}) as tools:
        result = await session(tools, book("7"), "Done.").run("go")
    assert "Elicitation not supported" in str(result.results["c7"])
