"""Continuing a thread that another graph has left in the middle of its calls."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import InputError
from tests.support.agents import asks


@tool
async def look_up(text: str) -> str:
    """Look a text up."""
    return text


async def test_resuming_the_calls_of_another_graph_is_refused_and_new_input_continues() -> None:
    saver = InMemorySaver()
    theirs = create_agent(
        ScriptedChatModel([asks(("1", "look_up", {"text": "a"}))]),
        [look_up],
        checkpointer=saver,
        interrupt_before=["tools"],
    )
    await theirs.ainvoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "s"}})
    session = Session(create_graph_agent(ScriptedChatModel(["Hello."]), tools=[look_up], checkpointer=saver), "s")

    with pytest.raises(InputError, match="another graph had planned"):
        await session.resume()
    result = await session.run("and now?")

    assert (result.status, result.answer) == ("COMPLETED", "Hello.")
