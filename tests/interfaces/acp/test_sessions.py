"""ACP: cancel, load, list, and what remains after the end of a process."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.acp import call, calls, editor, prepare
from tests.support.cli import run_cli

END = ["No more actions.", "Done."]
SEND = calls(call("a", "send", to="ana"))
HOLD = calls(call("a", "hold", file="gate"))


def request(id_: int, method: str, **params: Any) -> str:
    """A request as a line."""
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})


def responses(output: str) -> dict[Any, dict[str, Any]]:
    """The responses among the lines of an output, by id."""
    messages = [json.loads(line) for line in output.splitlines()]
    return {message["id"]: message for message in messages if "method" not in message}


def load(id_: int, session_id: str = "s1") -> str:
    return request(id_, "session/load", sessionId=session_id, cwd="/", mcpServers=[])


def prompt(id_: int, text: str, session_id: str = "s1") -> str:
    return request(id_, "session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}])


async def test_cancel_stops_a_running_tool(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [HOLD, "Next."]) as client:
        await client.begin()
        answer = asyncio.create_task(client.prompt("hi"))
        await client.until((tmp_path / "gate.begun").exists)
        with pytest.raises(RequestError, match="answering another prompt"):
            await client.prompt("too early")
        await client.connection.cancel(session_id=client.session_id)

        assert await answer == "cancelled"
        assert [line.split(" ", 2)[1] for line in client.outline() if line.startswith("a: ")] == [
            *("in_progress", "failed")
        ]
        assert (await client.prompt("and now?"), client.answer()) == ("end_turn", "Next.")


async def test_a_session_is_loaded_by_another_process(tmp_path: Path) -> None:
    prepare(tmp_path)
    wave = calls(call("a", "echo", text="x"), call("b", "send", to="ana"), text="I do both.")
    async with editor(tmp_path, [wave, *END]) as first:
        session_id = await first.begin()
        await first.prompt("hi")
    async with editor(tmp_path, ["Again."]) as second:
        await second.load(session_id)
        history, plan = second.outline(), second.plans()[-1]
        listed = (await second.within(second.connection.list_sessions(cwd="/here"))).sessions
        await second.prompt("once more")

    assert plan == ["completed", "completed"]
    assert (history[:2], history[-1]) == (["user: hi", "agent: I do both."], "agent: Done.")
    assert sorted(history[2:-1]) == [
        *("a: completed echo x", "a: in_progress", "b: completed Sent to ana.", "b: in_progress")
    ]
    assert [(each.session_id, each.cwd, each.title) for each in listed] == [(session_id, "/here", "hi")]
    assert second.answer() == "Again."


async def test_every_session_is_in_a_page_of_the_list(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with open_saver(f"sqlite:///{tmp_path}/desk.db") as saver:
        graph = create_graph_agent(ScriptedChatModel(["Hello."], cycle=True), name="desk", checkpointer=saver)
        for number in range(205):
            await Session(graph, f"s{number}").run("hi")
    pages: list[list[str]] = []
    async with editor(tmp_path, END) as client:
        await client.begin()
        cursor = None
        while cursor or not pages:
            page = await client.within(client.connection.list_sessions(cursor=cursor))
            pages.append([each.session_id for each in page.sessions])
            cursor = page.next_cursor
        with pytest.raises(RequestError, match="no session 'gone' any more"):
            await client.within(client.connection.list_sessions(cursor="gone"))

    assert ([len(page) for page in pages], len({id_ for page in pages for id_ in page})) == ([100, 100, 5], 205)


async def test_a_session_killed_in_a_wave_is_loaded_and_resumed(tmp_path: Path) -> None:
    prepare(tmp_path)
    wave = calls(call("a", "echo", text="x"), call("b", "hold", file="gate"))
    async with editor(tmp_path, [wave]) as first:
        session_id = await first.begin()
        answer = asyncio.create_task(first.prompt("hi"))
        await first.until(lambda: "a: completed" in "".join(first.outline()))
        await first.until((tmp_path / "gate.begun").exists)
        first.process.kill()
        await first.end()
        answer.cancel()
    (tmp_path / "gate").touch()
    async with editor(tmp_path, END) as second:
        await second.load(session_id)
        history = second.outline()
        end = await second.prompt("/resume")

    # The result may not have been stored before the end of the process.
    assert [line for line in history if "completed" not in line] == ["user: hi", "a: in_progress", "b: in_progress"]
    assert "a: completed echo x" in second.outline()
    assert (end, second.answer(), second.plans()[-1]) == ("end_turn", "Done.", ["completed", "completed"])


async def test_a_waiting_question_is_asked_again_after_the_end_of_the_process(tmp_path: Path) -> None:
    prepare(tmp_path)
    run_cli(tmp_path, "run", "--session", "s1", "hi", script=[SEND])
    async with editor(tmp_path, END) as client:
        await client.load("s1")
        end = await client.prompt("/resume")

    assert (end, client.asked[0][0], client.answer()) == ("end_turn", 'send {"to": "ana"}', "Done.")
    assert (tmp_path / "sent").read_text() == "ana\n"


async def test_sigterm_ends_the_process_and_leaves_the_session_to_be_resumed(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [HOLD]) as first:
        session_id = await first.begin()
        answer = asyncio.create_task(first.prompt("hi"))
        await first.until((tmp_path / "gate.begun").exists)
        first.process.send_signal(signal.SIGTERM)
        await first.end()
        answer.cancel()
    async with editor(tmp_path, ["Next."]) as second:
        await second.load(session_id)
        await second.prompt("and now?")

    assert second.answer() == "Next."


def test_requests_just_before_the_end_of_the_input_are_answered(tmp_path: Path) -> None:
    prepare(tmp_path)
    run_cli(tmp_path, "run", "--session", "s1", "hi", script=["Hello."])
    lines = [request(1, "initialize", protocolVersion=1), load(2)]
    first = run_cli(tmp_path, "acp", given="\n".join(lines), script=END)
    # A prompt of a session that the same input loads would arrive before the session.
    loaded = responses(first.stdout)

    assert (first.returncode, first.stderr, sorted(loaded)) == (0, "", [1, 2])
    assert loaded[1]["result"]["agentCapabilities"]["loadSession"] is True


async def test_a_prompt_is_answered_after_the_end_of_the_input(tmp_path: Path) -> None:
    prepare(tmp_path)
    async with editor(tmp_path, [HOLD, *END]) as client:
        await client.begin()
        answer = asyncio.create_task(client.prompt("hi"))
        await client.until((tmp_path / "gate.begun").exists)
        client.stdin.close()
        (tmp_path / "gate").touch()

        assert await answer == "end_turn"
        assert (await client.end(), client.answer()) == (0, "Done.")


async def test_a_question_at_the_end_of_the_input_is_an_error_and_stays_open(tmp_path: Path) -> None:
    prepare(tmp_path)
    wave = calls(call("a", "hold", file="gate"), call("b", "send", to="ana"))
    async with editor(tmp_path, [wave]) as first:
        session_id = await first.begin()
        answer = asyncio.create_task(first.prompt("hi"))
        await first.until((tmp_path / "gate.begun").exists)
        first.stdin.close()
        (tmp_path / "gate").touch()
        with pytest.raises(RequestError, match="closed its end"):
            await answer
    async with editor(tmp_path, END) as second:
        await second.load(session_id)
        end = await second.prompt("/resume")

    assert (end, second.answer(), (tmp_path / "sent").read_text()) == ("end_turn", "Done.", "ana\n")


def test_each_fault_of_the_input_gets_its_error(tmp_path: Path) -> None:
    prepare(tmp_path)
    lines = [
        "no JSON",
        "",
        "[1]",
        '{"id": [1], "method": "initialize"}',
        '{"id": 1}',
        request(2, "initialize"),
        request(3, "session/unknown"),
        request(4, "initialize", protocolVersion=99),
        load(5, "none"),
        load(6, "\ud800"),
        prompt(7, "hi", "none"),
        json.dumps({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "none"}}),
        '{"jsonrpc": "2.0", "id": 8, "method": "session/prompt", "params": [1]}',
        "{" * 100_000,
    ]
    done = run_cli(tmp_path, "acp", given="\n".join(lines), script=END)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    unread = [message["error"]["code"] for message in messages if message["id"] is None]
    found = {message["id"]: message.get("error", {}).get("code") for message in messages if message["id"] is not None}

    assert done.returncode == 0
    assert sorted(unread) == [-32700, -32700, -32600, -32600]
    assert found == {2: -32602, 3: -32601, 4: None, 5: -32002, 6: -32602, 7: -32002, 8: -32602}


def test_a_fault_of_the_agent_file_is_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: desk\ntoolz: []\n")
    done = run_cli(tmp_path, "acp", script=END)

    assert (done.returncode, done.stdout) == (2, "")
    assert "toolz" in done.stderr
