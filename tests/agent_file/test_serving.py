"""A factory of an agent file that a server calls at each request."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from graph_agent.compiled import CompiledAgentGraph
from graph_agent.errors import ConfigError
from graph_agent.spec.served import ServedAgent, served
from tests.support.agents import asks, says

HOTEL_SERVER = Path(__file__).parents[2] / "examples" / "hotel" / "server.py"

IN_A_REFUSING_LOOP = """
import asyncio, sys
from blockbuster import blockbuster_ctx
from graph_agent.spec.served import served

async def main(agent):
    schema = {"type": "object", "properties": {"day": {"type": "string"}}}
    with blockbuster_ctx():
        async with agent.lifespan():
            graph = await agent()
            question = {"messages": [("user", "When is tomorrow?")]}
            print((await graph.ainvoke(question, context={"response_schema": schema}))["structured_response"])

asyncio.run(main(served(sys.argv[1])))
"""
"""A program that opens an agent and runs it where every blocking call in an event loop is an error."""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServedAgent:
    """An agent that asks the hotel's calendar for "tomorrow"; its server finds its files by the environment."""
    server = {
        "transport": "stdio",
        "command": "python",
        "args": [str(HOTEL_SERVER)],
        "env": {"HOTEL_DB": None, "NOT_SET_ANYWHERE": None},
    }
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps({"name": "desk", "model": "openai:gpt-4o-mini", "mcp_servers": {"hotel": server}}))
    script = [asks(("c1", "calendar.resolve_date_hint", {"phrase": "tomorrow"})), "No more actions.", "Done."]
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps(script))
    monkeypatch.setenv("HOTEL_DB", str(tmp_path / "rooms.db"))
    monkeypatch.setenv("GRAPH_AGENT_TODAY", "2026-11-21")
    return served(file)


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


async def test_all_calls_share_one_agent_until_the_lifespan_ends(agent: ServedAgent, tmp_path: Path) -> None:
    before = children()
    elsewhere: list[CompiledAgentGraph] = []
    thread = threading.Thread(target=lambda: elsewhere.append(asyncio.run(agent())))
    async with agent.lifespan():
        graphs = await asyncio.gather(agent(), agent())
        thread.start()
        await asyncio.to_thread(thread.join)
        servers = children() - before
        state: Any = await graphs[0].ainvoke(says("When is tomorrow?"))

    shared = {id(graph) for graph in [*graphs, *elsewhere]}
    assert (len(shared), len(servers), children() - before) == (1, 1, set())
    assert "2026-11-22" in state["messages"][2].text
    assert (graphs[0].checkpointer, (tmp_path / "rooms.db").exists()) == (None, True)


async def test_after_a_failure_the_next_call_tries_again(agent: ServedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_AGENT_TODAY", "tomorrow")
    with pytest.raises(ConfigError) as refusal:
        await agent()
    monkeypatch.setenv("GRAPH_AGENT_TODAY", "2026-11-21")
    try:
        graph = await agent()
    finally:
        agent.close()

    assert str(refusal.value) == "GRAPH_AGENT_TODAY='tomorrow' is no ISO date; write e.g. 2026-12-04, or unset it."
    assert graph.name == "desk"


def test_no_import_blocks_an_event_loop(agent: ServedAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps(['{"day": "2026-11-22"}']))
    # A process of its own, as modules are imported once.
    command = [sys.executable, "-c", IN_A_REFUSING_LOOP, str(agent.spec.path)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (done.stderr, done.stdout) == ("", "{'day': '2026-11-22'}\n")


def test_one_file_has_one_factory_and_a_wrong_one_none(agent: ServedAgent, tmp_path: Path) -> None:
    assert served(str(tmp_path / "agent.yaml")) is agent
    with pytest.raises(ConfigError, match="it is not there"):
        served(tmp_path / "none.yaml")
