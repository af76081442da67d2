"""Agents with a memory: what they keep and recall, for whom, and once."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import (
    AgentContext,
    GraphDelegate,
    LoopConfig,
    LoopHook,
    LoopPlan,
    ScriptedChatModel,
    Session,
    create_graph_agent,
)
from graph_agent.errors import ConfigError
from graph_agent.memory import Memory, open_memory
from tests.support.cli import run_cli
from tests.support.warm_process import ONLY_OUR_PLUGIN, warm_python

ALICE, BOB = {"caller": "alice"}, {"caller": "bob"}
AGENT = """
name: butler
model: openai:gpt-4o-mini
memory: true
db: sqlite:///butler.db
tools: [own_tools:end_this_process]
"""
TOOLS = """
import os, sqlite3, time

def end_this_process() -> str:
    '''End the process once the fact is stored.'''
    while not os.path.exists("resumed"):
        with sqlite3.connect("butler.db") as file:
            if file.execute("SELECT count(*) FROM store WHERE prefix LIKE 'memories.%'").fetchone()[0]:
                open("resumed", "w").close()
                os._exit(9)
        time.sleep(0.01)
    return "ended"
end_this_process.metadata = {"effect": "read"}
"""


def keeps(content: str, id_: str = "c1", **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": id_, "name": "manage_memory", "args": {"content": content, **arguments}}])


def agent_of(memory: Memory, *replies: Any, **options: Any) -> Any:
    return create_graph_agent(ScriptedChatModel([*replies]), memory=memory, checkpointer=InMemorySaver(), **options)


def recalled_in(agent: Any) -> list[str]:
    """The texts of the facts in the newest request."""
    messages = agent.builder.model.requests[-1].messages
    notes = [message.text for message in messages if message.text.startswith("[Notice of the framework, not")]
    return [line.partition(": ")[2].rstrip("]") for note in notes for line in note.splitlines()[1:]]


async def test_a_fact_of_one_session_is_in_the_requests_of_the_next_one_of_its_user_only() -> None:
    async with open_memory("memory:") as memory:
        agent = agent_of(memory, keeps("Eats no meat."), "Kept.", "No meat.", "I do not know.")
        await Session(agent, "s1").run("I eat no meat.", context=ALICE)
        session = Session(agent, "s2")
        await session.run("What do I eat?", context=ALICE)
        of_alice, events = recalled_in(agent), await session.events()
        stranger = Session(agent, "s3")
        await stranger.run("What do I eat?", context=BOB)
        [fact] = await memory.facts("alice")

    assert (of_alice, recalled_in(agent)) == (["Eats no meat."], [])
    assert [event["facts"] for event in events if event["type"] == "recall"] == [[fact.id]]
    assert "recall" not in [event["type"] for event in await stranger.events()]
    assert "Eats no meat." not in json.dumps(events)


async def test_the_model_cannot_name_another_user_or_a_fact_of_one() -> None:
    async with open_memory("memory:") as memory:
        id_ = await memory.keep("bob", "Has a cat.")
        agent = agent_of(
            memory,
            keeps("Has a dog.", action="update", id=id_),
            AIMessage(
                "",
                tool_calls=[{"id": "c2", "name": "search_memory", "args": {"query": "cat", "filter": {"user": "bob"}}}],
            ),
            "Nothing.",
        )
        result = await Session(agent, "s1").run("What does Bob have?", context=ALICE)
        facts = [fact.content for fact in await memory.facts("bob")], await memory.facts("alice")

    assert (f"There is no memory {id_}" in str(result.calls[0]), result.results["c2"]) == (True, "[]")
    assert facts == (["Has a cat."], [])


@pytest.mark.parametrize("action", ["update", "delete"])
async def test_an_unknown_fact_is_explained_to_the_model(action: str) -> None:
    id_ = "12345678-1234-1234-1234-123456789abc"
    async with open_memory("memory:") as memory:
        agent = agent_of(memory, keeps("Has a dog.", action=action, id=id_), "Sorry.")
        result = await agent.session("s1").run("No cat.", context={"caller": "alice"})

    assert f"There is no memory {id_}; search for it, or create one without an id." in str(result.calls[0])


async def test_a_fact_forgotten_during_an_input_is_not_in_its_next_request() -> None:
    async with open_memory("memory:") as memory:
        id_ = await memory.keep("alice", "Has a cat.")
        agent = agent_of(memory, keeps("", action="delete", id=id_), "Forgotten.")
        session = Session(agent, "s1")
        await session.run("Forget that I have a cat.", context=ALICE)
        requests = agent.builder.model.requests
        events = await session.events()

    assert ["Has a cat." in str(request.messages) for request in requests] == [True, False]
    assert [event["facts"] for event in events if event["type"] == "recall"] == [[id_]]


async def test_a_run_without_a_caller_is_refused() -> None:
    async with open_memory("memory:") as memory:
        agent = agent_of(memory, "Hello.")
        with pytest.raises(ConfigError, match=r"no authenticated caller.*context=\{'caller': 'alice'\}"):
            await Session(agent, "s1").run("Hello.")
        with pytest.raises(ConfigError, match="caller belongs to one run's context"):
            await Session(agent, "s1").configure(**cast("Any", {"caller": "alice"}))


async def test_a_memory_that_cannot_be_read_is_a_warning() -> None:
    class Lost(Memory):
        async def recall(self, caller: str, text: str, *, most: int | None = None) -> Any:
            raise OSError("no such database")

    async with open_memory("memory:") as memory:
        agent = agent_of(Lost(memory._store), "Hello.")
        session = Session(agent, "s1")
        result = await session.run("Hello.", context=ALICE)

    warnings = [event["message"] for event in await session.events() if event["type"] == "warning"]
    assert (result.answer, warnings) == (
        "Hello.",
        ["The memory could not be read, so this answer uses no facts of earlier sessions."],
    )


async def test_hooks_and_own_contexts_keep_the_recalled_facts() -> None:
    class Again(LoopHook):
        async def should_run(self, response: Any, request: Any) -> tuple[bool, Any]:
            return request.depth == 0, None

        async def build_plan(self, context: Any, response: Any, request: Any) -> LoopPlan:
            return LoopPlan(run_agentic_loop=True)

    class Own(AgentContext):
        shop: str = "north"

    async with open_memory("memory:") as memory:
        await memory.keep("alice", "Has a cat.")
        agent = agent_of(memory, "A dog.", "A cat.", hooks=[Again()], context_schema=Own)
        await Session(agent, "s1").run("What do I have?", context=Own(caller="alice"))
        counts = [str(request.messages).count("Has a cat.") for request in agent.builder.model.requests]

    assert counts == [1, 1]


def test_a_write_that_a_crash_interrupted_is_made_once_by_another_process(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / "own_tools.py").write_text(TOOLS)
    calls = [
        {"id": "c1", "name": "manage_memory", "arguments": {"content": "Has a cat named Ada."}},
        {"id": "c2", "name": "end_this_process", "arguments": {}},
    ]
    killed = run_cli(
        tmp_path, "run", "--session", "s", "I have a cat named Ada.", script=[json.dumps({"tool_calls": calls})]
    )
    resumed = run_cli(tmp_path, "resume", "s", script=["Kept."])
    facts = run_cli(tmp_path, "memory", "--json")
    [fact] = map(json.loads, facts.stdout.splitlines())
    edited = run_cli(tmp_path, "memory", "edit", fact["id"], "Has a cat named Grace.")
    asked = run_cli(tmp_path, "run", "What is my cat's name?", script=["Grace."])
    others = run_cli(tmp_path, "memory", "--user", "somebody")
    forgotten = run_cli(tmp_path, "memory", "forget", fact["id"])
    unknown = run_cli(tmp_path, "memory", "forget", "x")

    assert (killed.returncode, resumed.returncode, fact["content"]) == (9, 0, "Has a cat named Ada.")
    assert (edited.returncode, forgotten.returncode, unknown.returncode) == (0, 0, 2)
    assert "  memory: 1 fact about you" in asked.stdout
    none = "There are no facts of the user somebody yet; --user names another.\n"
    assert (others.stdout, others.stderr) == ("", none)
    assert "There is no fact 'x'" in unknown.stderr


async def test_a_delegate_has_the_caller_of_its_parent() -> None:
    async with open_memory("memory:") as memory:
        await memory.keep("alice", "Has a cat.")
        await memory.keep("bob", "Has a dog.")
        inner = create_graph_agent(ScriptedChatModel(["A cat."]), memory=memory)
        call = {"id": "c1", "name": "delegate_to_pets", "args": {"task": "What pet is there?"}}
        outer = create_graph_agent(
            ScriptedChatModel([AIMessage("", tool_calls=[call]), "A cat."]),
            delegates=[GraphDelegate("pets", "Knows pets.", inner)],
            checkpointer=InMemorySaver(),
        )
        await Session(outer, "s1").run("What pet do I have?", context={"caller": "alice"})

    assert recalled_in(inner) == ["Has a cat."]


async def test_an_agent_with_a_context_class_of_its_own_takes_the_caller_with_its_fields() -> None:
    @dataclass
    class Shop:
        name: str = "north"

    async with open_memory("memory:") as memory:
        await memory.keep("alice", "Has a cat.")
        agent = agent_of(memory, "A cat.", context_schema=Shop)
        await Session(agent, "s1").run("What do I have?", context={"name": "south", "caller": "alice"})

    assert recalled_in(agent) == ["Has a cat."]


async def test_a_call_without_a_text_changes_no_fact() -> None:
    async with open_memory("memory:") as memory:
        known = await memory.keep("alice", "Allergic to nuts.")
        without = [{"id": known, "action": "update"}, {}]
        calls = [{"id": f"c{at}", "name": "manage_memory", "args": args} for at, args in enumerate(without)]
        agent = agent_of(memory, AIMessage("", tool_calls=cast("Any", calls)), "I could not.")
        result = await Session(agent, "s1").run("Forget my allergy.", context=ALICE)
        facts = await memory.facts("alice")

    assert ([call.status for call in result.calls], [fact.content for fact in facts]) == (
        ["error", "error"],
        ["Allergic to nuts."],
    )


async def test_a_delegate_that_repeats_the_id_of_a_call_keeps_both_facts() -> None:
    async with open_memory("memory:") as memory:
        child = create_graph_agent(
            ScriptedChatModel([keeps("Likes tea."), "Kept.", keeps("Likes rain."), "Kept."]), memory=memory
        )
        asks = [json.dumps({"tool_calls": [{"name": "delegate_to_clerk", "arguments": {"task": "Note it."}}]}), "Done."]
        delegates = [GraphDelegate("clerk", "Notes facts.", child)]
        agent: Any = create_graph_agent(ScriptedChatModel(asks * 2), delegates=delegates, checkpointer=InMemorySaver())
        session = Session(agent, "s1")
        for text in ("I like tea.", "I like rain."):
            await session.run(text, context=ALICE)
        facts = await memory.facts("alice")

    assert sorted(fact.content for fact in facts) == ["Likes rain.", "Likes tea."]


def test_a_session_with_a_memory_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: butler\nmodel: openai:gpt-4o-mini\nmemory: true\ndb: sqlite:///b.db\n")
    call = json.dumps({"tool_calls": [{"name": "manage_memory", "arguments": {"content": "Eats no meat."}}]})
    run_cli(tmp_path, "run", "--session", "s1", "I eat no meat.", script=[call, "Kept."])

    replayed = run_cli(tmp_path, "replay", "s1", OPENAI_API_KEY="sk-none")

    assert (replayed.returncode, "Equal" in replayed.stdout) == (0, True), replayed.stdout + replayed.stderr


def test_an_exported_test_of_an_agent_with_a_memory_passes(tmp_path: Path) -> None:
    agent = {"name": "butler", "model": "openai:gpt-4o-mini", "memory": {"extract": True}, "db": "sqlite:///b.db"}
    (tmp_path / "agent.yaml").write_text(json.dumps(agent))
    call = json.dumps({"tool_calls": [{"name": "manage_memory", "arguments": {"content": "Eats no meat."}}]})
    none = '{"facts": []}'
    run_cli(tmp_path, "run", "--session", "s1", "I eat no meat.", script=[call, "Kept.", none])
    run_cli(tmp_path, "run", "--session", "s1", "What do I eat?", script=["No meat.", none])
    run_cli(tmp_path, "sessions", "export", "s1", "--test", "--out", "test_s1.py")

    command = [warm_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "test_s1.py"]
    environment = {**os.environ, **ONLY_OUR_PLUGIN}
    tested = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout


@pytest.mark.parametrize("context", [None, BOB], ids=["without a caller", "by a colleague"])
async def test_a_resumed_input_keeps_the_facts_of_the_user_who_began_it(context: Any) -> None:
    async with open_memory("memory:") as memory:
        agent = agent_of(memory, keeps("Eats no meat."), "Kept.", config=LoopConfig(approve="manage_memory"))
        session = agent.session("s1")
        await session.run("I eat no meat.", context=ALICE)
        result = await session.resume("approve", context=context)
        kept = {user: [fact.content for fact in await memory.facts(user)] for user in ("alice", "bob")}

    assert (result.answer, kept) == ("Kept.", {"alice": ["Eats no meat."], "bob": []})
