"""Disconnected clients and failing cleanup: no request hangs, and nothing leaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from langchain_core.messages import HumanMessage

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.server import ServerSettings
from graph_agent.server.admission.gate import Caller
from graph_agent.server.chat.handler import Runs
from graph_agent.server.chat.run import ServerRun
from graph_agent.server.chat.run_spec import resolve_run
from graph_agent.server.chat.schemas import ChatRequest
from graph_agent.server.hosting.host import AgentSource, Host, open_host
from graph_agent.server.monitoring.metrics import Metrics
from graph_agent.server.problems import ProblemError
from tests.server.hosting import outcome_of

_SOURCE_NAME = "scripted"


@asynccontextmanager
async def hosting(answer: str) -> AsyncIterator[Host]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield create_graph_agent(ScriptedChatModel([answer], cycle=True))

    async with open_host(AgentSource(_SOURCE_NAME, "", "memory:", opened), ServerSettings()) as host:
        yield host


def ask(**fields: object) -> ChatRequest:
    return replace(ChatRequest([HumanMessage("hello")]), **fields)  # type: ignore[arg-type]  # a test's short way


async def test_a_client_that_reads_nothing_blocks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("graph_agent.server.chat.run._MOST_WAITING", 1)
    async with hosting("word") as host:
        runs = Runs(host, Metrics())
        spec = await resolve_run(host, Caller(""), ask())
        async with asyncio.timeout(30), runs.run(spec, streams=True) as running:
            # The run is over, and waits for space to report it.
            while not running.ended:
                await asyncio.sleep(0)

    assert running.ended


async def test_an_answer_is_sent_although_cleanup_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(thread: str) -> None:
        raise OSError(f"no disk for {thread} sk-secretsecretsecret")

    tool = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object", "properties": {}}}}
    async with hosting("fine") as host:
        spec = await resolve_run(host, Caller(""), ask(client_tools=[tool]))
        object.__setattr__(host, "forget", broken)
        running = ServerRun(host, spec, Metrics(), streams=False)
        async with asyncio.timeout(30):
            outcome = await outcome_of(running)

    assert (outcome.text, "secretsecret" in caplog.text, "no disk" in caplog.text) == ("fine", False, True)


async def test_an_internal_error_logs_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    async with hosting("fine") as host:
        spec = replace(await resolve_run(host, Caller(""), ask()), graph=object())  # type: ignore[arg-type]  # a fault of the server
        running = ServerRun(host, spec, Metrics(), streams=False)
        with caplog.at_level(logging.INFO), pytest.raises(ProblemError) as error:
            await running.part()

    assert (error.value.kind, [record.exc_info for record in caplog.records]) == ("internal", [None])
