"""Background tasks of a served agent: whose sessions go with their parent's, and which run in the foreground."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage

from graph_agent import GraphDelegate, ScriptedChatModel, create_graph_agent
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.run import ServerRun
from graph_agent.interfaces.server.metrics import Metrics
from graph_agent.interfaces.server.sessions import Sessions
from graph_agent.session.history import list_threads
from tests.interfaces.server.hosting import MINE, answered, ask, outcome_of, running, sessions_of, spec_of
from tests.support.agents import asks

GO = ask(HumanMessage("Go."), session_id="s1")
TASK = asks(("a", "delegate_to_r", {"task": "Look.", "background": True}))


def delegating(*replies: str) -> Any:
    child = create_graph_agent(ScriptedChatModel(["Found."], cycle=True))
    delegates = [GraphDelegate("r", "Researches.", child, background=True)]
    return create_graph_agent(ScriptedChatModel([TASK, *replies]), delegates=delegates)


async def test_a_deleted_session_takes_those_of_its_background_tasks_along() -> None:
    wait = asks(("w", "wait_for_background", {}))
    async with running(delegating(wait, "Done.", TASK, wait, "Done.")) as runs:
        await answered(runs.host, GO)
        await answered(runs.host, ask(HumanMessage("Go."), session_id="s10"))
        before = await list_threads(runs.host.saver)
        await sessions_of(runs).delete("s1")
        after = await list_threads(runs.host.saver)

    assert sorted(each.partition(":")[0] for each in before) == ["s1", "s1", "s10", "s10"]
    assert sorted(each.partition(":")[0] for each in after) == ["s10", "s10"]


async def test_a_caller_reads_the_session_of_its_task_under_the_id_in_the_event() -> None:
    ana = Caller("ana")
    async with running(delegating(asks(("w", "wait_for_background", {})), "Done.")) as runs:
        await outcome_of(ServerRun(runs.host, await spec_of(runs.host, GO, ana), Metrics(), streams=False))
        sessions = Sessions(runs, ana)
        [response] = await sessions.events("s1", ["delegation_response"], -1)
        events = await sessions.events(response["background"], ["agent_response"], -1)

    assert [event["content"] for event in events] == ["Found."]


async def test_a_delegation_of_a_request_without_a_session_runs_in_the_foreground() -> None:
    async with running(delegating("Done.")) as runs:
        # With tools of the client, such a request has a thread in the database until it is answered.
        outcome = await answered(runs.host, ask(HumanMessage("Go."), client_tools=[MINE]))
        left = await list_threads(runs.host.saver)

    assert (outcome.text, left) == ("Done.", [])
