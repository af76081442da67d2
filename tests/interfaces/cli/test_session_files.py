"""Commands `sessions export`, `import` and `rm`, and `prune`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt

from graph_agent import GraphDelegate, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.inbox import StoreInbox, new_note
from graph_agent.errors import InputError, SessionBusyError
from graph_agent.persistence import open_saver, open_store
from graph_agent.session.activity import lock_idle_session
from graph_agent.session.importing import background_sessions, export_session, import_session, remove_sessions
from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.commits import commits, committed
from tests.support.postgres_server import on_postgres
from tests.support.pruning import agent, read_all, take_step

pytestmark = pytest.mark.sampled(2)  # one kind of database for each test, in turn

KINDS = ["sqlite", pytest.param("postgres", marks=on_postgres)]
LINES = ["No more actions.", "The end."]


def address(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The address of an empty database."""
    return str(request.getfixturevalue("postgres_url")) if kind == "postgres" else f"sqlite:///{folder / 'a.db'}"


async def exported(url: str, **options: Any) -> list[str]:
    return [json.dumps(line) async for line in export_session(url, "s1", **options)]


@pytest.mark.parametrize(("source", "target"), [("sqlite", "sqlite"), *[
    pytest.param(*kinds, marks=on_postgres) for kinds in (("sqlite", "postgres"), ("postgres", "sqlite"))
]])  # fmt: skip
async def test_an_imported_session_is_answered_where_the_other_waits(
    source: str, target: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    first, second = address(source, request, tmp_path), address(target, request, tmp_path / "other")
    async with open_saver(first) as saver, open_store(first) as store:
        for number, step in enumerate(("wave", "answer", "delegate_asks")):
            await take_step(saver, step, number)
        await StoreInbox(store).add("s1", new_note("follow_up", "one more"))
        lines = await exported(first)
        events = await Session(agent(saver, []), "s1").events()
    imported = await import_session(second, lines, session_id="copy")
    async with open_saver(second) as saver, open_store(second) as store:
        graph = agent(saver, [*LINES, "Followed up."], ["No more actions.", "Asked."], store=store)
        same = [{**event, "session_id": "s1"} for event in await Session(graph, "copy").events()] == events
        result = await Session(graph, "copy").resume("yes")

    assert (imported, same, result.answer, result.results) == ("copy", True, "The end.", {"d2": "Asked."})
    assert [each.answer for each in result.follow_ups] == ["Followed up."]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_export_of_all_checkpoints_restores_each(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = address(kind, request, tmp_path)
    async with open_saver(url) as saver:
        for number, step in enumerate(("wave", "ask", "resume", "cancelled")):
            await take_step(saver, step, number)
        before = await read_all(saver)
        lines = await exported(url, all_checkpoints=True)
    await import_session(url, lines, replace=True)
    async with open_saver(url) as saver:
        after = await read_all(saver)
        import_ids = {metadata.pop("graph_agent_import") for _, _, metadata, *_ in after.values()}

    assert (after, len(import_ids)) == (before, 1)


@pytest.mark.parametrize("act", ["import", "replace", "remove"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_file_command_that_is_killed_leaves_the_old_session_or_the_whole_new_one(
    kind: str, act: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    source, target = f"sqlite:///{tmp_path / 'other' / 'a.db'}", address(kind, request, tmp_path)
    for url, steps in ((source, ("wave", "delegate_asks")), (target, () if act == "import" else ("answer", "wave"))):
        async with open_saver(url) as saver, open_store(url) as store:
            for number, step in enumerate(steps):
                await take_step(saver, step, number)
            for _ in steps:
                await StoreInbox(store).add("s1", new_note("follow_up", "one more"))
            await saver.aget_tuple({"configurable": {"thread_id": "s1"}})
            await StoreInbox(store).read("s1")
    lines = await exported(source, all_checkpoints=True)
    before = committed(target)

    with commits(target, monkeypatch) as seen:
        if act == "remove":
            removed = [each async for each in remove_sessions(target, ["s1"])]
        else:
            removed = [await import_session(target, lines, replace=act == "replace")]

    after = committed(target)
    assert (removed, seen, [*after] == [*before], after == before) == (["s1"], [before, after], True, False)


@pytest.mark.parametrize("damage", [["msgpack", "AAAA"], ["msgpack", "gaF4AQ=="]], ids=["no mapping", "no checkpoint"])
async def test_a_damaged_export_replaces_no_session(damage: list[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver:
        await take_step(saver, "answer", 0)
        before = await read_all(saver)
        lines = [json.loads(line) for line in await exported(url)]
    next(line for line in lines if line["type"] == "checkpoint")["checkpoint"] = damage

    with pytest.raises(InputError, match="is no valid checkpoint"):
        await import_session(url, map(json.dumps, lines), replace=True)

    async with open_saver(url) as saver:
        assert await read_all(saver) == before


@pytest.mark.parametrize("line", ["{", "[" * 100_000], ids=["cut off", "too deep"])
async def test_an_export_with_a_line_that_cannot_be_parsed_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Line 2 of the export is no JSON"):
        await import_session(f"sqlite:///{tmp_path / 'a.db'}", ['{"type": "session"}', line])


def without_first(checkpoints: list[Any]) -> list[Any]:
    return checkpoints[1:]


def with_unknown_parent(checkpoints: list[Any]) -> list[Any]:
    return [*checkpoints[:-1], {**checkpoints[-1], "parent": "1f000000-0000-6000-8000-000000000000"}]


def with_repeated_line(checkpoints: list[Any]) -> list[Any]:
    return [*checkpoints, checkpoints[-1]]


def without_session(checkpoints: list[Any]) -> list[Any]:
    return [{**each, "namespace": "delegate:1"} for each in checkpoints]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without_first,
            r"Line \d+ of the export: the checkpoint '.+' has the parent '.+', which no line before it has",
        ),
        (
            with_unknown_parent,
            r"Line \d+ of the export: .+ has the parent '1f000000-0000-6000-8000-000000000000', which",
        ),
        (with_repeated_line, r"Line \d+ of the export repeats the checkpoint '.+' of line \d+"),
        (without_session, r"none of the session itself"),
    ],
)
async def test_an_export_whose_checkpoints_do_not_follow_each_other_is_refused(
    change: Any, message: str, tmp_path: Path
) -> None:
    url, target = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    async with open_saver(url) as saver:
        await take_step(saver, "wave", 0)
        lines = [json.loads(line) for line in await exported(url, all_checkpoints=True)]
    rest = [line for line in lines[:-1] if line["type"] != "checkpoint"]
    changed = [*rest, *change([line for line in lines if line["type"] == "checkpoint"])]
    changed.append({"type": "end", "lines": len(changed)})

    with pytest.raises(InputError, match=message):
        await import_session(target, map(json.dumps, changed))

    async with open_saver(target) as saver:
        assert await read_all(saver) == {}


async def test_an_export_shows_the_session(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver:
        await Session(create_graph_agent(ScriptedChatModel(["Hi."]), checkpointer=saver), "s1").run("Hello")
        lines = [json.loads(line) for line in await exported(url)]

    header = {name: lines[0][name] for name in ("type", "format", "version", "id", "title", "status", "turns", "state")}
    assert header == {
        "type": "session",
        "format": "graph-agent-session",
        "version": 1,
        "id": "s1",
        "title": "Hello",
        "status": "COMPLETED",
        "turns": 0,
        "state": {},
    }
    assert [line["message"]["data"]["content"] for line in lines if line["type"] == "message"] == ["Hello", "Hi."]
    assert [line["event"]["type"] for line in lines if line["type"] == "event"] == [
        "user_message",
        "status",
        "agent_response",
        "status",
    ]
    assert lines[-1] == {"type": "end", "lines": len(lines) - 1}


async def test_the_commands_move_and_delete_a_session(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver, open_store(url) as store:
        for session_id in ("s1", "s2"):
            graph = create_graph_agent(ScriptedChatModel(["Hi."]), checkpointer=saver)
            await Session(graph, session_id).run("Hello")
        await StoreInbox(store).add("s1", new_note("steer", "never read"))
    a, b = ("--db", "sqlite:///a.db"), ("--db", "sqlite:///b.db")
    (tmp_path / "cut.jsonl").write_text(
        '{"type": "session", "format": "graph-agent-session", "version": 1, "id": "x"}\n'
    )
    (tmp_path / "new.jsonl").write_text(
        '{"type": "session", "format": "graph-agent-session", "version": 2, "id": "x"}\n'
    )

    ran = [
        run_cli(tmp_path, "sessions", *arguments)
        for arguments in (
            ("export", "s1", *a, "--out", "s1.jsonl"),
            ("export", "s1", *a, "--out", "s1.jsonl"),
            ("export", "unknown", *a, "--out", "unknown.jsonl"),
            ("import", "s1.jsonl", *b),
            ("import", "s1.jsonl", *b),
            ("import", "s1.jsonl", *b, "--replace"),
            ("import", "s1.jsonl", *b, "--as", "copy"),
            ("import", "cut.jsonl", *b),
            ("import", "new.jsonl", *b),
            ("import", "missing.jsonl", *b),
            ("rm", "s1", *a),
            ("rm", "s1", "unknown", *a, "--yes"),
            ("rm", "s1", *a, "--yes"),
            ("--quiet", *a),
            ("--quiet", *b),
        )
    ]

    assert [(each.returncode, each.stdout.split()) for each in ran] == [
        (0, []),
        (2, []),
        (2, []),
        (0, ["s1"]),
        (2, []),
        (0, ["s1"]),
        (0, ["copy"]),
        (2, []),
        (2, []),
        (2, []),
        (2, []),
        (2, []),
        (0, []),
        (0, ["s2"]),
        (0, ["s1", "copy"]),
    ]
    reasons = [
        "exists already",
        "no session 'unknown'",
        "exists already",
        "not complete",
        "version 2",
        "cannot be read",
    ]
    failed = [each.stderr for each in ran if each.returncode]
    assert [text in error for text, error in zip(reasons, failed, strict=False)] == [True] * 6
    async with open_store(url) as store:
        assert await StoreInbox(store).read("s1") == []


async def test_a_running_session_is_not_deleted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver:
        await Session(create_graph_agent(ScriptedChatModel(["Hi."]), checkpointer=saver), "s1").run("Hello")
        async with lock_idle_session(saver, "s1"):
            refused = run_cli(tmp_path, "sessions", "rm", "s1", "--yes", "--db", url)
        listed = run_cli(tmp_path, "sessions", "--quiet", "--db", url)

    assert (refused.returncode, "is running" in refused.stderr, listed.stdout) == (2, True, "s1\n")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_session_of_a_background_task_is_deleted_with_its_parent(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = address(kind, request, tmp_path)
    task = asks(("a", "delegate_to_r", {"task": "Look.", "background": True}))
    async with open_saver(url) as saver:
        child = create_graph_agent(ScriptedChatModel(["Found."]))
        delegates = [GraphDelegate("r", "Researches.", child, background=True)]
        replies = [task, asks(("w", "wait_for_background", {})), "Done."]
        talk = Session(create_graph_agent(ScriptedChatModel(replies), delegates=delegates, checkpointer=saver), "s1")
        await talk.run("Go.")
        await Session(create_graph_agent(ScriptedChatModel(["Hi."]), checkpointer=saver), "s1:a:12345678").run("Hello")
        [background] = await background_sessions(saver, "s1")
        async with lock_idle_session(saver, background):
            refused = run_cli(tmp_path, "sessions", "rm", "s1", "--yes", "--db", url)
            with pytest.raises(SessionBusyError):
                await anext(remove_sessions(url, ["s1"]))
    removed = run_cli(tmp_path, "sessions", "rm", "s1", "--yes", "--db", url)
    listed = run_cli(tmp_path, "sessions", "--quiet", "--db", url)

    assert (refused.returncode, f"{background!r} is running" in refused.stderr) == (2, True)
    assert (removed.returncode, listed.stdout) == (0, "s1:a:12345678\n")


async def test_a_background_task_of_a_wave_that_waits_is_deleted_with_its_parent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"

    def ask(text: str) -> str:
        """Ask a person."""
        return str(interrupt(text))

    task = asks(("a", "delegate_to_r", {"task": "Look.", "background": True}), ("b", "ask", {"text": "Which?"}))
    async with open_saver(url) as saver:
        child = create_graph_agent(ScriptedChatModel(["Found."]))
        delegates = [GraphDelegate("r", "Researches.", child, background=True)]
        parent = create_graph_agent(ScriptedChatModel([task]), tools=[ask], delegates=delegates, checkpointer=saver)
        waiting = await Session(parent, "s1").run("Go.")
        found = await background_sessions(saver, "s1")

    assert (waiting.waiting, len(found), found[0].startswith("s1:")) == ("answer", 1, True)


async def test_the_sessions_of_a_background_tasks_own_tasks_are_deleted_with_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"

    def delegating(agent: Any, *replies: Any, **options: Any) -> Any:
        task = asks(("a", "delegate_to_r", {"task": "Look.", "background": True}))
        script = ScriptedChatModel([*replies, task, asks(("w", "wait_for_background", {})), "Done."])
        delegates = [GraphDelegate("r", "Researches.", agent, background=True)]
        return create_graph_agent(script, delegates=delegates, **options)

    async with open_saver(url) as saver:
        child = delegating(create_graph_agent(ScriptedChatModel(["Found."])), "It is done.")
        await Session(delegating(child, checkpointer=saver), "s1").run("Go.")
        [background] = await background_sessions(saver, "s1")
        await Session(child.builder.compile(checkpointer=saver), background).run("Go on.")
        [nested] = await background_sessions(saver, background)
        async with lock_idle_session(saver, nested):
            refused = run_cli(tmp_path, "sessions", "rm", "s1", "--yes", "--db", url)
            with pytest.raises(SessionBusyError):
                await anext(remove_sessions(url, ["s1"]))
    listed = [run_cli(tmp_path, "sessions", "--quiet", "--db", url).stdout.splitlines()]
    removed = [each async for each in remove_sessions(url, ["s1"])]
    listed.append(run_cli(tmp_path, "sessions", "--quiet", "--db", url).stdout.splitlines())

    assert (refused.returncode, f"{nested!r} is running" in refused.stderr, removed) == (2, True, ["s1"])
    assert [sorted(each) for each in listed] == [["s1", background, nested], []]


async def test_the_command_prune_reports_each_session(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel(["Hi."], cycle=True), checkpointer=saver)
        for _ in range(3):
            await Session(graph, "s1").run("Hello")
    planned = run_cli(tmp_path, "prune", "--db", url, "--keep-last", "1", "--dry-run", "--json")
    done = run_cli(tmp_path, "prune", "--db", url, "--keep-last", "1", "--json")
    shown = run_cli(tmp_path, "prune", "--db", url, "--idle-for", "90m")
    wrong = [
        run_cli(tmp_path, "prune", "--db", url, *options)
        for options in (
            ("--idle-for", "5 years"),
            ("--keep-last", "2"),
            ("--older-than", "30d"),
            ("--keep-last", "1", "--idle-for", "1d"),
        )
    ]

    session, totals = (json.loads(line) for line in done.stdout.splitlines())
    assert (json.loads(planned.stdout.splitlines()[0]), session["session"], session["skipped"]) == (session, "s1", None)
    assert (totals["checkpoints"], totals["bytes"]) == (session["checkpoints"], session["bytes"])
    assert shown.stdout.startswith(
        "Removed 0 checkpoints with 0 writes: 0 B of stored data.\n"
        "3 checkpoints remain: 1 the first of a session; 1 the history of later ones; 1 the newest.\n"
        "The database takes "
    )
    assert [each.returncode for each in wrong] == [2, 2, 2, 2]
    assert "give --idle-for" in " ".join(wrong[2].stderr.split())


@pytest.mark.parametrize("options", [["--html", "--test"], ["--input", "1"], ["--html", "--all-checkpoints"]])
def test_an_export_refuses_options_of_another_form(options: list[str], tmp_path: Path) -> None:
    done = run_cli(tmp_path, "sessions", "export", "s", "--db", "sqlite:///a.db", *options)

    assert (done.returncode, "Invalid value" in done.stderr, done.stdout) == (2, True, "")
