"""The messages of a named agent carry its name, as those of `create_agent`, and requests keep to their endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import asks, echo, says, thread
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]  # a fixture

CALL = asks(("c1", "echo", {"text": "x"}))
PLAN = '{"status": "continue", "action": "look", "tools": [{"id": "a", "tool": "echo", "args": {"text": "x"}}]}'
DONE = '{"status": "done", "action": "end", "tools": []}'
AS_TEXT = '<tool_call>{"name": "echo", "arguments": {"text": "x"}}</tool_call>'


def named(messages: list[Any]) -> list[tuple[str, str | None]]:
    return [(message.type, message.name) for message in messages]


@pytest.mark.parametrize(
    ("config", "script"),
    [
        ({}, [CALL, "Done."]),
        ({"finalize": "compose"}, [CALL, "No more actions.", "Done."]),
        ({"finalize": "direct"}, [CALL, "Done."]),
        ({"tool_calling": "text"}, [AS_TEXT, "Done."]),
        ({"tool_calling": "wave"}, [PLAN, DONE, "Done."]),
        ({"max_steps": 1}, [CALL, "Done."]),
        ({"max_steps": 1, "on_limit": "message"}, [CALL]),
    ],
    ids=["auto", "compose", "direct", "text", "wave", "limit", "sentence"],
)
async def test_the_messages_of_a_named_agent_carry_its_name_as_those_of_create_agent(
    config: dict[str, Any], script: list[Any]
) -> None:
    agent = create_graph_agent(ScriptedChatModel(script), [echo], name="x", config=LoopConfig(**config))
    other: Any = create_agent(ScriptedChatModel([CALL, "Done."]), [echo], name="x")

    own, expected = await agent.ainvoke(says("hi")), await other.ainvoke(says("hi"))

    assert named(own["messages"]) == named(expected["messages"])


async def test_the_report_of_a_failure_carries_the_name(openai_stub: StubFactory) -> None:
    async with openai_stub(Reply(tool_calls=(("echo", {"text": "x"}),)), Failure(401)).chat_model() as model:
        agent = create_graph_agent(model, [echo], name="x")
        result = await agent.ainvoke(says("hi"))

    assert (named(result["messages"])[-1], result["status"]) == (("ai", "x"), "FAILED")


@pytest.mark.parametrize("options", [{}, {"name": None}, {"name": "agent"}], ids=["default", "none", "agent"])
async def test_the_messages_of_an_agent_without_a_name_carry_none(options: dict[str, Any]) -> None:
    agent = create_graph_agent(ScriptedChatModel([CALL, "Done."]), [echo], **options)

    result = await agent.ainvoke(says("hi"))

    assert named(result["messages"]) == [("human", None), ("ai", None), ("tool", "echo"), ("ai", None)]


async def test_a_name_is_stored_and_changes_no_event_and_no_answer(tmp_path: Path) -> None:
    found = {}
    for name in ("x", "agent"):
        async with open_saver(f"sqlite:///{tmp_path}/{name}.db") as saver:
            agent = create_graph_agent(ScriptedChatModel([CALL, "Done."]), [echo], name=name, checkpointer=saver)
            session = Session(agent, "s1")
            result = await session.run("hi")
            state = await agent.aget_state(thread())
            events = [{k: v for k, v in each.items() if k in ("type", "content")} for each in await session.events()]
            found[name] = named(state.values["messages"]), result.answer, events

    assert [found["x"][0], found["x"][1:]] == [
        [("human", None), ("ai", "x"), ("tool", "echo"), ("ai", "x")],
        found["agent"][1:],
    ]


def _names(body: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(message["role"], message.get("name")) for message in body["messages"][1:]]


@pytest.mark.parametrize(
    ("rules", "first", "second"),
    [
        ({}, "Ada_Lovelace", None),
        ({"reply_names": True}, "Ada_Lovelace", "my_agent"),
        ({"user_names": False}, None, None),
    ],
    ids=["unknown", "openai", "mistral"],
)
async def test_a_request_holds_names_only_where_the_endpoint_accepts_them(
    openai_stub: StubFactory, rules: dict[str, Any], first: str | None, second: str | None
) -> None:
    stub = openai_stub(Reply(tool_calls=(("echo", {"text": "x"}),)), "Done.")
    async with stub.chat_model() as model:
        config = LoopConfig(model_rules={"*": rules})
        agent = create_graph_agent(model, [echo], name="my agent", config=config, checkpointer=InMemorySaver())
        result = await agent.ainvoke({"messages": [HumanMessage("hi", name="Ada Lovelace")]}, thread())

    assert (_names(stub.bodies[1])[:2], named(result["messages"])[1]) == (
        [("user", first), ("assistant", second)],
        ("ai", "my agent"),
    )


async def test_a_model_in_the_process_reads_the_names_of_a_conversation() -> None:
    model = ScriptedChatModel(["Done."])
    agent = create_graph_agent(model, name="b")

    await agent.ainvoke({"messages": [HumanMessage("hi"), AIMessage("Hello.", name="a"), HumanMessage("Go.")]})

    assert [message.name for message in model.requests[0].messages[1:]] == [None, "a", None]
