"""The chat handler without HTTP, for tests that hold a run at one point."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from graph_agent.compiled import CompiledAgentGraph
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.handler import Runs
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome
from graph_agent.interfaces.server.chat.run import RunEnded, ServerRun
from graph_agent.interfaces.server.chat.run_spec import RunSpec, resolve_once
from graph_agent.interfaces.server.chat.schemas import ChatRequest
from graph_agent.interfaces.server.host import Host, open_host
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.interfaces.server.sessions import Sessions
from graph_agent.server import AgentSource, ServerSettings

ANONYMOUS = Caller("")
MINE: dict[str, Any] = {
    "type": "function",
    "function": {"name": "mine", "parameters": {"type": "object", "properties": {}}},
}
"""A client tool."""


@asynccontextmanager
async def running(graph: CompiledAgentGraph) -> AsyncIterator[Runs]:
    """The runs of an agent whose sessions are in memory."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield graph

    source = AgentSource("scripted", "", "memory:", opened)
    async with open_host(source, ServerSettings()) as host, aclosing(Runs(host, Metrics())) as runs:
        yield runs


def ask(*messages: AnyMessage, **fields: Any) -> ChatRequest:
    """A chat request; its message is "hello" by default."""
    return replace(ChatRequest(list(messages) or [HumanMessage("hello")]), **fields)


def with_results(calls: list[dict[str, Any]], words: Any = "", **fields: Any) -> ChatRequest:
    """A request that continues with the results of client tools, and optional text or blocks."""
    called = AIMessage("", tool_calls=[{"id": call["id"], "name": call["name"], "args": {}} for call in calls])
    results = [ToolMessage(f"did {call['name']}", tool_call_id=call["id"]) for call in calls]
    inputs = [HumanMessage(words)] if words else []
    return ask(HumanMessage("hello"), called, *results, *inputs, client_tools=[MINE], **fields)


def sessions_of(runs: Runs) -> Sessions:
    """The sessions of a server without keys."""
    return Sessions(runs, ANONYMOUS)


async def spec_of(host: Host, request: ChatRequest, caller: Caller = ANONYMOUS) -> RunSpec:
    """The run that a request asks for."""
    return await resolve_once(host, caller, request)


async def start_run(host: Host, request: ChatRequest) -> ServerRun:
    """A request's run, which only the test stops."""
    return ServerRun(host, await spec_of(host, request), Metrics(), streams=False)


async def outcome_of(running: ServerRun) -> ChatOutcome:
    """The outcome of a run; raises the problem that its client would receive."""
    while True:
        part = await running.part()
        if isinstance(part, RunEnded):
            return part.outcome


async def answered(host: Host, request: ChatRequest) -> ChatOutcome:
    """One request, from beginning to end."""
    return await outcome_of(await start_run(host, request))
