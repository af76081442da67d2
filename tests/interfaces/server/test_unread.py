"""Clients that do not read: what waits for them is bounded by its size, and the run waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from a2a.types import Artifact, Part, TaskArtifactUpdateEvent
from a2a.utils.errors import InternalError
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk

from graph_agent import create_graph_agent
from graph_agent.interfaces.server.a2a.streams import MOST_WAITING_BYTES, bounded_stream
from graph_agent.interfaces.server.chat.handler import Runs
from graph_agent.interfaces.server.chat.run import RunEnded, ServerRun
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.session.results import Token
from tests.interfaces.server.hosting import ask, running, spec_of

PIECE = "x" * 50_000
PIECES = 400


class Writer(GenericFakeChatModel):
    """Streams 20 million characters."""

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(PIECES):
            yield ChatGenerationChunk(message=AIMessageChunk(content=PIECE))
            await asyncio.sleep(0)


async def stalled_run(runs: Runs, session_id: str | None) -> ServerRun:
    """A run whose reply waits, because its client reads nothing."""
    spec = await spec_of(runs.host, ask(session_id=session_id))
    run = ServerRun(runs.host, spec, Metrics(), streams=True, between_pieces_s=lambda: 0.0)
    waiting = -1
    while waiting != (waiting := run.waiting_chars) or not waiting:
        for _ in range(200):
            await asyncio.sleep(0.001)
    return run


@pytest.mark.parametrize("session", [None, "unread"])
async def test_a_run_waits_for_a_client_that_does_not_read(session: str | None) -> None:
    graph = create_graph_agent(Writer(messages=iter(())))
    async with running(graph) as runs:
        run = await stalled_run(runs, session)
        waiting, ended_before = run.waiting_chars, run.ended
        texts: list[int] = []
        while not isinstance(part := await run.part(), RunEnded):
            texts += [len(part.text)] if isinstance(part, Token) else []

    assert (ended_before, waiting < 700_000, sum(texts)) == (False, True, PIECES * len(PIECE))


async def test_a_cancelled_run_ends_though_its_client_does_not_read() -> None:
    graph = create_graph_agent(Writer(messages=iter(())))
    async with running(graph) as runs:
        run = await stalled_run(runs, "unread")

        run.cancel()
        async with asyncio.timeout(30):
            while not run.ended:
                await asyncio.sleep(0.001)
        await run.close()

    assert run.ended


async def updates(made: list[int]) -> AsyncGenerator[Any, None]:
    for number in range(PIECES):
        made.append(number)
        yield TaskArtifactUpdateEvent(task_id="t", artifact=Artifact(parts=[Part(text=PIECE)]))
        await asyncio.sleep(0)


async def test_a_subscriber_of_a_task_that_does_not_read_is_ended() -> None:
    made: list[int] = []
    async with aclosing(bounded_stream(updates(made))) as stream:
        await anext(stream)
        for _ in range(5 * PIECES):
            await asyncio.sleep(0)
        with pytest.raises(InternalError, match="not read in time"):
            await anext(stream)

    assert MOST_WAITING_BYTES // len(PIECE) <= len(made) <= MOST_WAITING_BYTES // len(PIECE) + 3


async def test_a_subscriber_of_a_task_that_reads_gets_every_update() -> None:
    made: list[int] = []
    read = [update async for update in bounded_stream(updates(made))]

    assert (len(read), len(made)) == (PIECES, PIECES)
