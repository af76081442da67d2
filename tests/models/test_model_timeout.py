"""Model timeouts: to the first token, between tokens, and in total if configured."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.models.retry import ask
from graph_agent.models.stream_watch import ModelTimeoutError, StreamForwarder
from graph_agent.models.wire.client_retries import without_client_retries
from tests.support.agents import at_step_limit, echo, says, thread
from tests.support.openai_stub import Failure, Reply, StubFactory, openai_stub
from tests.support.raw_chunks import raw_model, reply_of_text

__all__ = ["openai_stub"]

CALL = (("echo", {"text": "a"}),)
ANSWER = "one two three four five"


class Clock:
    """The running loop's clock, which a test advances; timers of the loop follow it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._now, self._ahead_s = self.loop.time, 0.0
        self.loop.time = lambda: self._now() + self._ahead_s  # type: ignore[method-assign]  # a clock to move

    def move(self, seconds: float) -> None:
        self._ahead_s += seconds

    def move_from_thread(self, seconds: float) -> None:
        """Advance it, and return once every timer that is then due has run."""
        moved = threading.Event()

        def move() -> None:
            self.move(seconds)
            # A loop runs its timers in order of their times. A callback that is due at once, as of `call_soon`, would
            # run before them, and a token that the caller then sends could be read before its limit is checked.
            self.loop.call_later(0, moved.set)

        self.loop.call_soon_threadsafe(move)
        assert moved.wait(30)


@pytest.fixture
async def clock() -> Clock:
    return Clock()


class Slow(ChatOpenAI):
    """The real client, with a delay of so many seconds between the chunks of a stream."""

    clock: Any = Field(exclude=True)
    seconds: float = 100
    taken: Any = Field(default_factory=list, exclude=True)
    """One entry for each received chunk, over the life of the client and its copies."""

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for chunk in super()._astream(*args, **kwargs):
            self.clock.move(self.seconds)
            await asyncio.sleep(0)
            yield chunk
            self.taken.append(None)


def stalls(clock: Clock, *, at: int = 0, taken: Sequence[None] = ()) -> Any:
    """A callback that stalls the stub before a chunk, once the client has received the earlier ones."""
    before: list[int] = []

    def stall(number: int) -> None:
        if not before:
            before.append(len(taken))
        if number == at:
            deadline = time.monotonic() + 30
            while len(taken) - before[0] < at and time.monotonic() < deadline:
                time.sleep(0.002)
            clock.move_from_thread(130)

    return stall


async def streamed(stub: Any, kind: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """Stream one input, and return its outcome."""
    async with stub.chat_model(**(kind or {})) as model:
        settings = LoopConfig(**{"max_steps": 9, "model_retries": 1, "tool_calling": "native", **config})
        graph = create_graph_agent(model, tools=[echo], config=settings, checkpointer=InMemorySaver())
        session = Session(graph, "s1")
        parts = [part async for part in session.stream("go")]
        (result,) = [part.result for part in parts if part.type == "done"]
    return {
        "read": "".join(part.text for part in parts if part.type == "token"),
        "status": result.status.value,
        "error": result.error,
        "requests": [bool(body.get("stream")) for body in stub.bodies],
    }


PLAN = '{"status": "done", "tools": []}'


@pytest.mark.parametrize(
    ("config", "before"),
    [
        ({"finalize": "compose"}, ["No more actions."]),
        ({"finalize": "direct"}, []),
        ({"finalize": "direct", "tool_calling": "text"}, []),
        ({"tool_calling": "wave", "temperature": 0}, [PLAN]),
    ],
    ids=["compose", "direct", "text", "wave"],
)
async def test_a_stream_whose_tokens_keep_coming_is_not_cut(
    openai_stub: StubFactory, clock: Clock, config: dict[str, Any], before: list[str]
) -> None:
    replies = [*before, ANSWER]

    got = await streamed(openai_stub(*replies), {"kind": Slow, "clock": clock}, model_timeout_s=120, **config)

    assert got == {"read": ANSWER, "status": "COMPLETED", "error": "", "requests": [True] * len(replies)}


async def test_a_stream_below_a_limit_is_not_cut(openai_stub: StubFactory, clock: Clock) -> None:
    stub = openai_stub(Reply(tool_calls=CALL), ANSWER)

    got = await streamed(stub, {"kind": Slow, "clock": clock}, model_timeout_s=120, max_steps=1)

    assert (got["read"], got["status"]) == (at_step_limit(1, ANSWER), "ROUND_LIMIT")


TOO_LATE = (
    "The model provider did not answer as it should ({} token came for 120 s (model_timeout_s)); try again later."
)


@pytest.mark.parametrize("chunk", [0, 1], ids=["nothing", "the role"])
async def test_a_stall_is_not_asked_for_again(openai_stub: StubFactory, clock: Clock, chunk: int) -> None:
    taken: list[None] = []
    stalled = Reply("never read", before=stalls(clock, at=chunk, taken=taken))
    stub = openai_stub("No more actions.", stalled, "never asked")
    slow = {"kind": Slow, "clock": clock, "seconds": 0, "taken": taken}

    got = await streamed(stub, slow, model_timeout_s=120, finalize="compose")

    error = TOO_LATE.format("no further" if chunk else "no")
    assert (got["status"], got["error"], got["requests"]) == ("FAILED", error, [True] * 2)


async def test_a_stall_below_a_limit_is_not_asked_for_again(openai_stub: StubFactory, clock: Clock) -> None:
    stub = openai_stub(Reply(tool_calls=CALL), Reply("never read", before=stalls(clock)), "never asked")
    slow = {"kind": Slow, "clock": clock, "seconds": 0}

    got = await streamed(stub, slow, model_timeout_s=120, max_steps=1)

    assert (got["status"], "model_timeout_s" in got["read"], len(got["requests"])) == ("ROUND_LIMIT", False, 2)


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_a_stalled_model_is_replaced_by_the_next_fallback(
    openai_stub: StubFactory, clock: Clock, way: str
) -> None:
    stub, other = openai_stub(Reply("never read", before=stalls(clock)), "never asked"), openai_stub("Hello.")
    async with stub.chat_model() as model, other.chat_model() as fallback:
        config = LoopConfig(model_timeout_s=120, fallback_models=[fallback])
        session = Session(create_graph_agent(model, config=config, checkpointer=InMemorySaver()), "s1")

        result = await outcome_of(session, way)

    assert (result.status, result.answer, len(stub.bodies), len(other.bodies)) == ("COMPLETED", "Hello.", 1, 1)


async def outcome_of(session: Session, way: str) -> Any:
    if way == "run":
        return await session.run("go")
    [result] = [part.result async for part in session.stream("go") if part.type == "done"]
    return result


async def test_a_stream_that_stalls_after_its_first_token_ends_there(openai_stub: StubFactory, clock: Clock) -> None:
    taken: list[None] = []
    stub = openai_stub("No more actions.", Reply(ANSWER, before=stalls(clock, at=3, taken=taken)), "never asked")
    slow = {"kind": Slow, "clock": clock, "seconds": 0, "taken": taken}

    got = await streamed(stub, slow, model_timeout_s=120, finalize="compose")

    assert (got["status"], got["error"], len(got["requests"])) == (
        "FAILED",
        TOO_LATE.format("no further"),
        2,
    )


@pytest.mark.parametrize("callbacks", [None, [BaseCallbackHandler()]], ids=["unobserved", "observed"])
async def test_a_slow_reply_without_a_reader_is_no_timeout(clock: Clock, callbacks: Any) -> None:
    model = raw_model(reply_of_text("one", " two", " three"), before=lambda: clock.move(100))
    graph = create_graph_agent(model, config=LoopConfig(model_timeout_s=120), checkpointer=InMemorySaver())

    config: Any = {**thread(), "callbacks": callbacks}
    output = await graph.ainvoke(says("go"), config)

    assert (output["status"], output["messages"][-1].text) == ("COMPLETED", "one two three")


async def test_the_timeout_bounds_a_whole_reply_if_streaming_is_off(openai_stub: StubFactory, clock: Clock) -> None:
    stub = openai_stub(Reply("never read", before=stalls(clock)), "never asked")
    async with stub.chat_model(disable_streaming=True) as model:
        config = LoopConfig(model_timeout_s=120, model_retries=1)
        graph = create_graph_agent(model, config=config, checkpointer=InMemorySaver())

        result = await Session(graph, "s1").run("go")

    assert (result.status, result.error, [bool(body.get("stream")) for body in stub.bodies]) == (
        "FAILED",
        TOO_LATE.format("no"),
        [False],
    )


@pytest.mark.parametrize("steps", [9, 1], ids=["completed", "limit"])
async def test_a_total_bounds_a_stream_whose_tokens_keep_coming(
    openai_stub: StubFactory, clock: Clock, steps: int
) -> None:
    planned: list[Any] = [Reply(tool_calls=CALL)] if steps == 1 else ["No more actions."]
    stub = openai_stub(*planned, ANSWER)
    limits = {"model_timeout_s": 120, "model_total_timeout_s": 450, "finalize": "compose"}

    got = await streamed(stub, {"kind": Slow, "clock": clock}, max_steps=steps, **limits)

    assert (ANSWER in got["read"], got["error"]) == (
        False,
        "The model provider did not answer as it should (the reply was not complete after 450 s "
        "(model_total_timeout_s)); try again later.",
    )


async def test_no_limit_is_no_limit(openai_stub: StubFactory, clock: Clock) -> None:
    stub = openai_stub("No more actions.", "Hi.")

    got = await streamed(
        stub, {"kind": Slow, "clock": clock, "seconds": 9_000}, model_timeout_s=None, finalize="compose"
    )

    assert (got["read"], got["status"]) == ("Hi.", "COMPLETED")


async def test_time_spent_in_the_consumer_does_not_count(clock: Clock) -> None:
    read: list[str] = []

    async def reader(text: str, _: str | None) -> None:
        read.append(text)
        clock.move(130)
        await asyncio.sleep(0)

    model = ScriptedChatModel([ANSWER])
    reply = await ask(model, [], {}, LoopConfig(model_retries=0), config=None, watch=StreamForwarder(reader))

    assert ("".join(read), reply.text) == (ANSWER, ANSWER)


class InThread(BaseChatModel):
    """A model without asynchronous methods, whose tokens are reported in a thread."""

    clock: Any = Field(exclude=True)

    @property
    def _llm_type(self) -> str:
        return "in-thread"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        for word in ANSWER.split():
            self.clock.move_from_thread(100)
            run_manager.on_llm_new_token(word)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(ANSWER))])


async def test_a_token_that_comes_from_a_thread_counts(clock: Clock) -> None:
    reply = await ask(InThread(clock=clock), [], {}, LoopConfig(model_retries=0))

    assert reply.text == ANSWER


async def test_the_clients_chunk_timeout_is_disabled_unless_configured(openai_stub: StubFactory) -> None:
    stub = openai_stub(Failure(400))
    async with stub.chat_model() as default, stub.chat_model(stream_chunk_timeout=7.0) as chosen:
        limits = [without_client_retries(model).stream_chunk_timeout for model in (default, chosen)]  # type: ignore[attr-defined]  # of ChatOpenAI
        theirs = default.stream_chunk_timeout

    assert (limits, theirs) == ([None, 7.0], 120.0)


async def test_a_timeout_of_the_model_itself_is_left_as_it_is() -> None:
    class Impatient(ScriptedChatModel):
        async def _agenerate(self, *_: Any, **__: Any) -> Any:
            raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own") as caught:
        await ask(Impatient(responses=["never"]), [], {}, LoopConfig(model_retries=0))

    assert not isinstance(caught.value, ModelTimeoutError)
