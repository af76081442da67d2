"""Markup of model families that cannot be read as a call: asked for once more, and never shown as an answer."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import dialogue, echo, thread
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

DAMAGED = {
    "hermes": "<tool_call>\nnot json\n</tool_call>",
    "gemma 4": "<|tool_call>call:echo{text<tool_call|>",
    "gpt-oss": "<|channel|>commentary to=functions.echo<|message|>not json<|call|>",
    "kimi k3": '<|open|>tools<|sep|><|open|>call tool="echo"<|sep|><|open|>json<|sep|>{no<|close|>json<|sep|>',
    "mistral": "[TOOL_CALLS]???",
    "deepseek": "<｜tool▁calls▁begin｜>???<｜tool▁calls▁end｜>",
    "dsml": '<｜DSML｜invoke name="echo">???',
    "minimax m3": "]<]minimax[>[<tool_call>???",
    "envelope": '{"tool_calls": [???',
}
CALL = '{"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]}'
DOORS = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


async def ended(script: list[str], *, streamed: bool, **config: Any) -> tuple[Any, ScriptedChatModel, list[Any], str]:
    model = ScriptedChatModel([AIMessage(reply) for reply in script])
    settings = LoopConfig(**{"tool_calling": "text", **config})
    graph = create_graph_agent(model, tools=[echo], config=settings, checkpointer=InMemorySaver())
    session = Session(graph, "s1")
    if streamed:
        parts = [part async for part in session.stream("go")]
        (result,) = [part.result for part in parts if part.type == "done"]
        shown = "".join(part.text for part in parts if part.type == "token")
    else:
        result = await session.run("go")
        shown = result.answer
    state = await graph.aget_state(thread())
    return result, model, dialogue(state.values["messages"]), shown


@DOORS
@pytest.mark.parametrize("damaged", list(DAMAGED.values()), ids=list(DAMAGED))
async def test_a_call_that_cannot_be_read_is_asked_for_once_more(damaged: str, streamed: bool) -> None:
    _, model, messages, shown = await ended([damaged, CALL, "It says a."], streamed=streamed)

    notice = model.requests[1].messages[-1].text.splitlines()[-1]
    assert (messages, shown, notice) == (
        [("human", "go"), ("ai", ""), ("tool", "a"), ("ai", "It says a.")],
        "It says a.",
        "The call is no valid JSON of the form described there.",
    )


@DOORS
@pytest.mark.parametrize("damaged", list(DAMAGED.values()), ids=list(DAMAGED))
async def test_markup_that_stays_unreadable_is_no_answer(damaged: str, streamed: bool) -> None:
    result, _, messages, shown = await ended([damaged, damaged, "I cannot echo."], streamed=streamed)

    assert (result.answer, messages, shown) == (
        "I cannot echo.",
        [("human", "go"), ("ai", "I cannot echo.")],
        "I cannot echo.",
    )


@DOORS
@pytest.mark.parametrize("damaged", list(DAMAGED.values()), ids=list(DAMAGED))
async def test_the_text_before_unreadable_markup_is_the_answer(damaged: str, streamed: bool) -> None:
    written = f"It is 3.\n{damaged}"

    result, _, messages, shown = await ended([damaged, written], streamed=streamed)

    assert (result.answer, messages, shown) == ("It is 3.", [("human", "go"), ("ai", "It is 3.")], "It is 3.")


@DOORS
@pytest.mark.parametrize(
    "answer",
    [
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 3.<|return|>",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>It is 3.<|END_RESPONSE|>",
        "<|channel>thought\nHm.<channel|>It is 3.",
    ],
    ids=["gpt-oss", "command a", "gemma 4"],
)
@pytest.mark.parametrize("before", [[], ["No more actions."]], ids=["planned", "composed"])
async def test_the_tokens_around_an_answer_are_not_shown(answer: str, before: list[str], streamed: bool) -> None:
    finalize = "compose" if before else "auto"

    result, _, messages, shown = await ended([*before, answer], streamed=streamed, finalize=finalize)

    assert (result.answer, messages, shown) == ("It is 3.", [("human", "go"), ("ai", "It is 3.")], "It is 3.")


@DOORS
@pytest.mark.parametrize(
    "damaged", [DAMAGED["hermes"], f"<tool_call>{CALL[16:-2]}</tool_call>"], ids=["damaged", "call"]
)
async def test_the_markup_of_a_native_model_is_no_answer(damaged: str, streamed: bool) -> None:
    script = [damaged, "No more actions.", "I cannot echo."]

    result, _, messages, shown = await ended(script, streamed=streamed, tool_calling="native")

    assert (result.answer, messages, shown) == (
        "I cannot echo.",
        [("human", "go"), ("ai", "I cannot echo.")],
        "I cannot echo.",
    )


TAGGED = f"<tool_call>\n{CALL[16:-2]}\n</tool_call>"


ECHO = Reply(tool_calls=(("echo", '{"text": "a"}'),))


@DOORS
@pytest.mark.parametrize(
    ("script", "config"),
    [
        (["No more actions.", f"It is 3.\n{TAGGED}"], {"tool_calling": "text", "finalize": "compose"}),
        ([ECHO, f"It is 3.\n{TAGGED}"], {}),
        ([ECHO, TAGGED, "It is 3."], {}),
        ([ECHO, "No more actions.", f"It is 3.\n{TAGGED}"], {"finalize": "compose"}),
    ],
    ids=["text, composed", "native", "native, markup alone", "native, composed"],
)
async def test_an_answer_ends_before_the_markup_of_a_call(
    openai_stub: StubFactory, script: list[Any], config: dict[str, Any], streamed: bool
) -> None:
    settings = LoopConfig(**{"tool_calling": "native", "temperature": 0, **config})
    async with openai_stub(*script).chat_model() as model:
        graph = create_graph_agent(model, tools=[echo], config=settings, checkpointer=InMemorySaver())
        session, shown = Session(graph, "s1"), ""
        if streamed:
            shown = "".join([part.text async for part in session.stream("go") if part.type == "token"])
        else:
            await session.run("go")
        state, events = await graph.aget_state(thread()), await session.events()

    warned = [True for event in events if event["type"] == "warning" and "were dropped" in event["message"]]
    assert (dialogue(state.values["messages"])[-1], shown, warned) == (
        ("ai", "It is 3."),
        "It is 3." if streamed else "",
        [True],
    )


async def test_an_agent_without_tools_may_answer_with_markup() -> None:
    model = ScriptedChatModel([AIMessage(f"It is:\n{TAGGED}")], profile={})
    graph = create_graph_agent(model, checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("How does a model write a call?")

    assert result.answer == f"It is:\n{TAGGED}"
