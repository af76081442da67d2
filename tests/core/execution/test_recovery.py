"""Sessions after interruptions, and runs after failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime
from pydantic import BaseModel, SecretStr

from graph_agent import AgentContext, GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.session.results import EventAdded
from tests.support.agents import asks, at_step_limit, dialogue, echo, finishing_in_reverse, says, thread
from tests.support.result_texts import UNKNOWN

ECHO_CALL = asks(("c", "echo", {"text": "x"}))


class BusyError(Exception):
    status_code = 503


class Stumbling(ScriptedChatModel):
    """Fails `failures` times, from the request numbered `first` on."""

    first: int = 0
    failures: int = 0
    seen: int = 0

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        self._stumble()
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self._stumble()
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk

    def _stumble(self) -> None:
        self.seen += 1
        if self.first < self.seen <= self.first + self.failures:
            raise BusyError("busy")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph_agent.models.retry.wait_s", lambda *_: 0)


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_results_survive_two_interruptions_in_a_row(durability: Any) -> None:
    running, planning = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Never finish."""
        running.set()
        await asyncio.Event().wait()
        return "unreachable"

    class Hanging(ScriptedChatModel):
        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if messages[-1].text == "second":
                planning.set()
                await asyncio.Event().wait()
            return await super()._agenerate(messages, *args, **kwargs)

    wave = asks(("1", "echo", {"text": "done"}), ("2", "slow", {}))
    model = Hanging(responses=[wave, "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[echo, slow], checkpointer=InMemorySaver())
    for text, reached in (("first", running), ("second", planning)):
        run = asyncio.create_task(graph.ainvoke(says(text), thread(), durability=durability))
        await reached.wait()
        while text == "first" and not any(t.result for t in (await graph.aget_state(thread())).tasks):
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    result = await graph.ainvoke(says("third"), thread())

    assert dialogue(result["messages"]) == [
        ("human", "first"),
        ("ai", ""),
        ("tool", "done"),
        ("tool", UNKNOWN),
        ("human", "second"),
        ("human", "third"),
        ("ai", "Done."),
    ]


class Odd(BaseException):
    """Nothing that `except Exception` would catch."""


@pytest.mark.parametrize(
    ("raised", "reported"),
    [
        (SystemExit(3), "odd failed: SystemExit: 3"),
        (Odd("odd"), "odd failed: Odd: odd"),
        (asyncio.CancelledError("not asked for"), "odd failed: CancelledError: not asked for"),
        (BaseExceptionGroup("several", [Odd("odd")]), "odd failed: several (Odd: odd)"),
    ],
    ids=["exit", "base", "cancelled", "group"],
)
@pytest.mark.parametrize("entry", ["ainvoke", "invoke", "astream"])
async def test_any_tool_exception_is_an_error_result_of_its_call(
    raised: BaseException, reported: str, entry: str
) -> None:
    @tool
    async def odd() -> str:
        """Raise something odd."""
        raise raised

    wave = asks(("1", "odd", {}), ("2", "echo", {"text": "x"}))
    graph = create_graph_agent(ScriptedChatModel([wave, "No more actions.", "Done."]), tools=[odd, echo])

    given = says("go")
    if entry == "astream":
        # A callback handler, such as that of the mode `messages`, takes LangChain's way to the tool.
        modes = graph.astream(given, stream_mode=["messages", "values"])
        [*_, result] = [chunk async for mode, chunk in modes if mode == "values"]
    else:
        result = await asyncio.to_thread(graph.invoke, given) if entry == "invoke" else await graph.ainvoke(given)

    assert dialogue(result["messages"])[2:] == [("tool", reported), ("tool", "x"), ("ai", "Done.")]


def test_a_large_wave_of_a_blocking_run_is_in_flight_at_once() -> None:
    barrier = threading.Barrier(16, timeout=30)

    @tool
    def meet() -> str:
        """Wait for fifteen others."""
        barrier.wait()
        return "met"

    wave = asks(*((str(i), "meet", {}) for i in range(16)))
    graph = create_graph_agent(ScriptedChatModel([wave, "No more actions.", "Done."]), tools=[meet])

    result = graph.invoke(says("go"))

    assert dialogue(result["messages"])[2:-1] == [("tool", "met")] * 16


BUSY = "The model provider did not answer as it should (HTTP 503); try again later."


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("failures", "answer", "errors"),
    [(2, at_step_limit(1, "So far: x."), 0), (9, f"Reached maximum reasoning steps (1)\n\n{BUSY}\n\nDone: echo.", 1)],
    ids=["recovers", "fails for good"],
)
async def test_the_answer_at_a_limit_is_retried_and_recorded_once(
    failures: int, answer: str, errors: int, streamed: bool
) -> None:
    model = Stumbling(responses=[ECHO_CALL, "So far: x."], first=1, failures=failures)
    graph = create_graph_agent(model, tools=[echo], config=LoopConfig(max_steps=1), checkpointer=InMemorySaver())
    texts: dict[str, str] = {}
    if streamed:
        async for chunk, _ in graph.astream(says("hi"), thread(), stream_mode="messages"):
            if chunk.text and chunk.type != "tool":
                texts[chunk.id] = texts.get(chunk.id, "") + chunk.text
    else:
        await graph.ainvoke(says("hi"), thread())

    session = Session(graph, "s1")

    result = await session.driver.result()
    failed = [event for event in await session.events() if event["type"] == "error"]
    assert (result.answer, result.stop_reason, len(failed), list(texts.values())) == (
        answer,
        "step_limit",
        errors,
        [answer] if streamed else [],
    )


async def test_usage_at_a_limit_is_counted_once() -> None:
    handler = UsageMetadataCallbackHandler()
    model = ScriptedChatModel([ECHO_CALL, "So far: x."])
    graph = create_graph_agent(model, tools=[echo], config=LoopConfig(max_steps=1), checkpointer=InMemorySaver())
    await graph.ainvoke(says("hi"), thread(callbacks=[handler]))

    usage = (await Session(graph, "s1").driver.result()).usage

    total = sum(counted["total_tokens"] for counted in handler.usage_metadata.values())
    assert (usage["model_calls"], usage["total_tokens"]) == (2, total)


class City(BaseModel):
    city: str


async def test_an_unfit_answer_at_a_limit_is_still_that_limit() -> None:
    model = ScriptedChatModel([ECHO_CALL, "no", "no", "no"])
    graph = create_graph_agent(model, tools=[echo], response_format=City, config=LoopConfig(max_steps=1))

    result = await graph.ainvoke(says("hi"))

    assert (result["stop_reason"], result["structured_response"]) == ("step_limit", None)


async def test_a_structured_answer_is_requested_once_in_direct_mode() -> None:
    model = ScriptedChatModel(["No more actions.", '{"city": "Paris"}'])
    config = LoopConfig(finalize="direct")
    graph = create_graph_agent(model, tools=[echo], response_format=City, config=config)

    streamed = [chunk.text async for chunk, _ in graph.astream(says("hi"), stream_mode="messages")]

    assert "".join(streamed) == '{"city": "Paris"}'


async def test_an_answer_without_text_is_requested_again() -> None:
    call_only = AIMessage("", tool_calls=[{"id": "z", "name": "echo", "args": {"text": "x"}}])
    graph = create_graph_agent(ScriptedChatModel(["No more actions.", call_only, "In words."]), tools=[echo])

    result = await graph.ainvoke(says("hi"))

    assert dialogue(result["messages"]) == [("human", "hi"), ("ai", "In words.")]


async def test_a_delegate_keeps_its_own_limits_and_gets_the_credentials() -> None:
    seen: list[str] = []

    @tool
    async def look(runtime: ToolRuntime[AgentContext, Any]) -> str:
        """Look at the run's context."""
        seen.append(runtime.context.credentials["pms"].get_secret_value())
        return "seen"

    inner_model = ScriptedChatModel([asks(("i", "look", {})), asks(("j", "look", {})), "No more actions.", "Inner."])
    inner = create_graph_agent(inner_model, tools=[look], config=LoopConfig(max_steps=3))
    script = [asks(("1", "delegate_to_r", {"task": "t"})), "So far."]
    graph = create_graph_agent(ScriptedChatModel(script), delegates=[GraphDelegate("r", "R.", inner)])
    context = AgentContext(max_steps=1, credentials={"pms": SecretStr("s3cret")})

    result = await graph.ainvoke(says("go"), context=context)

    assert (dialogue(result["messages"])[2], seen) == (("tool", "Inner."), ["s3cret", "s3cret"])


async def test_streamed_events_have_the_place_the_history_gives_them() -> None:
    slow, fast = finishing_in_reverse()
    wave = asks(("1", "slow", {}), ("2", "fast", {}))
    graph = create_graph_agent(
        ScriptedChatModel([wave, "No more actions.", "Done."]), tools=[slow, fast], checkpointer=InMemorySaver()
    )
    session = Session(graph, "s1")

    streamed = [part.event async for part in session.stream("go") if isinstance(part, EventAdded)]

    assert streamed == await session.events()


async def test_a_session_created_by_an_update_is_listed() -> None:
    from graph_agent import SessionMemory

    graph = create_graph_agent(ScriptedChatModel(["x"]), checkpointer=InMemorySaver())
    await graph.aupdate_state(thread("updated"), {"messages": [("user", "hi")]}, as_node="finalize")

    assert await SessionMemory(graph).list_sessions() == ["updated"]


async def test_a_custom_context_is_passed_below_a_parent_graph() -> None:
    from langgraph.graph import END, START, MessagesState, StateGraph

    class Mine(AgentContext):
        tenant: str

    config = LoopConfig(on_limit="message")
    child = create_graph_agent(ScriptedChatModel([ECHO_CALL]), tools=[echo], config=config, context_schema=Mine)
    parent: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    parent.add_node("child", child)
    parent.add_edge(START, "child")
    parent.add_edge("child", END)

    given: Any = says("hi")
    result = await parent.compile().ainvoke(given, context={"tenant": "a", "max_steps": 1})

    assert result["messages"][-1].text == "Reached maximum reasoning steps (1)"


@pytest.mark.parametrize(
    ("effects", "durability"),
    [(["read"], None), (["read", "write"], "sync"), ([None], "sync"), ([], None)],
    ids=["reads", "one writes", "unmarked", "no tools"],
)
def test_a_plan_is_stored_first_where_a_call_may_write(effects: list[str | None], durability: str | None) -> None:
    tools = [
        echo.model_copy(update={"name": f"t{i}", "metadata": {"effect": effect} if effect else None})
        for i, effect in enumerate(effects)
    ]
    saver = InMemorySaver()
    graph = create_graph_agent(ScriptedChatModel(["x"]), tools=tools, checkpointer=saver)

    assert (graph._durable({}, {}, saver), graph.copy()._durable({}, {}, saver)) == (
        (({"durability": durability} if durability else {}),) * 2
    )
