"""Sessions in PostgreSQL, in a real server: what they keep, who reaches them, and how large they grow."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from graph_agent import LoopConfig, ScriptedChatModel, Session, SessionMemory, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.persistence import open_saver, open_store
from graph_agent.running import is_idle
from tests.agents import asks, echo
from tests.postgres_server import on_postgres

pytestmark = on_postgres


async def test_a_session_is_remembered_by_another_process(postgres_url: str) -> None:
    script = [asks(("1", "echo", {"text": "hi"})), "No more actions.", "One."]
    async with open_saver(postgres_url) as saver:
        first = await Session(create_graph_agent(ScriptedChatModel(script), tools=[echo], checkpointer=saver), "s1").run(
            "first"
        )
    async with open_saver(postgres_url) as saver:
        model = ScriptedChatModel(["Two."])
        graph = create_graph_agent(model, checkpointer=saver)
        second = await Session(graph, "s1").run("second")
        types = [event["type"] for event in await SessionMemory(graph).get_session_events("s1")]
        sessions = await SessionMemory(graph).list_sessions()
        idle = await is_idle(saver, "s1")

    assert (first.answer, first.results, second.answer, sessions, idle) == ("One.", {"1": "hi"}, "Two.", ["s1"], True)
    assert types == [
        *("user_message", "status", "plan", "tool_call", "tool_result", "plan", "agent_response", "status"),
        *("user_message", "status", "plan", "agent_response", "status"),
    ]
