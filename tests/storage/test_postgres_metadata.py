"""What PostgreSQL keeps of a run's `configurable`, where programs put secrets for their tools."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import asks, says

CANARY = "canary-5f0d1c77"


def dump(url: str) -> str:
    """Every row of every table of a database as text."""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = [connection.execute(f'SELECT * FROM "{name}"'.encode()).fetchall() for (name,) in tables]
    return repr(rows)


@pytest.mark.parametrize("own", [True, False], ids=["own", "langgraphs"])
async def test_nothing_of_configurable_is_stored(own: bool, postgres_url: str) -> None:
    seen: list[Any] = []

    @tool
    async def look(config: RunnableConfig) -> str:
        """Look."""
        seen.append(config["configurable"]["user_token"])
        return "looked"

    script = [asks(("1", "look", {})), "Done."]
    configurable = {"thread_id": "s1", "user_token": CANARY}
    async with open_saver(postgres_url) if own else AsyncPostgresSaver.from_conn_string(postgres_url) as saver:
        if isinstance(saver, AsyncPostgresSaver):
            await saver.setup()
        graph = create_graph_agent(ScriptedChatModel(script), tools=[look], checkpointer=saver)
        await graph.ainvoke(says("go"), {"configurable": configurable, "metadata": {"purpose": "a test"}})
    kept = dump(postgres_url)

    assert (seen, CANARY in kept, "purpose" in kept, "looked" in kept) == ([CANARY], False, True, True)
