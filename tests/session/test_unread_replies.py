"""Streams whose parts are not consumed: a reply waits when enough of its text is unread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer

from graph_agent import LoopConfig, LoopHook, LoopPlan, ScriptedChatModel, Session, SessionStatus, create_graph_agent
from graph_agent.session.results import Custom, Done, Reasoning, Token

MOST_UNREAD = 65_536
MOST_HELD = 2 * MOST_UNREAD
"""Characters at most: the stream may have taken a full buffer and not yielded all of it."""
PIECE = "x" * 1_000
PIECES = 500


class Writer(GenericFakeChatModel):
    """Streams half a million characters, as text or as reasoning before a short answer."""

    written: list[int]
    """Characters of each piece so far."""
    reasons: bool = False

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(PIECES):
            self.written.append(len(PIECE))
            content: Any = [{"type": "reasoning", "reasoning": PIECE}] if self.reasons else PIECE
            yield ChatGenerationChunk(message=AIMessageChunk(content=content))
            await asyncio.sleep(0)
        if self.reasons:
            yield ChatGenerationChunk(message=AIMessageChunk(content="Done."))


class BlockingWriter(BaseChatModel):
    """Reports its tokens to the callbacks from the thread in which it blocks."""

    @property
    def _llm_type(self) -> str:
        return "blocking"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        for _ in range(PIECES):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=PIECE, id="m1"))
            run_manager.on_llm_new_token(PIECE, chunk=chunk)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(PIECES * PIECE, id="m1"))])


class Unchanging(AgentMiddleware[Any, Any]):
    """Has a hook after each reply, for which the model is asked in a node of its own."""

    rewrites_replies = False

    def after_model(self, state: Any, runtime: Any) -> None:
        return None


class AskAgain(LoopHook):
    """Writes an object to the stream after the first reply, and has the model asked again."""

    has_asked = False

    def should_run(self, response: Any, request: Any) -> tuple[bool, Any]:
        runs, self.has_asked = not self.has_asked, True
        if runs:
            get_stream_writer()("asked again")
        return runs, None

    def build_plan(self, context: Any, response: Any, request: Any) -> LoopPlan:
        return LoopPlan(run_agentic_loop=True)


def session(*, reasons: bool = False, config: LoopConfig | None = None) -> tuple[Session, list[int]]:
    model = Writer(messages=iter(()), written=[], reasons=reasons)
    return Session(create_graph_agent(model, checkpointer=InMemorySaver(), config=config), "s1"), model.written


async def let_the_model_write() -> None:
    """Run the event loop more often than the model needs for all of its pieces."""
    for _ in range(20 * PIECES):
        await asyncio.sleep(0)


async def test_a_reply_waits_while_its_text_is_unread() -> None:
    talk, written = session()
    parts = talk.stream("go")
    texts = [await anext(part.text async for part in parts if isinstance(part, Token))]
    await let_the_model_write()
    unread = sum(written) - sum(map(len, texts))

    texts += [part.text async for part in parts if isinstance(part, Token)]

    assert MOST_UNREAD <= unread < MOST_HELD
    assert "".join(texts) == PIECES * PIECE


async def test_a_reply_waits_while_its_reasoning_is_unread() -> None:
    talk, written = session(reasons=True)
    parts = talk.stream("go", reasoning=True)
    thoughts = [await anext(part.text async for part in parts if isinstance(part, Reasoning))]
    await let_the_model_write()
    unread = sum(written) - sum(map(len, thoughts))

    rest = [part async for part in parts if isinstance(part, Reasoning | Token)]

    assert MOST_UNREAD <= unread < MOST_HELD
    assert "".join([*thoughts, *(part.text for part in rest)]) == PIECES * PIECE + "Done."
    assert [type(part) for part in rest[-2:]] == [Reasoning, Token]


async def test_a_reply_that_waits_ends_with_its_stream() -> None:
    talk, written = session()
    parts = talk.stream("go")
    await anext(part async for part in parts if isinstance(part, Token))
    await let_the_model_write()

    await parts.aclose()
    before = sum(written)
    await let_the_model_write()

    assert (sum(written), before < PIECES * len(PIECE)) == (before, True)


async def test_an_abort_stops_a_reply_that_waits() -> None:
    talk, _ = session()
    parts = talk.stream("go")
    await anext(part async for part in parts if isinstance(part, Token))
    await let_the_model_write()

    await talk.abort()
    ends = [part.result.status async for part in parts if isinstance(part, Done)]

    assert ends == [SessionStatus.ABORTED]


async def test_reasoning_is_among_the_parts_only_on_request() -> None:
    talk, _ = session(reasons=True)

    seen = {type(part) async for part in talk.stream("go")}

    assert (Token in seen, Reasoning in seen) == (True, False)


async def test_a_blocking_model_does_not_wait_for_the_reader_of_its_reply() -> None:
    talk = Session(create_graph_agent(BlockingWriter(), checkpointer=InMemorySaver()), "s1")
    parts = talk.stream("go")
    texts = [await anext(part.text async for part in parts if isinstance(part, Token))]
    await let_the_model_write()

    texts += [part.text async for part in parts if isinstance(part, Token)]

    assert "".join(texts) == PIECES * PIECE


async def test_the_reasoning_of_an_agent_with_middleware_is_among_the_parts() -> None:
    model = Writer(messages=iter(()), written=[], reasons=True)
    talk = Session(create_graph_agent(model, hooks=[Unchanging()], checkpointer=InMemorySaver()), "s1")

    thoughts = [part.text async for part in talk.stream("go", reasoning=True) if isinstance(part, Reasoning)]

    assert "".join(thoughts) == PIECES * PIECE


@pytest.mark.parametrize("reasons", [False, True], ids=["text", "reasoning"])
async def test_the_time_of_a_slow_reader_counts_for_no_limit_of_the_request(reasons: bool) -> None:
    limits = LoopConfig(model_timeout_s=1, model_total_timeout_s=1.5, model_retries=0)
    talk, _ = session(reasons=reasons, config=limits)
    parts = talk.stream("go", reasoning=True)
    await anext(part async for part in parts if isinstance(part, Reasoning | Token))

    await asyncio.sleep(1.8)  # longer than each limit
    ends = [part.result.status async for part in parts if isinstance(part, Done)]

    assert ends == [SessionStatus.COMPLETED]


@pytest.mark.parametrize("pause_s", [0, 0.05], ids=["at once", "slowly"])
async def test_an_object_written_between_two_replies_comes_between_their_texts(pause_s: float) -> None:
    config = LoopConfig(stream_before_guards=True, finalize="direct")
    model = ScriptedChatModel(["First.", "Second."])
    talk = Session(create_graph_agent(model, hooks=[AskAgain()], config=config, checkpointer=InMemorySaver()), "s1")
    seen = []

    async for part in talk.stream("go"):
        seen += [part.text.strip()] if isinstance(part, Token) else ["object"] if isinstance(part, Custom) else []
        await asyncio.sleep(pause_s)  # at 0.05 s, all is unread before the second part is taken

    assert [each for each in seen if each] == ["First.", "object", "Second."]


class IdOfFirstChunk(GenericFakeChatModel):
    """Streams a reply whose provider names its id in the first chunk only, as OpenAI's Responses API does."""

    async def _astream(self, *args: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        for index, text in enumerate(("", "Hello ", "again!")):
            yield ChatGenerationChunk(message=AIMessageChunk(content=text, id=None if index else "resp_1"))


@pytest.mark.parametrize("checkpointer", [None, InMemorySaver()])
async def test_a_reply_is_streamed_once_though_its_first_chunk_alone_has_its_id(checkpointer: Any) -> None:
    agent = create_graph_agent(IdOfFirstChunk(messages=iter(())), checkpointer=checkpointer)
    stream = agent.run_stream("hello") if checkpointer is None else agent.session("s1").stream("hello")

    tokens = [part async for part in stream if isinstance(part, Token)]

    assert [(token.text, token.message_id) for token in tokens] == [("Hello ", "resp_1"), ("again!", "resp_1")]
