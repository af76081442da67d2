"""Answers as small models write them: leading blanks, echoed notices, and text that repeats itself to the limit."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.models.reply_end import repetition_at_end
from graph_agent.models.stream_filters import has_no_answer, without_sentinel
from tests.support.agents import asks, at_step_limit, dialogue, echo, thread
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

DOORS = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
PLAN = '{"status": "done", "tools": []}'


async def ended(
    model: Any, *, streamed: bool, tools: Any = (echo,), **config: Any
) -> tuple[Any, list[Any], str, list[Any]]:
    settings = LoopConfig(temperature=0, **config)
    graph = create_graph_agent(model, tools=tools, config=settings, checkpointer=InMemorySaver())
    session = Session(graph, "s1")
    if streamed:
        parts = [part async for part in session.stream("go")]
        (result,) = [part.result for part in parts if part.type == "done"]
        shown = "".join(part.text for part in parts if part.type == "token")
    else:
        result = await session.run("go")
        shown = result.answer
    state = await graph.aget_state(thread())
    return result, dialogue(state.values["messages"]), shown, await session.events()


@DOORS
@pytest.mark.parametrize(
    ("config", "before"),
    [
        ({"tool_calling": "native"}, []),
        ({"tool_calling": "native", "finalize": "compose"}, ["No more actions."]),
        ({"tool_calling": "text"}, []),
        ({"tool_calling": "text", "finalize": "compose"}, ["No more actions."]),
        ({"tool_calling": "wave", "finalize": "compose"}, [PLAN]),
        ({"tool_calling": "native", "tools": ()}, []),
    ],
    ids=["native", "composed", "text", "text, composed", "wave", "no tools"],
)
@pytest.mark.parametrize("blanks", ["\n\n", " ", "\t \n ", "<|im_start|>assistant\n"])
async def test_leading_blanks_of_an_answer_go(
    openai_stub: StubFactory, config: dict[str, Any], before: list[str], blanks: str, streamed: bool
) -> None:
    stub = openai_stub(*before, f"{blanks}It is 3. \n\nAnd so on.")

    async with stub.chat_model() as model:
        result, messages, shown, events = await ended(model, streamed=streamed, **config)

    answer = "It is 3. \n\nAnd so on."
    responses = [event["content"] for event in events if event["type"] == "agent_response"]
    assert (result.answer, messages, shown, responses) == (
        answer,
        [("human", "go"), ("ai", answer)],
        answer,
        [answer],
    )


@DOORS
async def test_leading_blanks_go_from_an_answer_at_a_limit(openai_stub: StubFactory, streamed: bool) -> None:
    stub = openai_stub(Reply(tool_calls=(("echo", {"text": "a"}),)), "\n \n It is 3.")

    async with stub.chat_model() as model:
        result, _, shown, _ = await ended(model, streamed=streamed, tool_calling="native", max_steps=1)

    assert (result.answer, shown) == (at_step_limit(1, "It is 3."),) * 2


@DOORS
async def test_leading_blanks_go_from_the_text_before_a_call(streamed: bool) -> None:
    model = ScriptedChatModel([asks(("c", "echo", {"text": "a"}), content="\n\nI look."), "\nIt is 3."])

    _, messages, shown, _ = await ended(model, streamed=streamed)

    assert (messages, shown[-8:]) == (
        [("human", "go"), ("ai", "I look."), ("tool", "a"), ("ai", "It is 3.")],
        "It is 3.",
    )


NOTICES = [
    "[Notice from the agent framework, not from the user: the same calls were made 3 times: echo. Try something else.]",
    "[A notice of the framework; the user has not written this.] Your last reply was text.\nTo call tools, reply with",
    "While you were working, the user said: stop it",
    "Now provide your final response to the user, from what you know and the results above. Call no tools.",
    "Reached maximum reasoning steps (5)",
    '<tool_result id="c" name="echo" status="success">\na\n</tool_result>',
    "<tool_response>\na\n</tool_response>",
]


@DOORS
@pytest.mark.parametrize("notice", NOTICES)
@pytest.mark.parametrize("mode", ["native", "text"])
async def test_an_echoed_notice_is_no_answer(notice: str, mode: str, streamed: bool) -> None:
    model = ScriptedChatModel([AIMessage(notice), AIMessage("It is 3.")])

    result, messages, shown, _ = await ended(model, streamed=streamed, tool_calling=mode)

    assert (result.answer, messages, shown) == ("It is 3.", [("human", "go"), ("ai", "It is 3.")], "It is 3.")


@DOORS
@pytest.mark.parametrize("notice", NOTICES[:5])
async def test_the_text_behind_an_echoed_notice_is_the_answer(notice: str, streamed: bool) -> None:
    model = ScriptedChatModel([AIMessage(f"{notice}\n\nIt is 3.")])

    result, messages, shown, _ = await ended(model, streamed=streamed, tool_calling="native")

    assert (result.answer, messages, shown) == ("It is 3.", [("human", "go"), ("ai", "It is 3.")], "It is 3.")


@pytest.mark.parametrize(
    "text", ["Reached the town.", "Now provide a key.", "[Note] Read on.", "<tool> is a tag.", "While"]
)
def test_an_answer_that_begins_like_a_notice_is_an_answer(text: str) -> None:
    assert (has_no_answer(text), without_sentinel(text)) == (False, text)


LOOP = "I am sorry, but I cannot do that for you today.\n"


@DOORS
async def test_an_answer_that_repeats_itself_to_the_limit_is_noticed(openai_stub: StubFactory, streamed: bool) -> None:
    text = f"It is so.\n{LOOP * 20}I am so"
    stub = openai_stub(Reply(text, finish="length"))

    async with stub.chat_model() as model:
        result, _, shown, events = await ended(model, streamed=streamed, tool_calling="native")

    (warning,) = [event for event in events if event["type"] == "warning"]
    assert (result.answer, result.truncated, shown, warning["message"].partition(" The answer repeats ")[2]) == (
        text,
        "length",
        text,
        "the same text 20 times at its end: 'rry, but I cannot do that for you today. I am so'. "
        "A higher temperature, a repetition penalty or another model avoids it.",
    )


@pytest.mark.parametrize(
    ("text", "times"),
    [
        (LOOP * 20, 19),
        ("no " * 200, 199),
        ("ha" * 200, 200),
        (LOOP * 3, None),
        ("".join(f"| {row} | a | b |\n" for row in range(200)), None),
        ("".join(f"{row}. I am sorry.\n" for row in range(200)), None),
        ("-" * 200, None),
        (" " * 2_000, None),
        (f"{LOOP * 20}And so it ends.", None),
        ("".join(f"x[{index}] = {index * 7}\n" for index in range(200)), None),
        ("", None),
    ],
)
def test_what_counts_as_a_repetition(text: str, times: int | None) -> None:
    found = repetition_at_end(text)

    assert (found and found.times) == times


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", ["ab" * 500_000, "a" * 1_000_000, ("a" * 999 + "b") * 1_000])
def test_the_search_for_a_repetition_is_bounded(text: str) -> None:
    found = repetition_at_end(text)

    assert found is not None
