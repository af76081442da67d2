"""Commands of a workspace: limits, what is left of them, and the sandbox."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.persistence import open_saver
from graph_agent.workspace import Shell, workspace_tools
from tests.support.agents import asks
from tests.support.cli import run_cli
from tests.support.sandbox import in_sandbox

HUNGRY = "import time; x = bytearray(300_000_000); time.sleep(1000)"
WORKS = Shell(sandbox="none", approve=False)


async def run(folder: Path, command: str, **options: Any) -> str:
    shell = Shell(**{**WORKS.model_dump(), **options})
    [tool] = [tool for tool in workspace_tools(folder, shell=shell) if tool.name == "run_command"]
    return str(await tool.ainvoke({"command": command}))


def alive(name: str) -> list[int]:
    """The processes that have a name in their command line."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if name in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


async def test_a_command_returns_its_status_and_both_outputs_in_order(tmp_path: Path) -> None:
    assert await run(tmp_path, "echo a; echo b >&2; cat; pwd; exit 3") == f"exit status 3\na\nb\n{tmp_path}"


async def test_secrets_of_this_process_are_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    names = {line.partition("=")[0] for line in (await run(tmp_path, "env", env={"OWN": "1"})).splitlines()[1:]}

    assert names - {"_", "SHLVL"} == {"GRAPH_AGENT_COMMAND", "HOME", "LANG", "OWN", "PATH", "PWD", "TERM"}


@pytest.mark.parametrize(
    ("command", "options", "first"),
    [
        ("sleep 1000", {"timeout_s": 0.3}, "stopped after 0.3 s"),
        ("trap '' TERM INT HUP; while :; do sleep 1; done", {"timeout_s": 0.3}, "stopped after 0.3 s"),
        ("for i in 1 2 3 4 5 6; do sleep 1000 & done; wait", {"processes": 3}, "stopped: it had "),
        (f"python3 -c '{HUNGRY}'", {"memory_mb": 200}, "stopped: it used "),
    ],
    ids=["time", "time-without-signals", "processes", "memory"],
)
async def test_a_command_over_a_limit_is_stopped(
    tmp_path: Path, command: str, options: dict[str, Any], first: str
) -> None:
    async with asyncio.timeout(60):
        assert (await run(tmp_path, command, **options)).startswith(first)


async def test_a_long_output_keeps_its_two_ends(tmp_path: Path) -> None:
    found = await run(tmp_path, "echo begin; yes | head -c 5000000; echo end", output_bytes=100)

    assert (len(found) < 200, found.splitlines()[:2], found.splitlines()[-1], "bytes left out" in found) == (
        True,
        ["exit status 0", "begin"],
        "end",
        True,
    )


@pytest.mark.parametrize("command", ["sleep {} & echo started", "setsid sh -c 'sleep {} & sleep {}' & sleep 0.2"])
async def test_nothing_of_a_command_survives_it(tmp_path: Path, command: str) -> None:
    seconds = str(10_000 + os.getpid())

    async with asyncio.timeout(60):
        await run(tmp_path, command.replace("{}", seconds))

    assert alive(seconds) == []


async def test_nothing_of_a_cancelled_command_survives_it(tmp_path: Path) -> None:
    seconds = str(20_000 + os.getpid())
    found = []
    # Often the command has begun before its start has returned.
    for attempt in range(20):
        task = asyncio.create_task(run(tmp_path, f"touch started{attempt}; sleep {seconds}"))
        async with asyncio.timeout(60):
            while not (tmp_path / f"started{attempt}").exists():
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        found.append((task.cancelled(), alive(seconds)))

    assert found == [(True, [])] * 20


@in_sandbox
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat ../outside/secret.txt", "No such file"),
        ("cat {outside}/secret.txt", "No such file"),
        ("ln -s {outside}/secret.txt l; cat l", "No such file"),
        ("ln {outside}/secret.txt l", "No such file"),
        ("echo x > ../escaped; ls {outside}/..", "No such file"),
        ("cat /etc/shadow", "No such file"),
        ("ls -a /root/.ssh ~/.ssh", "No such file"),
        ("echo x > /usr/escaped", "Read-only file system"),
        ("kill -9 {pid}", "No such process"),
        ("cat /proc/{pid}/environ", "No such file"),
        ("nsenter -t 1 -m ls {outside}", "ermitted|denied|No such file|not permitted"),
        ("mount -t tmpfs none /mnt", "not permitted|denied|must be superuser|does not exist|not exist"),
        ("echo x > .git/config", "Read-only file system"),
        ("mv .git other", "busy|Read-only"),
        ("echo x > /dev/tty", "No such device"),
        ("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 2)'", "refused|unreachable"),
    ],
)
async def test_a_command_in_the_sandbox_reaches_only_its_folder(tmp_path: Path, command: str, expected: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (outside / "secret.txt").write_text("the secret")
    (folder / ".git").mkdir(parents=True)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for name, value in (("outside", outside), ("pid", os.getpid()), ("port", port)):
            command = command.replace(f"{{{name}}}", str(value))
        found = await run(folder, command, sandbox="bubblewrap")

    assert "the secret" not in found
    assert re.search(expected, found), found
    assert [sorted(os.listdir(each)) for each in (tmp_path, outside, folder / ".git")] == [
        ["inside", "outside"],
        ["secret.txt"],
        [],
    ]


@in_sandbox
async def test_a_command_in_the_sandbox_writes_in_the_folder_and_may_reach_the_network(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        connect = f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 5)'"
        found = await run(tmp_path, f"{connect} && echo yes > made; pwd", sandbox="bubblewrap", network=True)

    assert (found, (tmp_path / "made").read_text()) == (f"exit status 0\n{tmp_path}", "yes\n")


async def test_a_command_line_of_ones_own_is_the_sandbox(tmp_path: Path) -> None:
    found = await run(tmp_path, "echo $0 $1", sandbox=("env", "-C", "{folder}", "sh", "-c", 'echo "$@"', "container"))

    assert found == "exit status 0\n/bin/sh -c echo $0 $1"


async def test_without_a_sandbox_a_person_approves_each_command(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    tools = workspace_tools(tmp_path / "work", shell=Shell(sandbox="none"), approve_edits=True)
    script = [
        asks(("a", "write_file", {"path": "x", "text": "1"}), ("b", "run_command", {"command": "cat x"})),
        asks(("c", "list_files", {})),
        "Done.",
    ]
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        agent = create_graph_agent(ScriptedChatModel(script), tools=tools, checkpointer=saver, config=LoopConfig())
        session = Session(agent, "s")
        waiting = await session.run("go")
        asked = [request["name"] for request in waiting.interrupts[0].value["action_requests"]]
        done = await session.resume({"decisions": [{"type": "approve"}] * 2})

    assert (asked, done.results["c"]) == (["write_file", "run_command"], "x")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda folder: workspace_tools(folder / "none"), "No such file or directory; create the folder"),
        (lambda folder: workspace_tools("/"), "is no folder below the root of the file system"),
        (lambda folder: Shell(timeout_s=0), "Shell: timeout_s=0"),
        (lambda folder: cast("Any", Shell)(sandboxed=True), "unknown field 'sandboxed'; did you mean 'sandbox'"),
    ],
    ids=["missing", "root", "limit", "unknown"],
)
def test_a_workspace_that_cannot_work_is_refused(tmp_path: Path, build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(tmp_path)


def test_an_agent_file_has_a_workspace(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.txt").write_text("hello")
    (tmp_path / "agent.yaml").write_text(
        "name: coder\nmodel: openai:gpt-4o-mini\n"
        "workspace: {folder: code, write: false, shell: {sandbox: none, approve: false, timeout_s: 30}}\n"
    )
    script = [asks(("a", "read_file", {"path": "a.txt"}), ("b", "run_command", {"command": "ls"})), "Done."]

    done = run_cli(tmp_path, "run", "--json", "--session", "s", "go", script=script)
    events = run_cli(tmp_path, "events", "s", "--json").stdout

    assert (done.returncode, '"content": "hello"' in events, "exit status 0\\na.txt" in events) == (0, True, True)
