"""A server's inside without its HTTP, for tests that must hold a run at one point."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from graph_agent.compiled import CompiledAgentGraph
from graph_agent.server.admission.keys import Caller
from graph_agent.server.chat.active_runs import Runs
from graph_agent.server.chat.outcomes import Outcome
from graph_agent.server.chat.request import Ask
from graph_agent.server.chat.run import Ended, Running
from graph_agent.server.chat.turns import turn_for
from graph_agent.server.process.host import Host, open_host
from graph_agent.server.process.metrics import Metrics
from graph_agent.server.process.settings import ServerSettings
from graph_agent.server.process.sources import AgentSource

NOBODY = Caller("")
MINE: dict[str, Any] = {
    "type": "function",
    "function": {"name": "mine", "parameters": {"type": "object", "properties": {}}},
}
"""A tool of the caller's."""


@asynccontextmanager
async def running(graph: CompiledAgentGraph) -> AsyncIterator[Runs]:
    """The runs of an agent whose sessions are in memory."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield graph

    source = AgentSource("scripted", "", "memory:", opened)
    async with open_host(source, ServerSettings()) as host, aclosing(Runs(host, Metrics())) as runs:
        yield runs


def ask(*messages: AnyMessage, **fields: Any) -> Ask:
    """A request; it says hello where it says nothing."""
    return replace(Ask(list(messages) or [HumanMessage("hello")]), **fields)


def with_results(calls: list[dict[str, Any]], words: Any = "", **fields: Any) -> Ask:
    """A request that goes on with the results of a caller's own tools, and words, or blocks, beside them."""
    called = AIMessage("", tool_calls=[{"id": call["id"], "name": call["name"], "args": {}} for call in calls])
    results = [ToolMessage(f"did {call['name']}", tool_call_id=call["id"]) for call in calls]
    said = [HumanMessage(words)] if words else []
    return ask(HumanMessage("hello"), called, *results, *said, client_tools=[MINE], **fields)


async def begun(host: Host, given: Ask) -> Running:
    """A request's run, which nobody stops but the test."""
    return Running(host, await turn_for(host, NOBODY, given), Metrics(), streams=False)


async def outcome_of(running: Running) -> Outcome:
    """What a run comes to; raises what the caller would be told in its place."""
    while True:
        part = await running.part()
        if isinstance(part, Ended):
            return part.outcome


async def answered(host: Host, given: Ask) -> Outcome:
    """One request, from beginning to end."""
    return await outcome_of(await begun(host, given))
