"""The repository assistant: the example as a file and in Python, on a copy of its sample."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from langchain_core.tools import ToolException

from graph_agent import Session
from graph_agent.approvals import Decision, approve, edit, reject
from graph_agent.mcp import open_mcp_tools
from graph_agent.spec import load_spec, open_agent
from tests.support.warm_process import warm_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "repo_assistant"
REQUEST = "Correct the spelling mistake in the sample."
WRONG = "# Orders\n\nWe recieve orders by mail and send the goods within two days.\n"
RIGHT = WRONG.replace("recieve", "receive")


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sample, on which the example works."""
    folder = tmp_path / "sample"
    shutil.copytree(EXAMPLE / "sample", folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPO", str(folder))
    monkeypatch.setattr("sys.executable", warm_python())  # an MCP server with the command `python`
    for name in ("OPENAI_API_KEY", "DEBUG_MOCK_RESPONSES"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (approve(), RIGHT),
        (reject("Leave it."), WRONG),
        (edit({"path": "orders.md", "text": "# Orders\n"}), "# Orders\n"),
    ],
    ids=["approve", "reject", "edit"],
)
async def test_a_file_is_written_as_the_person_decides(sample: Path, decision: Decision, text: str) -> None:
    async with open_agent(load_spec(EXAMPLE / "agent.yaml")) as agent:
        session = Session(agent, "s1")
        waiting = await session.run(REQUEST)
        before = (sample / "orders.md").read_text()
        result = await session.resume({"decisions": [decision]})
        events = await session.events()

    (interrupt,) = waiting.interrupts
    assert result.structured_response is not None
    assert {
        "asked": [request["name"] for request in interrupt.value["action_requests"]],
        "not written yet": before,
        "written": (sample / "orders.md").read_text(),
        "answer": result.structured_response.model_dump(),
        "delegations": [event["target"] for event in events if event["type"] == "delegation_request"],
        "calls": sum(event["type"] == "tool_result" for event in events),
    } == {
        "asked": ["write_file"],
        "not written yet": WRONG,
        "written": text,
        "answer": {"summary": "Corrected 'recieve' to 'receive'.", "changed_files": ["orders.md"]},
        "delegations": ["reviewer"],
        "calls": 5,
    }


async def test_the_python_form_asks_on_the_terminal(sample: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        warm_python(),
        str(EXAMPLE / "assistant.py"),
        REQUEST,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )

    printed, _ = await process.communicate(b"y\n")

    answer = "summary=\"Corrected 'recieve' to 'receive'.\" changed_files=['orders.md']"
    assert (process.returncode, answer in printed.decode(), (sample / "orders.md").read_text()) == (0, True, RIGHT)


async def test_the_file_tools_refuse_a_path_outside_the_repository(sample: Path) -> None:
    connection = {"transport": "stdio", "command": warm_python(), "args": [str(EXAMPLE / "files_server.py")]}

    async with open_mcp_tools({"files": {**connection, "env": {"REPO": str(sample)}}}) as tools:
        read_file = next(tool for tool in tools if tool.name == "read_file")
        with pytest.raises(ToolException, match=r"'\.\./secret' is outside the repository"):
            await read_file.ainvoke({"path": "../secret"})
