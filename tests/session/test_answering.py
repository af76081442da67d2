"""An answer applies only to the interrupt that is open when it is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import InputError
from tests.support.agents import asks
from tests.support.gates import Gate, gated_tool

DONE = ["No more actions.", "Done."]


@tool
async def ask(about: str) -> str:
    """Ask a person."""
    return f"{about}: {interrupt(about)}"


@tool
async def ask_twice() -> str:
    """Ask a person for two things."""
    return f"{interrupt('first?')}, {interrupt('second?')}"


def session(*wave: tuple[str, str, dict[str, Any]], tools: tuple[Any, ...] = (ask, ask_twice)) -> Session:
    model = ScriptedChatModel([asks(*wave), *DONE])
    return Session(create_graph_agent(model, tools=tools, checkpointer=InMemorySaver()), "s1")


async def test_an_answer_is_refused_without_an_open_interrupt() -> None:
    gate = Gate()
    talk = session(("1", "work", {}), tools=(gated_tool(gate),))
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)

    with pytest.raises(InputError, match="has no open interrupt for the answer 'yes'"):
        await talk.resume("yes")


async def test_an_answer_is_not_kept_for_the_next_question() -> None:
    talk = session(("1", "ask_twice", {}))
    await talk.run("go")
    await talk.resume("yes")

    asked = await talk.resume()
    result = await talk.resume("no")

    assert ([question.value for question in asked.interrupts], result.results) == (["second?"], {"1": "yes, no"})


async def test_an_answer_to_an_earlier_interrupt_is_refused() -> None:
    model = ScriptedChatModel([asks(("1", "ask", {"about": "a"})), asks(("2", "ask", {"about": "b"})), *DONE])
    talk = Session(create_graph_agent(model, tools=[ask], checkpointer=InMemorySaver()), "s1")
    first = (await talk.run("go")).interrupts[0]
    second = (await talk.resume({first.id: "yes"})).interrupts[0]

    with pytest.raises(InputError, match=f"open; open: {second.id}: 'b'"):
        await talk.resume({first.id: "yes"})


async def test_one_answer_to_several_interrupts_is_refused() -> None:
    talk = session(("1", "ask", {"about": "a"}), ("2", "ask", {"about": "b"}))
    await talk.run("go")

    with pytest.raises(InputError, match="Several interrupts are open; answer with a mapping"):
        await talk.resume("yes")


async def test_an_answered_interrupt_is_closed() -> None:
    talk = session(("1", "ask", {"about": "a"}), ("2", "ask", {"about": "b"}))
    first, second = (await talk.run("go")).interrupts

    left = await talk.resume({first.id: "yes"})
    result = await talk.resume("no")

    assert (left.interrupts, result.results) == ([second], {"1": "a: yes", "2": "b: no"})


@pytest.mark.parametrize("answer", [{}, {"approve": True}, False, ["yes"]], ids=str)
async def test_any_json_is_an_answer(answer: Any) -> None:
    talk = session(("1", "ask", {"about": "a"}))
    await talk.run("go")

    result = await talk.resume(answer)

    assert result.results == {"1": f"a: {answer}"}
