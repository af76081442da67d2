"""Delegates of an agent file that are agent files, and middleware by name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from langchain_core.messages import ToolMessage

from graph_agent import Session
from graph_agent.compiled import AgentStateGraph
from graph_agent.errors import ConfigError
from graph_agent.spec import load_spec, open_agent

MODULE = """
from graph_agent import ScriptedChatModel

def lead():
    return ScriptedChatModel([
        '{"tool_calls": [{"id": "a", "name": "delegate_to_librarian", "arguments": {"task": "How far is Mars?"}}]}',
        "No more actions.",
        "Far.",
    ])

def librarian():
    return ScriptedChatModel([
        '{"tool_calls": [{"id": "b", "name": "look_up", "arguments": {"word": "Mars"}}]}',
        "No more actions.",
        "225 million km.",
    ])

def look_up(word: str) -> str:
    "Look a word up."
    return f"{word}: 225"
"""
LEAD = """
name: lead
model: parts:lead
config: {tool_calling: native}
db: "sqlite:///lead.db"
delegates: [{agent: library/librarian.yaml%s}]
"""
LIBRARIAN = """
name: librarian
description: Knows facts about planets.
model: parts:librarian
tools: ["parts:look_up"]
config: {tool_calling: native}
credentials: {library: {env: LIBRARY_TOKEN}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two agent files, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEBUG_MOCK_RESPONSES", raising=False)
    monkeypatch.setenv("LIBRARY_TOKEN", "secret")
    (tmp_path / "library").mkdir()
    for where in (tmp_path, tmp_path / "library"):
        (where / "parts.py").write_text(MODULE)
    (tmp_path / "library" / "librarian.yaml").write_text(LIBRARIAN)
    (tmp_path / "lead.yaml").write_text(LEAD % "")
    return tmp_path


async def test_an_agent_file_is_a_delegate_in_the_same_process_and_database(folder: Path) -> None:
    async with open_agent(load_spec("lead.yaml")) as agent:
        talk = Session(agent, "s1")
        result = await talk.run("How far is Mars?")
        events = await talk.events()
    databases = await asyncio.to_thread(lambda: sorted(file.name for file in folder.glob("**/*.db")))

    (response,) = [event for event in events if event["type"] == "delegation_response"]
    inner = [event["content"] for event in response["history"] if event["type"] == "tool_result"]
    assert (result.answer, result.results, inner, databases) == (
        "Far.",
        {"a": "225 million km."},
        ["Mars: 225"],
        ["lead.db"],
    )


async def test_an_agent_and_its_delegate_each_have_the_whole_script_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = '{"tool_calls": [{"id": "a", "name": "delegate_to_librarian", "arguments": {"task": "How far is Mars?"}}]}'
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps([call, "Far."]))

    async with open_agent(load_spec("lead.yaml")) as agent:
        result = await Session(agent, "s1").run("How far is Mars?")

    # The delegate has no such delegate itself, and goes on to the second reply.
    assert (result.answer, result.results) == ("Far.", {"a": "Far."})


async def test_approvals_of_an_agent_file_that_is_a_delegate_are_in_the_history_of_the_session(folder: Path) -> None:
    (folder / "library" / "librarian.yaml").write_text(LIBRARIAN + "approve: [look_up]\n")
    async with open_agent(load_spec("lead.yaml")) as agent:
        session = Session(agent, "s1")
        await session.run("How far is Mars?")
        (question,) = await session.interrupts()
        result = await session.resume("approve", decided_by="ana")
        events = [event for event in await session.events() if event["type"].startswith("approval")]

    sources = [(event["type"], event["delegate"], event["delegation"]) for event in events]  # type: ignore[typeddict-item]  # of approvals
    assert (question.value["delegate"], result.answer, sources, events[1]["decided_by"]) == (  # type: ignore[typeddict-item]  # of a decision
        "librarian",
        "Far.",
        [("approval_request", "librarian", "a"), ("approval_decision", "librarian", "a")],
        "ana",
    )


async def test_a_delegate_may_have_a_name_and_a_description_of_its_own(folder: Path) -> None:
    (folder / "lead.yaml").write_text(LEAD % ", name: astronomer, description: Measures.")

    async with open_agent(load_spec("lead.yaml"), db="") as agent:
        assert isinstance(agent.builder, AgentStateGraph)
        (offered,) = agent.builder.deps.toolbox.schemas

    function = offered["function"]
    assert (function["name"], "Measures." in function["description"]) == ("delegate_to_astronomer", True)


async def test_agent_files_that_delegate_to_each_other_are_refused(folder: Path) -> None:
    librarian = folder / "library" / "librarian.yaml"
    librarian.write_text(LIBRARIAN + "delegates: [{agent: ../lead.yaml}]\n")

    with pytest.raises(ConfigError, match=r"delegate to each other \(lead\.yaml → librarian\.yaml → lead\.yaml\)"):
        async with open_agent(load_spec("lead.yaml"), db=""):
            pass


async def test_a_fault_of_a_delegate_names_both_files(folder: Path) -> None:
    (folder / "library" / "librarian.yaml").write_text(LIBRARIAN.replace("look_up", "look_down"))

    with pytest.raises(ConfigError) as caught:
        async with open_agent(load_spec("lead.yaml"), db=""):
            pass

    assert "lead.yaml: delegates.0: Agent file" in str(caught.value)
    assert "librarian.yaml: tools.0: 'parts:look_down'" in str(caught.value)


async def test_middleware_is_named_as_langchain_names_it(folder: Path) -> None:
    (folder / "lead.yaml").write_text(
        """
name: lead
model: parts:librarian
tools: ["parts:look_up"]
config: {tool_calling: native}
middleware: [{use: ToolRetryMiddleware, with: {max_retries: 1}}, ContextEditingMiddleware]
"""
    )

    async with open_agent(load_spec("lead.yaml"), db="") as agent:
        state = await agent.ainvoke({"messages": [("user", "How far is Mars?")]})

    assert [message.text for message in state["messages"] if isinstance(message, ToolMessage)] == ["Mars: 225"]
