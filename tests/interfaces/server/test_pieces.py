"""The parts of streamed answers: their pace, and which data of the run are among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.config import get_stream_writer

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.interfaces.server.chat.handler import between_pieces_s
from graph_agent.interfaces.server.chat.run import RunEnded, ServerRun
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.session.results import Progress
from tests.interfaces.server.hosting import ask, running, spec_of
from tests.support.agents import asks


@pytest.mark.parametrize(("runs", "expected"), [(1, 0.016), (8, 0.016), (32, 0.064), (1_000, 0.1)])
def test_active_runs_share_the_pieces_of_a_second(runs: int, expected: float) -> None:
    assert between_pieces_s(runs) == expected


async def test_data_of_a_tool_that_resembles_progress_is_not_sent() -> None:
    lookalikes: list[Any] = [
        {"type": "progress", "percent": 50},
        {"type": "progress", "step": object(), "action": "tool_call", "target": "x"},
        {"type": "progress", "step": 1, "action": "tool_call", "target": "x", "secret": 1},
    ]

    @tool
    async def imitates() -> str:
        """Write what looks like progress."""
        for each in lookalikes:
            get_stream_writer()(each)
        return "done"

    graph = create_graph_agent(ScriptedChatModel([asks(("c1", "imitates", {})), "Done."]), tools=[imitates])
    async with running(graph) as runs:
        spec = await spec_of(runs.host, ask(HumanMessage("go")))
        parts = [part async for part in _parts(ServerRun(runs.host, spec, Metrics(), streams=True))]

    assert [part for part in parts if isinstance(part, Progress)] == [Progress(1, "tool_call", "imitates")]


async def _parts(run: ServerRun) -> AsyncIterator[Any]:
    part: Any = None
    while not isinstance(part, RunEnded):
        part = await run.part()
        yield part
