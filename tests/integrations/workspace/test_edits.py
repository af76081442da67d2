"""Edits in parallel: none is lost, between calls of a wave, sessions, delegates and processes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphDelegate, ScriptedChatModel, Session, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.workspace import workspace_tools
from tests.support.agents import asks
from tests.support.warm_process import warm_python

COUNT = 8
FILLER = "x" * 2_000_000
EDITED = "".join(f"new{at}\n" for at in range(COUNT)) + FILLER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with a large file of numbered lines."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.txt").write_text("".join(f"old{at}\n" for at in range(COUNT)) + FILLER)
    return tmp_path / "inside"


def edit(at: int, path: str = "a.txt") -> tuple[str, str, dict[str, Any]]:
    return f"e{at}", "edit_file", {"path": path, "old": f"old{at}\n", "new": f"new{at}\n"}


def agent(folder: Path, *calls: tuple[str, str, dict[str, Any]], **options: Any) -> CompiledAgentGraph:
    model = ScriptedChatModel([asks(*calls), "No more actions.", "Done."])
    return create_graph_agent(model, tools=workspace_tools(folder), checkpointer=InMemorySaver(), **options)


async def test_the_edits_of_a_wave_are_all_kept(folder: Path) -> None:
    (folder / "link").symlink_to("a.txt")
    (folder / "here").symlink_to(".")
    paths = ["a.txt", "link", "here/a.txt", str(folder / "a.txt")]
    calls = [edit(at, paths[at % len(paths)]) for at in range(COUNT)]

    result = await Session(agent(folder, *calls), "s").run("go")

    assert [[call.status for call in result.calls], (folder / "a.txt").read_text() == EDITED] == [
        ["success"] * COUNT,
        True,
    ]
    assert sorted(os.listdir(folder)) == ["a.txt", "here", "link"]


async def test_edits_of_sessions_of_other_agents_are_kept(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    (folder / "below").symlink_to(folder)
    agents = [agent(folder.parent / "link" if at % 2 else folder, edit(at), edit(at + 1)) for at in range(0, COUNT, 2)]

    await asyncio.gather(*(Session(each, f"s{at}").run("go") for at, each in enumerate(agents)))

    assert (folder / "a.txt").read_text() == EDITED


async def test_edits_of_delegates_and_of_their_caller_are_kept(folder: Path) -> None:
    delegates = [GraphDelegate(f"d{at}", "Edits.", agent(folder, edit(at))) for at in range(COUNT - 2)]
    calls = [(f"c{at}", f"delegate_to_d{at}", {"task": "go"}) for at in range(COUNT - 2)]

    await Session(agent(folder, *calls, edit(6), edit(7), delegates=delegates), "s").run("go")

    assert (folder / "a.txt").read_text() == EDITED


EDITS = """
import sys
from graph_agent.workspace import workspace_tools
[tool] = [tool for tool in workspace_tools(sys.argv[1]) if tool.name == "edit_file"]
print("ready", flush=True)
sys.stdin.readline()
for at in sys.argv[2:]:
    tool.invoke({"path": "a.txt", "old": f"old{at}\\n", "new": f"new{at}\\n"})
"""


async def test_edits_of_two_processes_are_all_kept(folder: Path) -> None:
    count = 100
    (folder / "a.txt").write_text("".join(f"old{at}\n" for at in range(count)) + FILLER)
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(
            warm_python(), "-c", EDITS, folder, *map(str, range(start, count, 2)), stdin=pipe, stdout=pipe
        )
        for start in (0, 1)
    ]
    for process in processes:
        assert process.stdout is not None
        await process.stdout.readline()
    await asyncio.gather(*(process.communicate(b"\n") for process in processes))

    expected = "".join(f"new{at}\n" for at in range(count)) + FILLER
    assert ((folder / "a.txt").read_text() == expected, [process.returncode for process in processes]) == (True, [0, 0])


async def test_a_write_among_edits_comes_before_or_after_each(folder: Path) -> None:
    text = "".join(f"old{at}\n" for at in range(COUNT)) + "written\n"
    write = ("w", "write_file", {"path": "a.txt", "text": text})

    result = await Session(agent(folder, *map(edit, range(4)), write, *map(edit, range(4, COUNT))), "s").run("go")

    found = (folder / "a.txt").read_text().splitlines()
    assert ([call.status for call in result.calls], found[-1], len(found)) == (
        ["success"] * (COUNT + 1),
        "written",
        COUNT + 1,
    )
    assert all(line in (f"old{at}", f"new{at}") for at, line in enumerate(found[:-1]))


def test_a_change_of_another_program_is_not_overwritten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [tool] = [tool for tool in workspace_tools(folder) if tool.name == "edit_file"]
    fchmod = os.fchmod

    def change(descriptor: int, mode: int) -> None:
        # The new text is being written.
        (folder / "a.txt").write_text("another program's")
        fchmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", change)

    with pytest.raises(ToolException, match=r"a\.txt has been changed by another program; read it and edit it again\."):
        tool.invoke(edit(0)[2])
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("a.txt", "another program's")]


async def test_a_folder_that_another_process_has_locked_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graph_agent.integrations.workspace.folder._LOCK_S", 0.1)
    locks = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(1, flush=True)"
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-c", f"{locks}; sys.stdin.readline()", str(folder)]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    await process.stdout.readline()
    [tool] = [tool for tool in workspace_tools(folder) if tool.name == "write_file"]

    with pytest.raises(ToolException, match="another process has locked its folder"):
        await tool.ainvoke({"path": "a.txt", "text": "x"})
    await process.communicate(b"\n")
    assert await tool.ainvoke({"path": "a.txt", "text": "x"}) == "Replaced a.txt."
