"""Model requests without callbacks: everything that can observe a request still does."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.globals import set_debug, set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.tools import tool
from langchain_core.tracers.context import collect_runs
from langgraph.checkpoint.memory import InMemorySaver
from langsmith.run_helpers import tracing_context
from pydantic import Field

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks, says
from tests.support.observers import RecordingClient


@tool
def echo(text: str) -> str:
    """Repeat a text."""
    return text


def agent(**model: Any) -> Any:
    script = ScriptedChatModel([asks(("1", "echo", {"text": "a"})), "It is a."], cycle=True)
    return create_graph_agent(script.model_copy(update=model), tools=[echo])


class Recorder(BaseCallbackHandler):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.events.append("model start")

    def on_llm_end(self, *_: Any, **__: Any) -> None:
        self.events.append("model end")

    def on_tool_start(self, *_: Any, **__: Any) -> None:
        self.events.append("tool start")

    def on_tool_end(self, *_: Any, **__: Any) -> None:
        self.events.append("tool end")


ONE_TURN = ["model start", "model end", "tool start", "tool end", "model start", "model end"]


async def test_requests_of_a_run_without_observers_have_no_callbacks(unobserved_requests: list[Any]) -> None:
    result = await agent().ainvoke(says("go"))

    assert (result["messages"][-1].text, len(unobserved_requests)) == ("It is a.", 2)


async def test_a_handler_of_the_run_receives_each_model_and_tool_call(unobserved_requests: list[Any]) -> None:
    handler = Recorder()
    await agent().ainvoke(says("go"), {"callbacks": [handler]})

    assert (handler.events, unobserved_requests) == (ONE_TURN, [])


async def test_a_handler_of_the_model_receives_each_model_call(unobserved_requests: list[Any]) -> None:
    handler = Recorder()
    await agent(callbacks=[handler]).ainvoke(says("go"))

    assert (handler.events, unobserved_requests) == (["model start", "model end"] * 2, [])


async def test_astream_events_reports_each_model_call(unobserved_requests: list[Any]) -> None:
    events = [event async for event in agent().astream_events(says("go"), version="v2")]

    names = [event["event"] for event in events if event["event"] in ("on_chat_model_start", "on_chat_model_end")]
    assert (names, unobserved_requests) == (["on_chat_model_start", "on_chat_model_end"] * 2, [])


async def test_langsmith_traces_each_model_and_tool_call(unobserved_requests: list[Any]) -> None:
    client = RecordingClient()
    with tracing_context(enabled=True, client=client):
        await agent().ainvoke(says("go"))

    assert ([kind for kind in client.kinds if kind != "chain"], unobserved_requests) == (["llm", "tool", "llm"], [])


async def test_a_run_collector_collects_each_model_call(unobserved_requests: list[Any]) -> None:
    with collect_runs() as collector:
        await agent().ainvoke(says("go"))

    def kinds(runs: list[Any]) -> Iterator[str]:
        for run in runs:
            yield run.run_type
            yield from kinds(run.child_runs)

    assert (list(kinds(collector.traced_runs)).count("llm"), unobserved_requests) == (2, [])


async def test_a_usage_context_counts_each_model_call(unobserved_requests: list[Any]) -> None:
    with get_usage_metadata_callback():
        await agent().ainvoke(says("go"))

    assert unobserved_requests == []


async def test_debug_output_shows_each_model_call(
    unobserved_requests: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    set_debug(True)
    try:
        await agent().ainvoke(says("go"))
    finally:
        set_debug(False)

    assert (capsys.readouterr().out.count("Entering LLM run"), unobserved_requests) == (2, [])


class Own(BaseChatModel):
    """A model that overrides an entry point."""

    @property
    def _llm_type(self) -> str:
        return "own"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def ainvoke(self, *_: Any, **__: Any) -> AIMessage:
        return AIMessage("own")


async def test_an_entry_point_of_the_models_own_is_called() -> None:
    result = await create_graph_agent(Own()).ainvoke(says("go"))

    assert result["messages"][-1].text == "own"


class Plain(BaseChatModel):
    calls: int = 0

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        self.calls += 1
        return ChatResult(generations=[ChatGeneration(message=AIMessage("plain"))], llm_output={"model_name": "p-1"})


async def test_the_models_cache_and_response_metadata_are_kept(unobserved_requests: list[Any]) -> None:
    model = Plain(cache=InMemoryCache())
    graph = create_graph_agent(model)
    results = [await graph.ainvoke(says("go")) for _ in range(2)]

    answers = [(result["messages"][-1].text, result["messages"][-1].response_metadata) for result in results]
    assert (answers, model.calls, len(unobserved_requests)) == ([("plain", {"model_name": "p-1"})] * 2, 1, 2)


class Limiter(BaseRateLimiter):
    acquired = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        raise NotImplementedError

    async def aacquire(self, *, blocking: bool = True) -> bool:
        self.acquired += 1
        return True


async def test_the_models_rate_limit_is_kept(unobserved_requests: list[Any]) -> None:
    limiter = Limiter()
    await create_graph_agent(Plain(rate_limiter=limiter)).ainvoke(says("go"))

    assert (limiter.acquired, len(unobserved_requests)) == (1, 1)


class Stubborn(ScriptedChatModel):
    """Suppresses a cancellation, or converts it to an error, and counts its requests."""

    converts: bool = False
    sent: int = 0
    started: asyncio.Event = Field(default_factory=asyncio.Event, exclude=True)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        self.sent += 1
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.converts:
                raise ConnectionError("connection reset") from None
        return ChatResult(generations=[ChatGeneration(message=AIMessage("late"))])


OBSERVED = pytest.mark.parametrize("observed", [False, True], ids=["unobserved", "observed"])
CONVERTS = pytest.mark.parametrize("converts", [False, True], ids=["suppressed", "converted"])


def stubborn(*, observed: bool, converts: bool) -> Stubborn:
    return Stubborn(responses=["never"], converts=converts, callbacks=[Recorder()] if observed else None)


@OBSERVED
@CONVERTS
async def test_a_cancelled_run_is_cancelled_though_the_model_suppresses_it(observed: bool, converts: bool) -> None:
    model = stubborn(observed=observed, converts=converts)
    run = asyncio.create_task(create_graph_agent(model).ainvoke(says("go")))
    await model.started.wait()
    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run

    assert model.sent == 1


@OBSERVED
@CONVERTS
async def test_an_abort_ends_a_run_though_the_model_suppresses_it(observed: bool, converts: bool) -> None:
    model = stubborn(observed=observed, converts=converts)
    session = Session(create_graph_agent(model, checkpointer=InMemorySaver()), "s")
    run = asyncio.create_task(session.run("go"))
    await model.started.wait()
    await session.abort()

    assert (await run).status == "ABORTED"


@OBSERVED
@CONVERTS
async def test_a_time_limit_ends_a_request_though_the_model_suppresses_it(observed: bool, converts: bool) -> None:
    config = LoopConfig(model_timeout_s=0.05, model_retries=0)
    result = await create_graph_agent(stubborn(observed=observed, converts=converts), config=config).ainvoke(says("go"))

    assert result["status"] == "FAILED"


VALUE: ContextVar[str] = ContextVar("test_value", default="unset")


async def test_context_variables_of_a_model_stay_its_own(unobserved_requests: list[Any]) -> None:
    seen: list[str] = []

    class Setting(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            seen.append(VALUE.get())
            VALUE.set("set")
            return await super()._agenerate(*args, **kwargs)

    script: list[str | AIMessage] = [asks(("1", "echo", {"text": "a"})), "It is a."]
    await create_graph_agent(Setting(responses=script), tools=[echo]).ainvoke(says("go"))

    assert (seen, len(unobserved_requests)) == (["unset", "unset"], 2)


async def test_a_program_that_replaces_langchains_entry_points_receives_each_request(
    unobserved_requests: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    original = BaseChatModel.agenerate

    @functools.wraps(original)
    async def instrumented(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("agenerate")
        return await original(self, *args, **kwargs)

    monkeypatch.setattr(BaseChatModel, "agenerate", instrumented)
    await agent().ainvoke(says("go"))

    assert (calls, unobserved_requests) == (["agenerate"] * 2, [])


class WithoutManager(Plain):
    """A model whose `_agenerate` takes no run manager."""

    async def _agenerate(self, messages: Any, stop: Any, **_: Any) -> ChatResult:  # type: ignore[override]  # LangChain accepts it
        return self._generate()


class Detailed(Plain):
    """A model with metadata of the generation and of the whole reply."""

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        generation = ChatGeneration(
            message=AIMessage("detailed", response_metadata={"own": 1}), generation_info={"finish_reason": "stop"}
        )
        return ChatResult(generations=[generation], llm_output={"model_name": "d-1"})


@pytest.mark.parametrize("kind", [Plain, WithoutManager, Detailed])
async def test_a_reply_equals_that_of_an_observed_request(kind: type[Plain], unobserved_requests: list[Any]) -> None:
    handlers: list[Any] = [None, [Recorder()]]
    unobserved_reply, observed_reply = [
        (await create_graph_agent(kind(callbacks=callbacks)).ainvoke(says("go")))["messages"][-1]
        for callbacks in handlers
    ]

    def fields(reply: AIMessage) -> Any:
        prefix, _, rest = (reply.id or "").partition("-")
        return {**reply.model_dump(exclude={"id"}), "id": (prefix, rest.startswith("-"))}

    assert (fields(unobserved_reply), len(unobserved_requests)) == (fields(observed_reply), 1)


async def test_a_global_cache_of_langchain_is_kept(unobserved_requests: list[Any]) -> None:
    set_llm_cache(InMemoryCache())
    model = Plain()
    graph = create_graph_agent(model)
    try:
        for _ in range(2):
            await graph.ainvoke(says("go"))
    finally:
        set_llm_cache(None)

    assert (model.calls, len(unobserved_requests)) == (1, 2)


async def test_a_program_that_replaces_langchains_generation_receives_each_request(
    unobserved_requests: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    original = BaseChatModel._agenerate_with_cache

    @functools.wraps(original)
    async def instrumented(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("generation")
        return await original(self, *args, **kwargs)

    monkeypatch.setattr(BaseChatModel, "_agenerate_with_cache", instrumented)
    await agent().ainvoke(says("go"))

    assert (calls, len(unobserved_requests)) == (["generation"] * 2, 2)
