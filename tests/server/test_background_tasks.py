"""Background tasks of a served agent: whose sessions go with their parent's, and which run in the foreground."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage

from graph_agent import GraphDelegate, ScriptedChatModel, create_graph_agent
from graph_agent.session.history import list_threads
from tests.server.hosting import answered, ask, running, sessions_of
from tests.support.agents import asks

TASK = asks(("a", "delegate_to_r", {"task": "Look.", "background": True}))


def delegating(*replies: str) -> Any:
    child = create_graph_agent(ScriptedChatModel(["Found."], cycle=True))
    delegates = [GraphDelegate("r", "Researches.", child, background=True)]
    return create_graph_agent(ScriptedChatModel([TASK, *replies]), delegates=delegates)


async def test_a_deleted_session_takes_those_of_its_background_tasks_along() -> None:
    wait = asks(("w", "wait_for_background", {}))
    async with running(delegating(wait, "Done.", TASK, wait, "Done.")) as runs:
        await answered(runs.host, ask(HumanMessage("Go."), session_id="s1"))
        await answered(runs.host, ask(HumanMessage("Go."), session_id="s10"))
        before = await list_threads(runs.host.saver)
        await sessions_of(runs).delete("s1")
        after = await list_threads(runs.host.saver)

    assert sorted(each.partition(":")[0] for each in before) == ["s1", "s1", "s10", "s10"]
    assert sorted(each.partition(":")[0] for each in after) == ["s10", "s10"]


async def test_a_delegation_of_a_request_without_a_session_runs_in_the_foreground() -> None:
    async with running(delegating("Done.")) as runs:
        outcome = await answered(runs.host, ask(HumanMessage("Go.")))
        left = await list_threads(runs.host.stateless.checkpointer)  # type: ignore[arg-type]  # it has one

    assert (outcome.text, left) == ("Done.", [])
