"""Disconnected clients and failing cleanup: no request hangs, and nothing leaks."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.interfaces.server.chat.run import ServerRun
from graph_agent.interfaces.server.problems import ProblemError
from tests.interfaces.server.hosting import MINE, ask, outcome_of, running, spec_of, start_run


def word() -> CompiledAgentGraph:
    return create_graph_agent(ScriptedChatModel(["word"], cycle=True))


async def test_a_client_that_reads_nothing_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph_agent.interfaces.server.chat.run._MOST_WAITING", 1)
    async with running(word()) as runs:
        spec = await spec_of(runs.host, ask())
        async with asyncio.timeout(30), runs.run(spec, streams=True) as run:
            # The run is over, and waits for space to report it.
            while not run.ended:
                await asyncio.sleep(0)

    assert run.ended


async def test_an_answer_is_sent_although_cleanup_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(thread: str) -> None:
        raise OSError(f"no disk for {thread} sk-secretsecretsecret")

    async with running(word()) as runs:
        run = await start_run(runs.host, ask(client_tools=[MINE]))
        object.__setattr__(runs.host, "forget", broken)
        async with asyncio.timeout(30):
            outcome = await outcome_of(run)

    assert (outcome.text, "secretsecret" in caplog.text, "no disk" in caplog.text) == ("word", False, True)


async def test_an_internal_error_logs_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    async with running(word()) as runs:
        graph: Any = SimpleNamespace(checkpointer=None)  # a fault of the server: it cannot run
        spec = replace(await spec_of(runs.host, ask()), graph=graph)
        run = ServerRun(runs.host, spec, runs.metrics, streams=False)
        with caplog.at_level(logging.INFO), pytest.raises(ProblemError) as error:
            await run.part()

    assert (error.value.kind, [record.exc_info for record in caplog.records]) == ("internal", [None])
