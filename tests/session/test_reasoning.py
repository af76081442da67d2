"""The model's reasoning among the parts of a run, and in its events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.session.results import Done, Reasoning, Token
from tests.support.agents import echo


class BrokenOff(ScriptedChatModel):
    """A scripted model whose first stream breaks off after a chunk without text."""

    has_failed: bool = False

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        if not self.has_failed:
            self.has_failed = True
            yield ChatGenerationChunk(message=AIMessageChunk(content=""))
            raise ConnectionError("The server closed the connection.")
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk


BLOCK = {"type": "reasoning", "reasoning": "Two words. "}
ANSWER = AIMessage([BLOCK, {"type": "text", "text": "Hello there."}])


def session(*replies: Any, config: LoopConfig | None = None) -> Session:
    graph = create_graph_agent(ScriptedChatModel([*replies]), [echo], checkpointer=InMemorySaver(), config=config)
    return Session(graph, "s1")


async def test_reasoning_has_the_id_of_the_message_that_it_belongs_to() -> None:
    parts = [part async for part in session(ANSWER).stream("go", reasoning=True)]

    thoughts = [part for part in parts if isinstance(part, Reasoning)]
    tokens = [part for part in parts if isinstance(part, Token)]
    assert ("".join(each.text for each in thoughts), {each.message_id for each in thoughts}) == (
        "Two words. ",
        {each.message_id for each in tokens},
    )
    assert thoughts[0].message_id


async def test_the_answer_and_its_tokens_have_no_reasoning() -> None:
    parts = [part async for part in session(ANSWER).stream("go", reasoning=True)]

    answers = [part.result.answer for part in parts if isinstance(part, Done)]
    assert ("".join(part.text for part in parts if isinstance(part, Token)), answers) == (
        "Hello there.",
        ["Hello there."],
    )


async def test_a_run_that_does_not_ask_for_reasoning_has_none() -> None:
    parts = [part async for part in session(ANSWER).stream("go")]

    assert [part for part in parts if isinstance(part, Reasoning)] == []


@pytest.mark.parametrize("records", [True, False, 5], ids=["whole", "not", "cut"])
async def test_recorded_requests_have_the_reasoning_of_their_replies(records: bool | int) -> None:
    call = AIMessage([BLOCK], tool_calls=[{"id": "c1", "name": "echo", "args": {"text": "x"}}])
    talk = session(call, ANSWER, config=LoopConfig(record_requests=records, finalize="direct"))

    result = await talk.run("go")

    expected = {True: "Two words. ", False: "", 5: "Two w"}[records]
    stored = [event["reasoning"] for event in result.events if event["type"] == "model_request"]
    assert ([each.reasoning for each in result.requests], stored) == (
        [expected, expected],
        [expected, expected] if records else [],
    )


async def test_an_answer_after_a_stream_that_broke_off_is_streamed_once() -> None:
    graph = create_graph_agent(BrokenOff(responses=["Hello there."]), checkpointer=InMemorySaver())

    parts = [part async for part in Session(graph, "s1").stream("go", reasoning=True)]

    assert "".join(part.text for part in parts if isinstance(part, Token)) == "Hello there."
