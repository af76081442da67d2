"""Queued messages of a session are listed and withdrawn, in a program and over HTTP."""

from __future__ import annotations

from pathlib import Path

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from tests.interfaces.server.process import Served


async def test_a_withdrawn_message_is_not_read_by_the_run() -> None:
    @tool
    async def work() -> str:
        """Work."""
        await session.steer("Be brief.")
        await session.steer("Be polite.")
        await session.follow_up("And then?")
        queued = await session.queued()
        seen.extend((each.kind, each.text) for each in queued)
        withdrawn.extend([await session.withdraw(queued[0].id), await session.withdraw(queued[2].id)])
        withdrawn.append(await session.withdraw(queued[2].id))
        return "Done."

    seen: list[tuple[str, str]] = []
    withdrawn: list[bool] = []
    call = AIMessage("", tool_calls=[{"id": "c1", "name": "work", "args": {}}])
    agent = create_graph_agent(ScriptedChatModel([call, "Ready."]), tools=[work], checkpointer=InMemorySaver())
    session = Session(agent, "s1")
    result = await session.run("Work.")

    steering = [event["content"] for event in await session.events() if event["type"] == "steering"]
    assert (seen, withdrawn) == (
        [("steer", "Be brief."), ("steer", "Be polite."), ("follow_up", "And then?")],
        [True, True, False],
    )
    assert (steering, [*result.follow_ups], await session.queued()) == (["Be polite."], [], [])


def test_queued_messages_are_listed_and_withdrawn_over_http(served: Served, tmp_path: Path) -> None:
    with served.http() as http:
        message = {"model": "parrot", "messages": [{"role": "user", "content": "one"}]}
        http.post("/v1/chat/completions", json={**message, "metadata": {"session_id": "queued"}}).raise_for_status()
        for text in ("Later.", "Later still."):
            http.post("/sessions/queued/follow_up", json={"text": text}).raise_for_status()
        first, second = http.get("/sessions/queued/queue").json()["queued"]
        path = f"/sessions/queued/queue/{first['id']}"
        answers = [http.delete(path).json(), http.delete(path).json()]
        left = http.get("/sessions/queued/queue").json()["queued"]
        unknown = http.get("/sessions/none/queue").status_code

    assert answers == [{"accepted": True}, {"accepted": False}]
    assert (first["kind"], first["text"], left, unknown) == ("follow_up", "Later.", [second], 404)
