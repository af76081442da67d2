"""Lists of sessions and histories, read without LangGraph: equal to what the graph reads."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.types import interrupt

from graph_agent import GraphDelegate, ScriptedChatModel, Session, SessionStatus, create_graph_agent
from graph_agent.interfaces.cli.session_list import age
from graph_agent.persistence import open_saver, open_store
from graph_agent.session.history import EventReader, SessionSummary, shortened_line, summarize_sessions
from graph_agent.storage.checkpoints.open import open_reader
from tests.support.agents import asks, echo
from tests.support.cli import run_cli
from tests.support.terminal import APPROVED_TOOLS, GATED_TOOLS, agent_folder, terminal, wait_for
from tests.support.warm_process import warm_python


def approve(text: str) -> str:
    """Ask a person."""
    return str(interrupt(text))


async def nothing_runs(_: str) -> bool:
    return False


async def summaries(url: str) -> list[SessionSummary]:
    async with open_reader(url) as reader:
        return await summarize_sessions(reader, nothing_runs)


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A database with a finished, a failed and a waiting session."""
    address = f"sqlite:///{tmp_path}/sessions.db"
    call, question = asks(("1", "echo", {"text": "a\x1b"})), asks(("2", "approve", {"text": "Sure?"}))
    scripts = {
        "done": [call, "No more actions.", "Done.", "No more actions.", "Again."],
        "failed": ["No more actions."],
        "waits": [question],
    }
    async with open_saver(address) as saver, open_store(address) as store:
        for session_id, script in scripts.items():
            graph = create_graph_agent(
                ScriptedChatModel([*script]), tools=[echo, approve], checkpointer=saver, store=store
            )
            session = Session(graph, session_id)
            try:
                await session.run(f"The  first\nmessage of {session_id}", context={"on_failure": "answer"})
                if session_id == "done":
                    await session.run("The second message")
            except AssertionError:
                continue  # the script ran dry
    return address


async def test_a_summary_has_title_counts_and_status(url: str) -> None:
    found = {
        each.id: (each.title, each.turns, each.messages, each.model_calls, each.status, each.activity)
        for each in await summaries(url)
    }

    assert found == {
        "waits": ("The first message of waits", 1, 1, 1, SessionStatus.RUNNING, "waiting"),
        "failed": ("The first message of failed", 1, 1, 1, SessionStatus.RUNNING, "interrupted"),
        "done": ("The first message of done", 3, 2, 5, SessionStatus.COMPLETED, "idle"),
    }


async def test_a_summary_counts_messages_and_model_calls_of_each_kind(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/sessions.db"
    child = create_graph_agent(ScriptedChatModel(["From the child."]), name="child")
    scripts: dict[str, list[Any]] = {
        "delegates": [asks(("1", "delegate_to_child", {"task": "Go."})), "Done."],
        "answers": ["One.", "Two."],
    }
    async with open_saver(address) as saver:
        for session_id, script in scripts.items():
            delegates = [GraphDelegate("child", "Helps.", child)] if session_id == "delegates" else []
            graph = create_graph_agent(ScriptedChatModel(script), delegates=delegates, checkpointer=saver)
            session = Session(graph, session_id)
            await session.run("Hello")
            if not delegates:
                await session.run("Hello again")

    found = {each.id: (each.turns, each.messages, each.model_calls) for each in await summaries(address)}

    assert found == {"delegates": (2, 1, 3), "answers": (0, 2, 2)}


async def test_a_summary_of_an_older_session_has_no_counts(url: str) -> None:
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel(["Again."]), tools=[echo, approve], checkpointer=saver)
        thread: Any = {"configurable": {"thread_id": "done"}}
        loop = (await graph.aget_state(thread)).values["loop"]
        old = {name: value for name, value in loop.items() if name not in ("inputs", "calls_before")}
        await graph.aupdate_state(thread, {"loop": old}, as_node="finalize")
        await Session(graph, "done").run("A third message")

    [found] = [each for each in await summaries(url) if each.id == "done"]

    assert (found.turns, found.messages, found.model_calls) == (4, None, None)


async def test_the_readers_summaries_and_events_are_those_of_the_saver(url: str) -> None:
    async with open_saver(url) as saver, open_reader(url) as reader:
        graph = create_graph_agent(ScriptedChatModel(["x"]), tools=[echo, approve], checkpointer=saver)
        pairs = []
        for session_id in ("done", "failed", "waits"):
            read = await EventReader(None, reader, session_id).read()
            pairs.append((read, await EventReader(graph, saver, session_id).read()))
        by_saver = await summarize_sessions(saver, nothing_runs)
        by_reader = await summarize_sessions(reader, nothing_runs)

    assert [len(read or ()) > 0 for read, _ in pairs] == [True, True, True]
    assert ([list(read or ()) for read, _ in pairs], by_reader) == ([list(own or ()) for _, own in pairs], by_saver)


async def test_a_full_copy_of_the_history_is_read(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/sessions.db"
    async with open_saver(address) as saver:
        graph = create_graph_agent(ScriptedChatModel(["One."], cycle=True), checkpointer=saver)
        events: Any = graph.channels["events"]
        events.snapshot_frequency = 3
        session = Session(graph, "s")
        for number in range(6):
            await session.run(f"message {number}")
        expected = [event["type"] for event in await session.events()]
        async with open_reader(address) as reader:
            newest: Any = await reader.aget_tuple({"configurable": {"thread_id": "s"}})
            history: Any = await reader.aget_delta_channel_history(config=newest.config, channels=["events"])
            read = await EventReader(None, reader, "s").read()

    assert ("seed" in history["events"] or "events" in newest.checkpoint["channel_values"]) is True
    assert [event["type"] for event in read or ()] == expected


async def test_events_are_followed_from_the_last_read(url: str) -> None:
    async with open_saver(url) as saver, open_reader(url) as reader:
        follower = EventReader(None, reader, "done")
        first = await follower.read()
        nothing = await follower.read()
        graph = create_graph_agent(ScriptedChatModel(["No more actions.", "Third."]), tools=[echo], checkpointer=saver)
        await Session(graph, "done").run("The third message")
        later = await follower.read()

    assert (len(first or ()), nothing, [event["type"] for event in later or ()]) == (
        follower.count - 5,
        (),
        ["user_message", "status", "plan", "agent_response", "status"],
    )


@pytest.mark.parametrize(
    ("messages", "title"),
    [
        ([("user", "As a pair")], "As a pair"),
        ([{"role": "user", "content": "As a dict"}], "As a dict"),
        ("As a text", "As a text"),
        ([SystemMessage("Be brief."), AIMessage("Hello."), HumanMessage("After others")], "After others"),
        ([HumanMessage([{"type": "text", "text": "In blocks"}])], "In blocks"),
    ],
    ids=["pair", "dict", "text", "others first", "blocks"],
)
async def test_the_title_is_the_first_message_of_the_user(tmp_path: Path, messages: Any, title: str) -> None:
    address = f"sqlite:///{tmp_path}/sessions.db"
    async with open_saver(address) as saver:
        graph = create_graph_agent(ScriptedChatModel(["Yes."]), checkpointer=saver)
        await graph.ainvoke({"messages": messages}, {"configurable": {"thread_id": "s"}})

    assert [each.title for each in await summaries(address)] == [title]


def test_a_long_title_is_shortened() -> None:
    texts = ("x" * 61, "a " * 30, "word " * 1000, f"x{' ' * 2000}y", f"x{' ' * 2000}")

    assert [shortened_line(text) for text in texts] == [
        f"{'x' * 59}…",
        ("a " * 30).strip(),
        f"{('word ' * 12)[:59].rstrip()}…",
        "x…",
        "x",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7_200, "2 h"), (200_000, "2 d")]
)
def test_an_age_is_in_its_largest_unit(seconds: int, text: str) -> None:
    now = datetime(2026, 11, 22, tzinfo=UTC)

    assert age(datetime.fromtimestamp(now.timestamp() - seconds, UTC).isoformat(), now) == text


def test_sessions_show_their_state_while_one_runs_and_one_waits(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS + APPROVED_TOOLS, "work", "write_file")
    write = asks(("1", "write_file", {"path": "a", "text": "b"}))
    waiting = run_cli(folder, "run", "--session", "waits", "please\twrite \x1b[31m", script=[write])
    with terminal(folder, "run", "--session", "runs", "go", script=[asks(("1", "work", {"n": 1})), "x"]) as run:
        wait_for(folder / "began1")
        listed = run_cli(folder, "sessions")
        as_json = run_cli(folder, "sessions", "--json", "--limit", "1")
        run.kill(9)
        run.process.wait()
        after = run_cli(folder, "sessions", "--json", "--limit", "1")

    cut_off = run_cli(folder, "sessions", "--status", "interrupted", "--quiet")
    unknown = run_cli(folder, "sessions", "--status", "crashed")

    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    [shown], [left] = ([json.loads(line) for line in given.stdout.splitlines()] for given in (as_json, after))
    assert waiting.returncode == 4
    assert [(*row[:4], row[5]) for row in rows] == [
        ("runs", "running", "1", "1", "go"),
        ("waits", "waiting for an answer", "1", "1", "please write \\x1b[31m"),
    ]
    assert (shown["id"], shown["status"], shown["activity"], left["activity"]) == (
        "runs",
        "RUNNING",
        "running",
        "interrupted",
    )
    assert cut_off.stdout.split() == ["runs"]
    assert (unknown.returncode, "'crashed' is no status" in unknown.stderr) == (2, True)


def test_events_are_followed_in_another_process(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS, "work")
    script = [asks(("1", "work", {"n": 1})), "No more actions.", "Done."]
    with terminal(folder, "run", "--session", "mine", "go", script=script):
        wait_for(folder / "began1")
        command = [warm_python(), "-m", "graph_agent.cli", "events", "mine", "--follow", "--json"]
        follower = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        try:
            assert follower.stdout is not None
            seen = [json.loads(follower.stdout.readline())["type"] for _ in range(4)]
            (folder / "go1").touch()
            seen += [json.loads(follower.stdout.readline())["type"] for _ in range(4)]
        finally:
            follower.kill()
            follower.communicate()

    assert seen == [
        *("user_message", "status", "plan", "tool_call"),
        *("tool_result", "plan", "agent_response", "status"),
    ]


def test_an_unknown_session_is_a_one_line_error(tmp_path: Path) -> None:
    folder = agent_folder(tmp_path, GATED_TOOLS)
    (folder / "graph_agent.db").touch()

    done = [run_cli(folder, command, "nobody", script=["x"]) for command in ("events", "resume")]

    error = "error: There is no session 'nobody' in sqlite:///graph_agent.db; `graph-agent sessions` lists them.\n"
    assert [(each.returncode, each.stderr) for each in done] == [(2, error)] * 2


async def test_a_report_names_the_sessions_with_an_open_input(url: str, tmp_path: Path) -> None:
    shown = run_cli(tmp_path, "report", "--db", url)

    assert (shown.returncode, shown.stderr.strip(), len(shown.stdout.splitlines())) == (
        0,
        "Sessions whose newest input has not ended, and does not count: waits, failed",
        2,
    )


async def test_the_sessions_of_a_user_are_listed(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/sessions.db") as saver:
        graph = create_graph_agent(ScriptedChatModel(["Hello."], cycle=True), checkpointer=saver)
        for session_id in ("ada/c1", "ben/c1", "ada/c2", "c1"):
            await graph.session(session_id).run("Hi")
    listed = ["sessions", "--db", f"sqlite:///{tmp_path}/sessions.db", "--quiet"]

    printed = [
        run_cli(tmp_path, *listed, *options).stdout.split()
        for options in (["--user", "ada"], ["--user", "ada", "--status", "completed", "-n", "1"])
    ]
    none = run_cli(tmp_path, *listed, "--user", "cleo").stderr

    assert (printed, none) == ([["ada/c2", "ada/c1"], ["ada/c2"]], "No session matches.\n")
