"""Pruning: which rows are removed and kept, also while sessions run."""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from typing_extensions import TypedDict

from graph_agent import ScriptedChatModel, Session, SessionMemory, create_graph_agent
from graph_agent.core.state.locks import database_key
from graph_agent.core.state.registry import maintained
from graph_agent.errors import (
    ConfigError,
    InputConflictError,
    InputError,
    InputSupersededError,
    SessionBusyError,
    SessionLostError,
)
from graph_agent.persistence import open_saver, prune
from graph_agent.session.activity import running_check
from graph_agent.session.forks import copy_session
from graph_agent.session.history import summarize_sessions
from graph_agent.session.importing import export_session, import_session
from graph_agent.storage.checkpoints.maintenance import USED
from graph_agent.storage.checkpoints.pruning import moves, sessions
from graph_agent.storage.checkpoints.pruning.postgres import PostgresTables
from graph_agent.storage.checkpoints.pruning.sqlite import SqliteTables
from tests.support.agents import asks, echo, says, thread
from tests.support.gates import Gate, gated_tool
from tests.support.postgres_server import PostgresServer, drop_locks, on_postgres
from tests.support.pruning import agent, continuation, differences, question, read_all, take_step

pytestmark = pytest.mark.sampled(2)  # one kind of database for each test, in turn

KINDS = ["sqlite", pytest.param("postgres", marks=on_postgres)]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'a.db'}"


def list_files(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


async def test_a_dry_run_reports_what_pruning_removes(url: str) -> None:
    async with open_saver(url) as saver:
        for number, step in enumerate(("wave", "delegate", "ask", "answer")):
            await take_step(saver, step, number)
        before = await read_all(saver)
        planned = await prune(url, keep_last=1, dry_run=True)
        untouched = await read_all(saver)
        done = await prune(url, keep_last=1)
        after = await read_all(saver)
        again = await prune(url, keep_last=1)

    assert (untouched == before, done.sessions, differences(before, after)) == (True, planned.sessions, [])
    assert (len(before) - len(after), len(after)) == (done.checkpoints, done.sessions[0].kept)
    assert (planned.checkpoints > 10, planned.bytes > 0, again.sessions) == (True, True, ())


@pytest.mark.parametrize("last", ["delegate_asks", "ask", "cancelled", "edit"])
async def test_a_session_whose_input_has_not_ended_is_skipped(url: str, last: str) -> None:
    async with open_saver(url) as saver:
        for number, step in enumerate(("wave", "answer", last)):
            await take_step(saver, step, number)
        before = await read_all(saver)
        [waiting] = (await prune(url, keep_last=1)).sessions
        after = await read_all(saver)
        await take_step(saver, "resume", 3)
        await take_step(saver, "answer", 4)
        [answered] = (await prune(url, keep_last=1)).sessions

    assert (after == before, waiting.checkpoints, "has not ended" in (waiting.skipped or "")) == (True, 0, True)
    assert (answered.checkpoints > 8, answered.skipped) == (True, None)


async def test_a_delegate_that_waits_remains_when_a_later_input_has_ended(url: str) -> None:
    async with open_saver(url) as saver:
        for number, step in enumerate(("delegate", "delegate_asks", "answer")):
            await take_step(saver, step, number)
        before = await read_all(saver)
        report = await prune(url, keep_last=1)
        after = await read_all(saver)
        await take_step(saver, "delegate", 3)
        events = await Session(agent(saver, []), "s1").events()

    inner = [{at: read for at, read in each.items() if at[0]} for each in (before, after)]
    reason = "of a delegate or subgraph that has not ended"
    assert (inner[0] == inner[1], report.reasons[reason] == len(inner[0]) > 1) == (True, True)
    assert [event["content"] for event in events if event["type"] == "delegation_response"][-1] == "Done."


CHANGES: dict[str, Callable[[list[BaseMessage]], list[BaseMessage]]] = {
    "nothing": lambda messages: [HumanMessage("More.")],
    "a message replaced": lambda messages: [HumanMessage("Other.", id=messages[0].id)],
    "a message twice": lambda messages: [HumanMessage("One.", id="x"), HumanMessage("Two.", id="x")],
    "a message removed": lambda messages: [RemoveMessage(str(messages[1].id))],
    "all removed": lambda messages: [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("Anew.")],
    "an object within": lambda messages: [HumanMessage("At.", additional_kwargs={"at": date(2026, 1, 1)})],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_history_reads_as_before(url: str, change: str) -> None:
    async with open_saver(url) as saver:
        for number in range(2):
            await take_step(saver, "wave", number)
            state = await agent(saver, []).aget_state(thread())
            update = {"messages": CHANGES[change](state.values["messages"])}
            await agent(saver, []).aupdate_state(thread(), update, as_node="finalize")
            await take_step(saver, "answer", 10 + number)
            before = await read_all(saver)
            removed = await prune(url, keep_last=1)
            after = await read_all(saver)

            assert (removed.checkpoints > 5, differences(before, after)) == (True, [])


async def test_a_history_that_only_grew_moves_as_it_is_stored(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = []
    async with open_saver(url) as saver:
        monkeypatch.setattr(moves, "delta_values", None)  # constructs messages
        for number, step in enumerate(("wave", "delegate", "answer")):
            await take_step(saver, step, number)
            before = await read_all(saver)
            removed.append((await prune(url, keep_last=1)).checkpoints > 0)
            found = differences(before, await read_all(saver))

            assert found == []

    assert removed == [True, True, True]


async def test_unchanged_sessions_are_not_read_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    for kind in (SqliteTables, PostgresTables):
        load = kind.load

        def record(self: Any, thread_id: str, load: Any = load) -> Any:
            read.append(thread_id)
            return load(self, thread_id)

        monkeypatch.setattr(kind, "load", record)

    async def reads(**rule: Any) -> tuple[list[str], dict[str, int]]:
        read.clear()
        report = await prune(url, **rule)
        return [*read], dict(report.reasons)

    async with open_saver(url) as saver:
        for session in ("s1", "s2"):
            await Session(create_graph_agent(ScriptedChatModel(["Hi."]), checkpointer=saver), session).run("Hello.")
        dry = await reads(keep_last=1, dry_run=True)
        first, again = await reads(keep_last=1), await reads(keep_last=1)
        await Session(create_graph_agent(ScriptedChatModel(["Hi."]), checkpointer=saver), "s2").run("Again.")
        used = await reads(idle_for=timedelta(hours=1))
        changed = await reads(idle_for=timedelta())
        await saver.adelete_thread("s1")
        await Session(create_graph_agent(ScriptedChatModel(["Hi."]), checkpointer=saver), "s1").run("Hello.")
        anew = await reads(keep_last=1)

    one = {"the history of later ones": 1, "the newest": 1, "the first of a session": 1}
    both = dict.fromkeys(one, 2)
    assert (dry, first, again) == ((["s1", "s2"], both), (["s1", "s2"], both), ([], both))
    assert (used, changed, anew) == (([], {**one, USED: 7}), (["s2"], both), (["s1"], both))


async def test_only_the_newest_branch_remains(url: str) -> None:
    async with open_saver(url) as saver:
        for number in range(3):
            await take_step(saver, "wave", number)
        first = sorted(id_ for namespace, id_ in await read_all(saver) if not namespace)
        await take_step(saver, "fork", 3, first[6])
        before = await read_all(saver)
        await prune(url, keep_last=1)
        after = await read_all(saver)
        listed = await SessionMemory(agent(saver, [])).list_sessions()
        with pytest.raises(InputError, match="fork a session to keep one of its steps"):
            await continuation(saver, first[-1])
        branch = await continuation(saver)

    assert (differences(before, after), [*after], listed) == ([], [max(before), ("", first[0])], ["s1"])
    assert branch[0] == "Last."


async def test_a_session_is_trimmed_once_it_has_been_idle_for_a_time(url: str) -> None:
    async with open_saver(url) as saver:
        for number in range(3):
            await take_step(saver, "answer", number)
        recent = await prune(url, idle_for=timedelta(days=1))
        default = await prune(url)
        idle = await prune(url, idle_for=timedelta(0))

    assert (recent.checkpoints, default.checkpoints, idle.checkpoints > 3) == (0, 0, True)


async def test_only_the_chosen_sessions_are_pruned(url: str) -> None:
    async with open_saver(url) as saver:
        for session_id in ("s1", "s2"):
            graph = create_graph_agent(ScriptedChatModel(["One.", "Two."]), checkpointer=saver)
            await Session(graph, session_id).run("first")
            await Session(graph, session_id).run("second")
        report = await prune(url, keep_last=1, sessions=["s2"])
        with pytest.raises(ConfigError, match="There is no session 'other'"):
            await prune(url, keep_last=1, sessions=["other"])

    assert [each.id for each in report.sessions] == ["s2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_last": 0}, "keep_last=0"),
        ({"keep_last": 2}, "give keep_last=1, or idle_for"),
        ({"older_than": timedelta(1)}, "give idle_for"),
        ({"keep_last": 1, "idle_for": timedelta(1)}, "give one of them"),
        ({"idle_for": timedelta(-1)}, "not negative"),
        ({"idle_for": timedelta.max}, "shorter time"),
    ],
)
async def test_invalid_rules_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        await prune(f"sqlite:///{tmp_path / 'a.db'}", **options)


@pytest.mark.parametrize("url", ["sqlite:///missing.db", "memory:"])
async def test_a_database_that_does_not_exist_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.db|memory:"):
        await prune(url, keep_last=1, folder=tmp_path)

    assert list_files(tmp_path) == []


async def test_a_running_session_is_skipped(url: str) -> None:
    gate = Gate()
    script = ["One.", asks(("1", "wait", {})), "No more actions.", "Two."]
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel(script), tools=[gated_tool(gate, "wait")], checkpointer=saver)
        await Session(graph, "s1").run("first")
        run = asyncio.create_task(Session(graph, "s1").run("second"))
        await gate.reached()
        while_running = await prune(url, keep_last=1)
        with pytest.raises(SessionBusyError, match="s1"):
            await saver.aprune(["s1"])
        gate.open()
        result = await run
        afterwards = await prune(url, keep_last=1)

    assert [(each.checkpoints, each.skipped) for each in while_running.sessions] == [(0, "a run of it is under way")]
    assert (result.answer, afterwards.checkpoints > 3) == ("Two.", True)


async def test_a_run_waits_while_its_session_is_maintained(url: str) -> None:
    async with open_saver(url) as saver:
        session = Session(create_graph_agent(ScriptedChatModel(["One."]), checkpointer=saver), "s1")
        async with maintained(await database_key(saver), "s1") as maintenance:
            run = asyncio.create_task(session.run("first"))
            done, _ = await asyncio.wait([run], timeout=0.2)
        result = await run

    assert (maintenance.is_held, len(done), result.answer) == (True, 0, "One.")


async def test_a_cancelled_maintenance_gives_its_locks_back(url: str) -> None:
    async def maintain(place: Hashable, inside: asyncio.Event) -> None:
        async with maintained(place, "s1"):
            inside.set()

    held: list[bool] = []
    async with open_saver(url) as saver:
        place = await database_key(saver)
        for _ in range(5):
            inside = asyncio.Event()
            task = asyncio.create_task(maintain(place, inside))
            await inside.wait()
            task.cancel()
            await asyncio.wait([task])
            async with maintained(place, "s1") as maintenance:
                held.append(maintenance.is_held)

    assert held == [True] * 5


async def test_the_tables_of_langgraphs_savers_are_pruned(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    file = tmp_path / "stock.db"
    builder = StateGraph(MessagesState)

    def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", f"reply {len(state['messages'])}")]}

    builder.add_node(reply)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
        graph: Any = builder.compile(checkpointer=saver)
        theirs = create_graph_agent(ScriptedChatModel(["One.", "Two.", "Three."]), checkpointer=saver)
        for text in ("a", "b", "c"):
            await graph.ainvoke(says(text), thread("plain"))
            await Session(theirs, "ours").run(text)
        before = (await graph.aget_state(thread("plain"))).values, await Session(theirs, "ours").events()
        report = await prune(f"sqlite:///{file}", keep_last=1)
        after = (await graph.aget_state(thread("plain"))).values, await Session(theirs, "ours").events()
        on = await graph.ainvoke(says("d"), thread("plain"))

    assert (before == after, [each.id for each in report.sessions], on["messages"][-1].content) == (
        True,
        ["ours", "plain"],
        "reply 7",
    )


@on_postgres
async def test_the_tables_of_langgraphs_postgres_saver_are_pruned(postgres_url: str) -> None:
    async with AsyncPostgresSaver.from_conn_string(postgres_url) as saver:
        await saver.setup()
        graph = create_graph_agent(ScriptedChatModel(["One.", "Two.", "Three."]), checkpointer=saver)
        for text in ("a", "b"):
            await Session(graph, "s1").run(text)
        before = await Session(graph, "s1").events()
        report = await prune(postgres_url, keep_last=1)
        after = await Session(graph, "s1").events()
        result = await Session(graph, "s1").run("c")

    assert (before == after, report.checkpoints > 3, result.answer) == (True, True, "Three.")


async def test_the_space_is_returned_to_the_file_system(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel(["x" * 2000], cycle=True), tools=[echo], checkpointer=saver)
        for _ in range(20):
            await Session(graph, "s1").run("y" * 2000)
    first = await prune(url, keep_last=1)
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel(["x" * 2000], cycle=True), tools=[echo], checkpointer=saver)
        for _ in range(20):
            await Session(graph, "s1").run("y" * 2000)
        second = await prune(url, keep_last=1)
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        free = connection.execute("PRAGMA freelist_count").fetchone()

    assert (first.size_after < 0.7 * first.size_before, second.size_after < 0.7 * second.size_before, free) == (
        True,
        True,
        (0,),
    )


async def test_an_encrypted_session_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    async with open_saver(f"sqlite:///{file}") as saver:
        await take_step(saver, "answer", 0)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE checkpoints SET type = 'msgpack+aes'")

    report = await prune(f"sqlite:///{file}", keep_last=1)

    assert [(each.checkpoints, "msgpack+aes" in (each.skipped or "")) for each in report.sessions] == [(0, True)]


@asynccontextmanager
async def _used_and_pruned(url: str) -> AsyncIterator[Any]:
    async with open_saver(url) as saver:
        for number, step in enumerate(("wave", "ask", "answer")):
            await take_step(saver, step, number)
        await prune(url, keep_last=1)
        yield saver


@pytest.mark.parametrize("kind", KINDS)
async def test_a_pruned_saver_conforms_to_langgraphs_contract(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: PostgresServer | None = request.getfixturevalue("postgres") if kind == "postgres" else None
    folders = iter(range(100))

    @checkpointer_test(name=f"graph-agent {kind}")
    async def pruned_saver() -> Any:
        if server is None:
            url = f"sqlite:///{tmp_path / f'{next(folders)}.db'}"
            async with _used_and_pruned(url) as saver:
                yield saver
            return
        with server.database() as url:
            async with _used_and_pruned(url) as saver:
                yield saver

    report = await validate(pruned_saver)

    assert {name: found.failures for name, found in report.results.items()} == {name: [] for name in report.results}
    assert (report.passed_all_base(), report.results["prune"].tests_passed) == (True, 8)


async def test_a_repeated_input_is_recognized_after_pruning(url: str) -> None:
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel(["One.", "Two.", "Three."]), checkpointer=saver)
        await Session(graph, "s1").run("before")
        await Session(graph, "s1").run("first", input_id="i1")
        await Session(graph, "s1").run("second")
        report = await prune(url, keep_last=1)
        repeated = await Session(graph, "s1").run("first", input_id="i1")

    assert (repeated.answer, report.checkpoints > 0) == ("Two.", True)


async def test_inputs_with_ids_of_the_last_day_get_their_answers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def replies(number: int) -> list[Any]:
        return [asks((f"c{number}", "echo", {"text": f"{number}"})), f"Answer {number}."]

    async with open_saver(url) as saver:
        script = [reply for number in range(6) for reply in replies(number)]
        graph = create_graph_agent(ScriptedChatModel([*script, "New."]), tools=[echo], checkpointer=saver)
        session = Session(graph, "s1")
        before = [await session.run(f"input {number}") for number in range(2)]
        results = [await session.run(f"input {number}", input_id=f"i{number}") for number in range(2, 6)]
        report = await prune(url, keep_last=1)
        again = [await session.run(f"input {number}", input_id=f"i{number}") for number in range(2, 6)]
        bare = await graph.ainvoke(says("input 3"), {"configurable": {"thread_id": "s1", "graph_agent_input": "i3"}})
        with pytest.raises(InputConflictError):
            await session.run("something else", input_id="i3")
        new = await session.run("one more", input_id="i6")
        on_the_day = await prune(url, keep_last=1)
        monkeypatch.setattr(sessions, "REPEATABLE", timedelta())
        later = await prune(url, keep_last=1)
        last = await session.run("one more", input_id="i6")

    assert (len(before), again, bare["messages"][-1].text, new.answer, last) == (2, results, "Answer 3.", "New.", new)
    assert (report.checkpoints > 5, on_the_day.checkpoints, later.checkpoints > 15) == (True, 0, True)
    assert later.reasons == {"the history of later ones": 1, "the newest": 1, "the first of a session": 1}


async def test_the_answers_that_remain_are_found_by_langgraphs_savers_and_exported(tmp_path: Path) -> None:
    url, copy = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        session = Session(create_graph_agent(ScriptedChatModel(["A.", "B.", "C."]), checkpointer=saver), "s1")
        results = [await session.run(text, input_id=text) for text in ("a", "b", "c")]
        lines = [json.dumps(line) async for line in export_session(url, "s1")]
        await prune(url, keep_last=1)
        again = [await session.run(text, input_id=text) for text in ("a", "b", "c")]
    await import_session(copy, lines)
    pruned = [json.dumps(line) async for line in export_session(url, "s1")]
    await import_session(copy, pruned, session_id="s2")
    async with open_saver(copy) as saver:
        graph = create_graph_agent(ScriptedChatModel([]), checkpointer=saver)
        copies = [[await Session(graph, name).run(text, input_id=text) for text in "abc"] for name in ("s1", "s2")]

    assert (again, copies) == (results, [results, results])


async def test_an_input_with_an_id_that_waits_for_a_person_remains(url: str) -> None:
    async with open_saver(url) as saver:
        script = [asks(("q1", "question", {"text": "sure?"})), "Later.", "Done."]
        graph = create_graph_agent(ScriptedChatModel(script), tools=[question], checkpointer=saver)
        first = await Session(graph, "s1").run("ask", input_id="i1")
        await Session(graph, "s1").run("go on")
        await prune(url, keep_last=1)
        with pytest.raises(InputSupersededError):
            await Session(graph, "s1").run("ask", input_id="i1")

    assert [each.value for each in first.interrupts] == ["sure?"]


async def test_an_answer_to_a_question_is_recognized_after_pruning(url: str) -> None:
    async with open_saver(url) as saver:
        script = [asks(("q1", "question", {"text": "sure?"})), "No more actions.", "Done.", "Later."]
        graph = create_graph_agent(ScriptedChatModel(script), tools=[question], checkpointer=saver)
        session = Session(graph, "s1")
        await session.run("ask", input_id="i1")
        answered = await session.resume("yes", input_id="i2")
        await session.run("go on", input_id="i3")
        await prune(url, keep_last=1)
        again = await session.resume("yes", input_id="i2")

    assert (again.answer, again) == ("Done.", answered)


@on_postgres
async def test_pruning_stops_if_the_lock_of_a_session_is_lost(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = PostgresTables.apply

    async def apply_without_lock(tables: PostgresTables, *arguments: Any) -> None:
        await drop_locks(postgres_url)
        await apply(tables, *arguments)

    async with open_saver(postgres_url) as saver:
        await take_step(saver, "wave", 0)
        await take_step(saver, "answer", 1)
        before = await read_all(saver)
        with monkeypatch.context() as losing:
            losing.setattr(PostgresTables, "apply", apply_without_lock)
            with pytest.raises(SessionLostError) as lost:
                await prune(postgres_url, keep_last=1)
        after = await read_all(saver)
        again = await prune(postgres_url, keep_last=1)

    text = "The maintenance of session 's1' stopped, and its last step was not stored: "
    assert (str(lost.value).startswith(text), after == before, again.checkpoints > 3) == (True, True, True)


@on_postgres
async def test_no_value_remains_that_no_checkpoint_refers_to(postgres_url: str) -> None:
    async with open_saver(postgres_url) as saver:
        for number, step in enumerate(("delegate", "wave", "delegate", "answer")):
            await take_step(saver, step, number)
        before = await stored_values(postgres_url)
        report = await prune(postgres_url, keep_last=1)
        tables = PostgresTables(saver.conn)  # type: ignore[attr-defined]  # the pool of every PostgreSQL saver
        namespaces = [name for (name,) in await tables.query("SELECT DISTINCT checkpoint_ns FROM checkpoint_blobs")]
        unused = {await tables.unused_bytes(("s1", name), []) for name in namespaces}
        after = await stored_values(postgres_url)

    assert (report.bytes > 0, unused, after < before / 2) == (True, {0}, True)


async def stored_values(url: str) -> int:
    async with open_saver(url) as saver:
        tables = PostgresTables(saver.conn)  # type: ignore[attr-defined]  # the pool of every PostgreSQL saver
        [(number,)] = await tables.query("SELECT count(*) FROM checkpoint_blobs")
    return int(number)


def _append(values: list[str], writes: Sequence[Any]) -> list[str]:
    return [*values, *(f"{len(values) + at}: {value}" for at, value in enumerate(writes))]


class Noted(TypedDict):
    notes: Annotated[list[str], DeltaChannel(_append, list)]


async def test_a_delta_channel_of_unknown_kind_is_trimmed(url: str) -> None:
    def note(state: Noted) -> dict[str, str]:
        return {"notes": f"after {len(state['notes'])}"}

    builder = StateGraph(Noted)
    builder.add_node(note)
    builder.add_edge(START, "note")
    builder.add_edge("note", END)
    async with open_saver(url) as saver:
        graph: Any = builder.compile(checkpointer=saver)
        for number in range(4):
            await graph.ainvoke({"notes": f"input {number}"}, thread())
        before = (await graph.aget_state(thread())).values
        removed = [(await prune(url, keep_last=1)).checkpoints > 8]
        after = (await graph.aget_state(thread())).values
        on = await graph.ainvoke({"notes": "more"}, thread())
        removed.append((await prune(url, keep_last=1)).checkpoints > 0)
        last = (await graph.aget_state(thread())).values

    assert (after, last, removed) == (before, on, [True, True])
    assert on["notes"] == [*before["notes"], "8: more", "9: after 9"]


async def test_a_fork_of_a_session_is_trimmed_and_the_session_keeps_its_title(url: str) -> None:
    async with open_saver(url) as saver:
        for number in range(3):
            await take_step(saver, "wave", number)
        await copy_session(saver, "s1", "fork", 7)
        graph = create_graph_agent(ScriptedChatModel(["Other.", "Another."]), checkpointer=saver)
        await Session(graph, "fork").run("On the fork.")

        async def seen() -> Any:
            summaries = await summarize_sessions(saver, running_check(saver))
            events = [await Session(graph, name).events() for name in ("s1", "fork")]
            return summaries, events, await SessionMemory(graph).list_sessions()

        before = await seen()
        report = await prune(url, keep_last=1)
        after = await seen()
        result = await Session(graph, "fork").run("And on.")

    assert (after == before, [each.id for each in report.sessions]) == (True, ["fork", "s1"])
    assert (result.answer, len(before[1][1]) > 10) == ("Another.", True)


async def test_a_pruning_that_stops_at_any_statement_has_changed_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = PostgresTables if url.startswith("postgres") else SqliteTables
    apply, numbers = kind.apply, itertools.count()
    stops: list[bool] = []

    async def stopping(tables: Any, statements: Sequence[Any], *arguments: Any) -> None:
        at = next(numbers)
        stops.append(at <= len(statements))
        failing = [("DELETE FROM nowhere WHERE 1 = ?", [(1,)])] if stops[-1] else []
        await apply(tables, [*statements[:at], *failing, *statements[at:]], *arguments)

    async with open_saver(url) as saver:
        for number, step in enumerate(("delegate", "wave", "answer")):
            await take_step(saver, step, number)
        before = await read_all(saver)
        monkeypatch.setattr(kind, "apply", stopping)
        found: list[Any] = []
        while not stops or stops[-1]:
            with suppress(sqlite3.OperationalError, psycopg.errors.UndefinedTable):
                await prune(url, keep_last=1)
            found += [len(stops)] if stops[-1] and await read_all(saver) != before else []
        after = await read_all(saver)

    assert (found, len(stops) > 8, differences(before, after), len(after) < 5) == ([], True, [], True)
