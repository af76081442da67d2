"""A run in a task that has survived a cancellation, which asyncio counts for the rest of the task's life."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopHook, ScriptedChatModel, Session, create_graph_agent
from graph_agent.delegation import Delegation, DelegationResult
from tests.support.agents import asks


async def in_a_survivor(work: Coroutine[Any, Any, Any]) -> Any:
    """Await `work` in a task that was cancelled once and went on."""
    begun = asyncio.Event()

    async def survive() -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await work

    task = asyncio.create_task(survive())
    await begun.wait()
    task.cancel()
    return await task


async def give_up() -> str:
    """Give up."""
    raise asyncio.CancelledError("The channel is closed.")


class GivesUp(LoopHook):
    on_error = "skip"

    async def should_run(self, response: Any, request: Any) -> tuple[bool, Any]:
        raise asyncio.CancelledError("enough")


class Leaves:
    """A delegate whose connection closes."""

    name, description = "away", "Leaves."

    async def run(self, delegation: Delegation) -> DelegationResult:
        raise asyncio.CancelledError("The channel is closed.")


OPTIONS: dict[str, dict[str, Any]] = {
    "give_up": {"tools": [give_up]},
    "delegate_to_away": {"delegates": [Leaves()]},
    "hook": {"hooks": [GivesUp()]},
}


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("raiser", OPTIONS)
async def test_a_cancellation_raised_by_a_part_of_a_run_is_its_failure(raiser: str, stored: bool) -> None:
    call = asks(("1", raiser, {"task": "go"} if "delegate" in raiser else {}))
    replies = ["Done."] if raiser == "hook" else [call, "Done."]
    saver = InMemorySaver() if stored else None
    agent = create_graph_agent(ScriptedChatModel(replies), checkpointer=saver, **OPTIONS[raiser])

    result = await in_a_survivor((Session(agent, "s1") if stored else agent).run("go"))

    assert (result.answer, [call.status for call in result.calls]) == ("Done.", ["error"] * (raiser != "hook"))


async def test_a_cancellation_during_the_run_ends_it() -> None:
    begun = asyncio.Event()

    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = create_graph_agent(ScriptedChatModel([asks(("1", "wait", {}))]), tools=[wait])
    task = asyncio.create_task(in_a_survivor(agent.run("go")))
    await begun.wait()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
