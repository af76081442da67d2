"""Chat messages that answer the open questions of a session: of tools, of delegates and of LangChain's middleware."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.types import interrupt

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.interfaces.server.host import Host
from tests.interfaces.server.hosting import answered, ask, running
from tests.support.agents import asks


@tool
def choose(what: str) -> str:
    """Have a person choose."""
    return f"{what}: {interrupt(what)}"


def payer(ran: list[int], *script: str, **options: Any) -> Any:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    return create_graph_agent(ScriptedChatModel(list(script)), tools=[pay], **options)


async def texts(host: Host, *messages: str) -> list[str]:
    """The replies to messages of one session."""
    return [(await answered(host, ask(HumanMessage(text), session_id="s"))).text for text in messages]


async def test_a_message_answers_the_question_of_a_tool() -> None:
    model = ScriptedChatModel(
        [asks(("1", "choose", {"what": "color"}), ("2", "choose", {"what": "size"})), "Red and large."]
    )
    async with asyncio.timeout(30), running(create_graph_agent(model, tools=[choose])) as runs:
        replies = await texts(runs.host, "go", "red", '{"size": "large"}')
        state = await runs.host.kept.aget_state({"configurable": {"thread_id": "s"}})

    results = [message.text for message in state.values["messages"] if message.type == "tool"]
    assert (replies, results) == (["color", "size", "Red and large."], ["color: red", "size: {'size': 'large'}"])


async def test_a_question_of_a_tool_shows_characters_that_reorder_it() -> None:
    model = ScriptedChatModel([asks(("1", "choose", {"what": "Delete\n\u202egpj.exe\u2066?"})), "Done."])
    async with asyncio.timeout(30), running(create_graph_agent(model, tools=[choose])) as runs:
        replies = await texts(runs.host, "go", "yes")

    assert replies == ["Delete\n\\u202egpj.exe\\u2066?", "Done."]


@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_an_answer_that_langchain_s_middleware_would_refuse_repeats_its_question(mode: Any) -> None:
    ran: list[int] = []
    hook = HumanInTheLoopMiddleware(
        interrupt_on={"pay": {"allowed_decisions": ["approve", "reject"]}}, interrupt_mode=mode
    )
    graph = payer(ran, asks(("1", "pay", {"amount": 5})), "Paid.", hooks=[hook])
    async with asyncio.timeout(30), running(graph) as runs:
        question, *repeated, answer = await texts(runs.host, "go", "What for?", 'edit: {"amount": 1}', "approve")

    assert (
        question.splitlines()[:2],
        ["The last answer was not accepted" in text for text in repeated],
        answer,
        ran,
    ) == (["A call waits for approval:", '1. pay {"amount": 5}'], [True, True], "Paid.", [5])


async def test_decisions_on_some_calls_of_langchain_s_middleware_repeat_the_question() -> None:
    ran: list[int] = []
    hook = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    graph = payer(ran, asks(("1", "pay", {"amount": 5}), ("2", "pay", {"amount": 6})), "Paid.", hooks=[hook])
    async with asyncio.timeout(30), running(graph) as runs:
        _, repeated, answer = await texts(runs.host, "go", "1: approve", "1: approve\n2: reject")

    assert ("must be decided together: 2" in repeated, answer, ran) == (True, "Paid.", [5])


async def test_a_client_without_a_session_answers_langchain_s_middleware() -> None:
    ran: list[int] = []
    hook = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    graph = payer(ran, asks(("1", "pay", {"amount": 5})), "Paid.", hooks=[hook])
    async with asyncio.timeout(30), running(graph) as runs:
        question = await answered(runs.host, ask(HumanMessage("go")))
        conversation: list[Any] = [HumanMessage("go"), AIMessage(question.text), HumanMessage("approve")]
        answer = await answered(runs.host, ask(*conversation))

    assert (answer.text, ran) == ("Paid.", [5])


async def test_the_questions_of_two_delegates_are_asked_together_with_their_names() -> None:
    ran: list[int] = []
    delegates = [
        GraphDelegate(
            name, "Pays.", payer(ran, asks(("p", "pay", {"amount": 5})), name, config=LoopConfig(approve="pay"))
        )
        for name in ("ann", "bob")
    ]
    model = ScriptedChatModel(
        [asks(*((name, f"delegate_to_{name}", {"task": "Pay."}) for name in ("ann", "bob"))), "Both paid."]
    )
    async with asyncio.timeout(30), running(create_graph_agent(model, delegates=delegates)) as runs:
        first, again, answer = await texts(runs.host, "go", "Why?", "1: approve\n2: reject")

    question = [
        "2 calls wait for approval:",
        '1. pay {"amount": 5}',
        "   Delegate ann",
        '2. pay {"amount": 5}',
        "   Delegate bob",
    ]
    assert (first.splitlines()[:5], again.splitlines()[:5], "'Why?' is no decision" in again, answer, ran) == (
        question,
        question,
        True,
        "Both paid.",
        [5],
    )
