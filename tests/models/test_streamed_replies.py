"""What the chunks of a reply become: text that every store and reader accepts, under an id of the reply's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from langchain_core.caches import BaseCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.interfaces.server.chat.run import ServerRun
from graph_agent.interfaces.server.metrics import Metrics
from tests.interfaces.server.hosting import ask, running, spec_of
from tests.support.agents import dialogue, echo, says, thread
from tests.support.raw_chunks import of_chunks


class AlwaysHit(BaseCache):
    """Returns its first reply to each request, as a cache of similar requests does."""

    def __init__(self) -> None:
        self._stored: Sequence[Any] | None = None

    def lookup(self, prompt: str, llm_string: str) -> Any:
        return self._stored

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Any]) -> None:
        self._stored = return_val

    def clear(self, **_: Any) -> None:
        self._stored = None


def text(content: Any, **fields: Any) -> AIMessageChunk:
    return AIMessageChunk(content=content, **fields)


def call(arguments: str, name: str | None = None) -> AIMessageChunk:
    return text("", tool_call_chunks=[tool_call_chunk(name=name, args=arguments, id=name and "c", index=0)])


REPLIES: dict[str, tuple[list[Any], str]] = {
    "halves of a character": (["a\ud83d", "\ude00 b"], "a\U0001f600 b"),
    "a half at the end": (["a\ud83d", ""], "a\ufffd"),
    "halves apart": (["a\ud83d", "", "\ude00"], "a\ufffd\ufffd"),
    "two first halves": (["\ud83d", "\ud83d", "\ude00"], "\ufffd\U0001f600"),
    "a NUL": (["a\x00", "b"], "a\ufffdb"),
    "a block": ([[{"type": "text", "text": "a\ud83d", "index": 0}]], "a\ufffd"),
}


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("name", REPLIES)
async def test_streamed_text_is_the_stored_text(name: str, observed: bool) -> None:
    pieces, answer = REPLIES[name]
    callbacks = [BaseCallbackHandler()] if observed else None

    def agent() -> Any:
        return create_graph_agent(of_chunks([text(piece) for piece in pieces]), checkpointer=InMemorySaver())

    messages = agent().astream(says("go"), {**thread(), "callbacks": callbacks}, stream_mode="messages")
    streamed = "".join([message.text async for message, _ in messages])
    parts = [part async for part in Session(agent(), "s1").stream("go")]
    tokens = "".join(part.text for part in parts if part.type == "token")

    assert (streamed, tokens, parts[-1].type == "done" and parts[-1].result.answer) == (answer, answer, answer)


async def test_halves_of_a_character_in_arguments_are_joined() -> None:
    model = of_chunks([call('{"text": "\ud83d', "echo"), call('\ude00"}')], [text("Done.")])

    session = Session(create_graph_agent(model, tools=[echo], checkpointer=InMemorySaver()), "s1")
    parts = [part async for part in session.stream("go")]

    [done] = [part for part in parts if part.type == "done"]
    assert done.result.calls[0].arguments == {"text": "\U0001f600"}


async def test_a_name_that_each_chunk_of_a_call_repeats_is_read_once() -> None:
    model = of_chunks([call('{"text":', "echo"), call(' "x"}', "echo")], [text("Done.")])
    session = Session(create_graph_agent(model, tools=[echo], checkpointer=InMemorySaver()), "s1")

    [done] = [part async for part in session.stream("go") if part.type == "done"]

    messages = (await session.driver.state()).values["messages"]
    assert [(made.name, made.status) for made in done.result.calls] == [("echo", "success")]
    assert [made["name"] for made in messages[1].tool_calls] == ["echo"]


async def test_a_stream_that_ends_before_its_first_token_is_requested_again() -> None:
    session = Session(create_graph_agent(of_chunks([], [text("Hi.")]), checkpointer=InMemorySaver()), "s1")

    [done] = [part async for part in session.stream("go") if part.type == "done"]

    assert (done.result.status, done.result.answer) == ("COMPLETED", "Hi.")


async def test_a_client_receives_a_streamed_answer_with_half_a_character() -> None:
    async with running(create_graph_agent(of_chunks([text("a\ud83d"), text("\x00b")]))) as runs:
        request = ask(HumanMessage("go"))
        run = ServerRun(runs.host, await spec_of(runs.host, request), Metrics(), streams=True)
        sent = "".join([part.text async for part in _parts(run)])

    assert sent.encode() == "a\ufffd\ufffdb".encode()


async def _parts(run: ServerRun) -> AsyncIterator[Any]:
    while hasattr(part := await run.part(), "text"):
        yield part


@pytest.mark.parametrize("observed", [False, True])
async def test_a_reply_that_a_cache_returns_again_is_a_message_of_its_own(observed: bool) -> None:
    model = ScriptedChatModel(["Hello."]).model_copy(update={"cache": AlwaysHit()})
    graph = create_graph_agent(model, checkpointer=InMemorySaver())
    config: Any = {**thread(), "callbacks": [BaseCallbackHandler()] if observed else None}

    streamed = [
        "".join([message.text async for message, _ in graph.astream(says(given), config, stream_mode="messages")])
        for given in ("one", "two")
    ]

    kept = dialogue((await graph.aget_state(thread())).values["messages"])
    assert streamed == ["Hello.", "Hello."]
    assert kept == [("human", "one"), ("ai", "Hello."), ("human", "two"), ("ai", "Hello.")]


async def test_a_reply_with_the_id_of_an_earlier_one_does_not_replace_it() -> None:
    model = of_chunks([text("Let me see.", id="m"), call('{"text": "x"}', "echo")], [text("Done.", id="m")])
    session = Session(create_graph_agent(model, tools=[echo], checkpointer=InMemorySaver()), "s1")

    parts = [part async for part in session.stream([HumanMessage("go")])]

    commentary = {part.message_id for part in parts if part.type == "plan_text"}
    tokens = [part.text for part in parts if part.type == "token" and part.message_id not in commentary]
    messages = (await session.driver.state()).values["messages"]
    assert (tokens, [message.text for message in messages]) == (["Done."], ["go", "Let me see.", "x", "Done."])
    assert isinstance(messages[2], ToolMessage)


async def test_a_reply_with_the_id_of_the_users_message_does_not_replace_it() -> None:
    session = Session(create_graph_agent(of_chunks([text("Hi.", id="u")]), checkpointer=InMemorySaver()), "s1")

    parts = [part async for part in session.stream([HumanMessage("go", id="u")])]

    messages = (await session.driver.state()).values["messages"]
    assert (parts[-1].type, dialogue(messages)) == ("done", [("human", "go"), ("ai", "Hi.")])
