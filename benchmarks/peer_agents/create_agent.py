"""LangChain's `create_agent`, on LangGraph's saver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from langchain.agents import create_agent

from benchmarks.peer_agents.langchain_model import CountingModel, asking, lookup_tool, stock_saver

STORES = "LangGraph's SQLite saver"


@asynccontextmanager
async def opened(turns: int, folder: Path | None) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Open an agent."""
    async with stock_saver(folder) as saver:
        yield asking(create_agent(CountingModel(), [lookup_tool()], checkpointer=saver), turns)
