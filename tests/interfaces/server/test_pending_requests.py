"""Requests suspended for client tools: their lifetime and their number."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.interfaces.server.host import Host
from graph_agent.server import ServerSettings
from tests.interfaces.server.hosting import MINE, ask, outcome_of, running, start_run
from tests.support.gates import Gate, GatedModel


async def suspended(host: Host) -> list[str]:
    """The threads that are noted, by name."""
    return sorted(item.value["thread"] for item in await host.store.asearch(("graph_agent", "parked")))


async def test_pending_requests_are_evicted_per_caller_oldest_first() -> None:
    async with asyncio.timeout(30), running(create_graph_agent(ScriptedChatModel([]))) as runs:
        host = replace(runs.host, settings=ServerSettings(pending_requests=2))
        for thread in ("bert/parked/1", "anna/parked/1", "anna/parked/2", "anna/parked/3", "/parked/1"):
            await host.suspend(thread)
        gone = await host.sweep()

        assert (gone, await suspended(host)) == (1, ["/parked/1", "anna/parked/2", "anna/parked/3", "bert/parked/1"])


async def test_expired_pending_requests_are_evicted_unless_running() -> None:
    gate = Gate()
    model = GatedModel(["No more actions.", "Done."], before={1: gate})
    async with asyncio.timeout(30), running(create_graph_agent(model)) as runs:
        host = replace(runs.host, settings=ServerSettings(pending_ttl_s=1e-6))
        await host.suspend("anna/parked/1")
        active = await start_run(host, ask(client_tools=[MINE]))
        await gate.reached()
        await host.sweep()
        left = await suspended(host)
        gate.open()
        outcome = await outcome_of(active)

    assert (left, outcome.text) == ([active.spec.thread], "Done.")
