"""Runs that have lost their session: nothing is stored after another run has continued it.

Two runs of one session are let into one process here, as if a lock had been lost: each has a saver of its own, and the
savers are treated as different databases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.types import Command, interrupt
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state import locks as places
from graph_agent.errors import SessionBusyError, SessionLostError
from graph_agent.persistence import open_saver
from tests.support.agents import asks, dialogue, marked, says, thread
from tests.support.gates import Gate, gated_tool
from tests.support.postgres_server import on_postgres

pytestmark = pytest.mark.sampled(3)  # one kind of database for each test, in turn

WORK = asks(("1", "work", {}))
DONE = ["No more actions.", "Done."]


def answering(text: str) -> list[str]:
    """The replies of an agent with tools that answers at once."""
    return ["No more actions.", text]


class Encrypted(AsyncPostgresSaver):
    """A program's own kind of LangGraph's saver."""

    puts = 0

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        self.puts += 1
        return await super().aput(*args, **kwargs)


@asynccontextmanager
async def pooled(url: str) -> AsyncIterator[AsyncPostgresSaver]:
    """LangGraph's saver over a pool, as a server supplies it."""
    options = {"autocommit": True, "prepare_threshold": None, "row_factory": dict_row}
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(url, kwargs=options, min_size=1, open=False)
    async with pool:
        yield AsyncPostgresSaver(pool)


KINDS: dict[str, Callable[[str], AbstractAsyncContextManager[Any]]] = {
    "sqlite": open_saver,
    "postgres": open_saver,
    "supplied pool": pooled,
    "supplied connection": Encrypted.from_conn_string,
}


class Processes:
    """Savers of one database, each for a process that does not see the locks of the others."""

    def __init__(self, url: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._url = url
        self._open = KINDS[kind]
        self._patch = monkeypatch

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[Any]:
        async with self._open(self._url) as saver:
            if self._open is not open_saver:
                await saver.setup()
            self._patch.setitem(places._known, id(saver), object())
            yield saver


@pytest.fixture(params=["sqlite", *(pytest.param(kind, marks=on_postgres) for kind in KINDS if kind != "sqlite")])
def processes(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    url = f"sqlite:///{tmp_path}/s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return Processes(url, request.param, monkeypatch)


@pytest.fixture
async def savers(processes: Processes) -> AsyncIterator[tuple[Any, Any]]:
    async with processes.saver() as stale, processes.saver() as other:
        yield stale, other


def agent(script: list[str], saver: Any, tools: list[BaseTool], **config: Any) -> Any:
    model = ScriptedChatModel(script)
    return create_graph_agent(model, tools=tools, checkpointer=saver, config=LoopConfig(**config))


async def conversation(graph: Any) -> list[tuple[str, str]]:
    return dialogue((await graph.aget_state(thread())).values["messages"])


async def stored_results(saver: Any) -> list[str]:
    """The texts of all tool messages in the pending writes of any checkpoint."""
    return [
        message.text
        async for found in saver.alist(thread())
        for _, channel, value in found.pending_writes
        if channel == "messages"
        for message in value
        if message.type == "tool"
    ]


async def begun(graph: Any, gate: Gate, given: Any = None, config: Any = None) -> asyncio.Task[Any]:
    """A run that waits at a gate."""
    run = asyncio.create_task(graph.ainvoke(given or says("go"), config or thread()))
    await gate.reached()
    # A read of the same saver returns after the writes that the run has queued are committed.
    await graph.aget_state(thread())
    return run


async def test_a_turn_is_not_overwritten_by_a_run_that_has_lost_its_session(savers: tuple[Any, Any]) -> None:
    gate = Gate()
    stale = await begun(agent([WORK, *DONE], savers[0], [gated_tool(gate)]), gate)
    other = agent(["Mine."], savers[1], [])
    answer = (await Session(other, "s1").run("now me")).answer
    before = await conversation(other)
    gate.open()

    with pytest.raises(SessionLostError, match="'s1' was continued by another run"):
        await stale

    assert (answer, await conversation(other), "worked" in await stored_results(savers[1])) == ("Mine.", before, False)


async def test_an_input_that_another_run_has_taken_since_it_was_found_new_is_not_run_again(
    savers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, other = agent(["Twice."], savers[0], []), agent(["Once."], savers[1], [])
    read, answers = savers[0].aget_tuple, list[str]()

    async def read_before_a_pause(config: Any) -> Any:
        found = await read(config)
        if not answers:
            answers.append((await Session(other, "s1").run("go", input_id="i1")).answer)
        return found

    monkeypatch.setattr(savers[0], "aget_tuple", read_before_a_pause)
    with pytest.raises(SessionLostError, match="which was stored after this run began"):
        await Session(stale, "s1").run("go", input_id="i1")

    assert (answers, await conversation(other)) == (["Once."], [("human", "go"), ("ai", "Once.")])


@pytest.mark.parametrize("ledger", [False, True])
async def test_of_two_runs_that_resume_from_one_checkpoint_the_later_one_counts(
    savers: tuple[Any, Any], ledger: bool
) -> None:
    gates = [Gate(), Gate()]
    stale_graph, owner_graph = (
        agent([WORK, *DONE], saver, [gated_tool(gate, effect="write", idempotent=True)], effect_ledger=ledger)
        for saver, gate in zip(savers, gates, strict=True)
    )
    stale = await begun(stale_graph, gates[0])
    owner_graph.builder.model.responses[:1] = []
    owner = asyncio.create_task(Session(owner_graph, "s1").resume())
    await gates[1].reached()
    gates[0].open()
    with pytest.raises(SessionLostError):
        await stale
    between = await stored_results(savers[1])
    gates[1].open()

    assert (between, (await owner).answer) == ([], "Done.")


async def test_a_writing_call_does_not_start_after_the_session_is_lost(savers: tuple[Any, Any]) -> None:
    gate, ran = Gate(), list[str]()

    @tool
    async def write() -> str:
        """Change something."""
        ran.append("stale")
        return "written"

    wave = asks(("1", "work", {}), ("2", "write", {}))
    config = {"max_parallel_calls": 1, "effect_ledger": True}
    tools = [marked(gated_tool(gate), effect="read"), write]
    stale = await begun(agent([asks(("1", "work", {})), wave, *DONE], savers[0], tools, **config), gate)
    await Session(agent(["Mine."], savers[1], []), "s1").run("now me")
    gate.open()
    with pytest.raises(SessionLostError):
        await stale

    assert ran == []


async def test_a_result_that_comes_after_another_run_has_loaded_the_session_is_refused(
    savers: tuple[Any, Any],
) -> None:
    gates = [Gate(), Gate()]
    wave = asks(("1", "work", {}), ("2", "last", {}))
    tools = [gated_tool(gates[0]), gated_tool(gates[1], "last")]
    stale = await begun(agent([wave, *DONE], savers[0], tools), gates[0])
    await gates[1].reached()
    held = Gate()

    async def slow(config: Any) -> Any:
        found = await type(savers[1]).aget_tuple(savers[1], config)
        if not held._reached.is_set() and "__pregel_runtime" in config["configurable"]:
            await held.passing()
        return found

    savers[1].aget_tuple = slow
    other = agent(["Mine."], savers[1], [])
    taking = asyncio.create_task(other.ainvoke(says("now me"), thread()))
    await held.reached()
    gates[0].open()
    async with asyncio.timeout(30):
        while not await stored_results(savers[0]):
            await asyncio.sleep(0.002)
    held.open()

    # The later run has the session; the other has loaded a state that is outdated.
    with pytest.raises(SessionLostError, match="has written beside checkpoint"):
        await taking
    gates[1].open()
    assert (await stale)["messages"][-1].text == "Done."


async def test_a_run_that_has_gone_back_is_fenced_as_well(savers: tuple[Any, Any]) -> None:
    gate = Gate()
    graph = agent([*answering("One."), *answering("Two."), WORK, *DONE], savers[0], [gated_tool(gate)])
    await graph.ainvoke(says("first"), thread())
    older = (await graph.aget_state(thread())).config
    await graph.ainvoke(says("second"), thread())
    stale = await begun(graph, gate, says("instead"), older)
    other = agent(["Mine."], savers[1], [])
    await Session(other, "s1").run("now me")
    before = await conversation(other)
    gate.open()

    with pytest.raises(SessionLostError):
        await stale

    assert await conversation(other) == before


async def test_an_answer_to_an_older_question_does_not_overwrite_a_later_turn(savers: tuple[Any, Any]) -> None:
    gate, asked = Gate(), list[str]()

    @tool
    async def ask() -> str:
        """Ask, and take long."""
        asked.append(str(interrupt("Sure?")))
        await gate.passing()
        return "asked"

    graph = agent([asks(("1", "ask", {})), *DONE], savers[0], [ask])
    await graph.ainvoke(says("go"), thread())
    older = (await graph.aget_state(thread())).config
    stale = asyncio.create_task(graph.ainvoke(Command(resume="yes"), older))
    await gate.reached()
    other = agent(["Mine."], savers[1], [])
    await Session(other, "s1").run("now me")
    before = await conversation(other)
    gate.open()

    with pytest.raises(SessionLostError):
        await stale

    assert (await conversation(other), asked) == (before, ["yes"])


async def test_a_delegate_writes_nothing_once_the_session_is_lost(savers: tuple[Any, Any]) -> None:
    gate = Gate()

    def with_delegate(script: list[str], saver: Any) -> Any:
        inner = create_graph_agent(ScriptedChatModel([WORK, "No more actions.", "Worked."]), tools=[gated_tool(gate)])
        delegates = [GraphDelegate("d", "Works.", inner)]
        return create_graph_agent(ScriptedChatModel(script), delegates=delegates, checkpointer=saver)

    order = asks(("1", "delegate_to_d", {"task": "work"}))
    stale = await begun(with_delegate([order, *DONE], savers[0]), gate)
    other = with_delegate(answering("Mine."), savers[1])
    await Session(other, "s1").run("now me")
    before = await conversation(other)
    gate.open()

    with pytest.raises(SessionLostError):
        await stale

    assert await conversation(other) == before


async def test_a_blocking_run_is_fenced_as_well(savers: tuple[Any, Any]) -> None:
    gate = Gate()
    graph = agent([WORK, *DONE], savers[0], [gated_tool(gate)])
    stale = asyncio.create_task(asyncio.to_thread(graph.invoke, says("go"), thread()))
    await gate.reached()
    other = agent(["Mine."], savers[1], [])
    await asyncio.to_thread(other.invoke, says("now me"), thread())
    before = await conversation(other)
    gate.open()

    with pytest.raises(SessionLostError):
        await stale

    assert await conversation(other) == before


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_another_durability_is_fenced_as_well(savers: tuple[Any, Any], durability: Any) -> None:
    gate = Gate()
    graph = agent([WORK, *DONE], savers[0], [gated_tool(gate)])
    stale = asyncio.create_task(graph.ainvoke(says("go"), thread(), durability=durability))
    await gate.reached()
    other = agent(["Mine."], savers[1], [])
    async with asyncio.timeout(30):
        # What the run stores in the background is there.
        while durability == "async" and (await other.aget_state(thread())).next != ("tools",):
            await asyncio.sleep(0.002)
    await Session(other, "s1").run("now me")
    before = await conversation(other)
    gate.open()

    with pytest.raises(SessionLostError):
        await stale

    assert await conversation(other) == before


async def test_a_session_that_was_deleted_does_not_come_back(savers: tuple[Any, Any]) -> None:
    gate = Gate()
    stale = await begun(agent([WORK, *DONE], savers[0], [gated_tool(gate)]), gate)
    await savers[1].adelete_thread("s1")
    gate.open()

    with pytest.raises(SessionLostError):
        await stale

    assert [found async for found in savers[1].alist(thread())] == []


async def test_an_external_edit_is_not_overwritten(savers: tuple[Any, Any]) -> None:
    gate = Gate()
    stale = await begun(agent([WORK, *DONE], savers[0], [gated_tool(gate)]), gate)
    other = agent([], savers[1], [gated_tool(gate)])
    await other.aupdate_state(thread(), {"messages": [AIMessage("Noted.")]}, "plan")
    gate.open()

    with pytest.raises(SessionLostError):
        await stale

    assert (await conversation(other))[-1] == ("ai", "Noted.")


async def test_an_edit_of_a_running_session_is_refused(tmp_path: Path) -> None:
    gate = Gate()
    note = {"messages": [AIMessage("Noted.")]}
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        graph = agent([WORK, *DONE], saver, [gated_tool(gate)])
        run = await begun(graph, gate)
        with pytest.raises(SessionBusyError):
            await graph.aupdate_state(thread(), note, "plan")
        with pytest.raises(SessionBusyError):
            await asyncio.to_thread(graph.update_state, thread(), note, "plan")
        gate.open()

        assert (await run)["messages"][-1].text == "Done."


async def test_an_edit_by_a_tool_of_its_own_session_is_refused(tmp_path: Path) -> None:
    @tool
    async def edit() -> str:
        """Edit the session that runs this."""
        return str(await graph.aupdate_state(thread(), {"messages": [AIMessage("Noted.")]}, "plan"))

    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        graph = agent([asks(("1", "edit", {})), *DONE], saver, [edit])
        result = await Session(graph, "s1").run("go")

    assert (result.answer, "is running already" in result.results["1"]["error"]) == ("Done.", True)


async def test_an_edit_of_an_older_checkpoint_is_stored(processes: Processes) -> None:
    asked: list[str] = []

    @tool
    async def ask() -> str:
        """Ask a person."""
        asked.append(str(interrupt("Sure?")))
        return f"asked {asked[-1]}"

    async with processes.saver() as saver:
        graph = agent([asks(("1", "ask", {})), *DONE, *answering("Two."), *answering("Else."), *DONE], saver, [ask])
        await graph.ainvoke(says("go"), thread())
        question = (await graph.aget_state(thread())).config
        await graph.ainvoke(Command(resume="yes"), thread())
        first = (await graph.aget_state(thread())).config
        await graph.ainvoke(says("second"), thread())
        found = [await conversation(graph)]
        await graph.ainvoke(says("instead"), first)
        found.append(await conversation(graph))
        edited = await graph.aupdate_state(first, {"messages": [AIMessage("Noted.")]}, "finalize")
        found.append(await conversation(graph))
        await graph.aupdate_state(edited, {"messages": [AIMessage("Twice.")]}, "finalize")
        found.append(await conversation(graph))
        await graph.ainvoke(Command(resume="yes"), question)
        found.append(await conversation(graph))

    assert [[text for _, text in one][2:] for one in found] == [
        ["asked yes", "Done.", "second", "Two."],
        ["asked yes", "Done.", "instead", "Else."],
        ["asked yes", "Done.", "Noted."],
        ["asked yes", "Done.", "Noted.", "Twice."],
        # The branch of the older question is the newest; LangGraph keeps the answer that its checkpoint holds.
        ["asked yes", "Done."],
    ]


async def test_many_results_at_once_are_all_admitted(savers: tuple[Any, Any]) -> None:
    gate = Gate()
    calls: list[tuple[str, str, dict[str, Any]]] = [(str(number), "work", {}) for number in range(40)]
    graph = agent([asks(*calls), *DONE], savers[0], [gated_tool(gate)], max_parallel_calls=40)
    run = await begun(graph, gate)
    gate.open()

    result = await run

    assert ([m.text for m in result["messages"] if m.type == "tool"], result["messages"][-1].text) == (
        ["worked"] * 40,
        "Done.",
    )


async def run_past_the_end(
    savers: tuple[Any, Any], script: list[str], monkeypatch: pytest.MonkeyPatch, *tools: BaseTool
) -> tuple[asyncio.Task[Any], Any]:
    """A session's run, and another that runs between the end of the first and the read of its result."""
    gate = Gate()
    graph, other = agent(script, savers[0], list(tools)), agent(["Mine."], savers[1], [])
    read = graph.aget_state

    async def slow(config: Any, **options: Any) -> Any:
        await gate.passing()
        return await read(config, **options)

    monkeypatch.setattr(graph, "aget_state", slow)
    stale = asyncio.create_task(Session(graph, "s1").run("go"))
    await gate.reached()
    await Session(other, "s1").run("now me")
    gate.open()
    return stale, other


async def test_a_result_is_the_runs_own_where_another_run_has_followed_it(
    savers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, other = await run_past_the_end(savers, ["Yours."], monkeypatch)

    assert ((await stale).answer, [text for _, text in await conversation(other)]) == (
        "Yours.",
        ["go", "Yours.", "now me", "Mine."],
    )


async def test_a_run_that_waits_for_a_person_is_lost_where_another_run_has_followed_it(
    savers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool
    async def ask() -> str:
        """Ask a person."""
        return str(interrupt("Sure?"))

    stale, _ = await run_past_the_end(savers, [asks(("1", "ask", {}))], monkeypatch, ask)

    with pytest.raises(SessionLostError, match="this run has not ended"):
        await stale
