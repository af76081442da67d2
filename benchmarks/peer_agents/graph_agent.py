"""This project, on its own saver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from benchmarks.peer_agents.langchain_model import CountingModel, asking, lookup_tool
from graph_agent import LoopConfig, create_graph_agent
from graph_agent.persistence import open_saver

STORES = "its own SQLite saver"


@asynccontextmanager
async def opened(turns: int, folder: Path | None) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Open an agent."""
    async with open_saver(f"sqlite:///{folder / 'sessions.db'}") if folder else nullcontext() as saver:
        config = LoopConfig(max_steps=turns + 1)
        yield asking(create_graph_agent(CountingModel(), [lookup_tool()], config=config, checkpointer=saver), turns)
