"""The work of all benchmarks: a model and a tool without latency, and the agents that run them.

A turn is one model call that asks for one tool call, and that call. Replies have 200 characters and tool results 1,000.
The model only counts its calls and never reads the history, so that any cost that grows with the history is the
agent's.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import aiosqlite
from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from benchmarks.harness import Trial, Work
from graph_agent import LoopConfig, create_graph_agent
from graph_agent.base.history.events import append_events
from graph_agent.base.settings.config import Finalize
from graph_agent.core.state.channels import SNAPSHOT_EVERY, GrowingDelta, MessagesChannel
from graph_agent.storage.checkpoints.open import open_saver, strict_serializer

REPLY = "Looking the next key up, as the question needs its value before an answer is possible. ".ljust(200, ".")
"""The text of every reply."""
RESULT_CHARS = 1_000
"""Length of a tool result."""

Saver = BaseCheckpointSaver[Any] | None
Session = Callable[[str], Awaitable[Any]]
"""Runs one input in a session, by its thread id."""


@dataclass
class Counter:
    """The model calls of one session."""

    turns: int
    """Replies that ask for a tool call; every later reply is text."""
    calls: int = 0
    stamps: list[float] = field(default_factory=list)
    """CPU time of the process at each model call, in seconds."""


_counter: ContextVar[Counter] = ContextVar("counter")


def begin(turns: int) -> Counter:
    """Start to count the model calls of the current context and of the tasks that it starts."""
    counter = Counter(turns)
    _counter.set(counter)
    return counter


def counted() -> Counter:
    """Return the counter that was begun last in the current context."""
    return _counter.get()


class CountingModel(BaseChatModel):
    """Asks for one tool call per turn, then answers; counts its calls per session and reads no message."""

    @property
    def _llm_type(self) -> str:
        return "counting"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Bind the names of the tools; the conversion of their schemas is the cost of a provider's client."""
        named = [tool if isinstance(tool, dict) else {"function": {"name": tool.name}} for tool in tools]
        return self.bind(tools=named, **kwargs)

    def reply(self) -> AIMessage:
        """Return the next reply of this session."""
        counter = counted()
        at = counter.calls
        counter.calls += 1
        counter.stamps.append(time.process_time())
        return self.reply_at(at, counter)

    def reply_at(self, at: int, counter: Counter) -> AIMessage:
        """Return reply number `at`."""
        if at >= counter.turns:
            return AIMessage(REPLY)
        return AIMessage(REPLY, tool_calls=[{"id": f"call_{at}", "name": "lookup", "args": {"key": f"k{at}"}}])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.reply())])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.reply())])


class StreamingModel(CountingModel):
    """Streams an answer of some tokens, and lets the event loop run before each, as a network client does."""

    tokens: int
    """Length of the answer."""

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(self.tokens):
            await asyncio.sleep(0)
            yield ChatGenerationChunk(message=AIMessageChunk(content="word "))


async def _look_up(key: str) -> str:
    return f"the value of {key}".ljust(RESULT_CHARS, ".")


@functools.cache
def lookup_tool(effect: Literal["read", "write"] = "read") -> BaseTool:
    """Return the tool, which all agents share, as those of a program do.

    An effect of `write` makes graph-agent store each plan before its calls run.
    """
    return StructuredTool.from_function(
        coroutine=_look_up, name="lookup", description="Look a key up.", metadata={"effect": effect}
    )


def _config(thread: str, turns: int) -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 4 * turns + 20}


def session_of(graph: Any, turns: int, **options: Any) -> Session:
    """Return a function that runs one input of `turns` turns on a graph; `options` are arguments of `ainvoke`."""

    async def run(thread: str) -> Any:
        counter = begin(turns)
        result = await graph.ainvoke({"messages": [HumanMessage("go")]}, _config(thread, turns), **options)
        called = sum(isinstance(message, ToolMessage) for message in result["messages"])
        if counter.calls <= turns or called != turns or result["messages"][-1].content != REPLY:
            raise RuntimeError(f"The input made {called} of {turns} tool calls; it ended: {result['messages'][-1]}")
        return result

    return run


def graph_agent_session(
    turns: int,
    saver: Saver = None,
    *,
    finalize: Finalize = "auto",
    effect: Literal["read", "write"] = "read",
    settings: dict[str, Any] | None = None,
    **parts: Any,
) -> Session:
    """Return a session of this framework, everything on.

    Args:
        turns: Turns of the input.
        saver: The checkpointer.
        finalize: Same as in `LoopConfig`.
        effect: Effect of the tool; with `write`, the run has `durability="sync"`.
        settings: Further fields of `LoopConfig`.
        **parts: Further arguments of `create_graph_agent`.
    """
    config = LoopConfig(max_steps=turns + 1, finalize=finalize, **(settings or {}))
    graph = create_graph_agent(CountingModel(), tools=[lookup_tool(effect)], config=config, checkpointer=saver, **parts)
    return session_of(graph, turns)


def create_agent_session(turns: int, saver: Saver = None) -> Session:
    """Return a session of LangChain's agent."""
    return session_of(create_agent(CountingModel(), tools=[lookup_tool()], checkpointer=saver), turns)


class _Update(TypedDict, total=False):
    messages: list[AnyMessage]
    events: list[dict[str, Any]]


class _State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add]
    events: Annotated[list[dict[str, Any]], add]
    calls: list[dict[str, Any]]


class _GrowingState(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], MessagesChannel()]
    events: Annotated[list[dict[str, Any]], GrowingDelta(append_events, snapshot_frequency=SNAPSHOT_EVERY)]
    calls: list[dict[str, Any]]


class _Route(TypedDict):
    calls: list[dict[str, Any]]


async def _route(state: _Route) -> Any:
    return [Send("tools", call) for call in state["calls"]] or "finalize"


def bare_nodes_session(turns: int, saver: Saver = None, *, langchain: bool) -> Session:
    """Return a session of the same graph without this framework's content: plan, tools, delegate and finalize.

    With a saver, its state has this framework's channels, because LangGraph's own store the whole history in each
    checkpoint.

    Args:
        turns: Turns of the input.
        saver: The checkpointer.
        langchain: Whether `plan` calls the model with `ainvoke`; else it builds the reply itself, which leaves the cost
            of LangGraph alone.
    """
    counting, tool = CountingModel(), lookup_tool()
    bound = counting.bind_tools([tool])

    async def plan(state: _State) -> dict[str, Any]:
        reply = await bound.ainvoke(state["messages"]) if langchain else counting.reply()
        calls = [dict(call) for call in reply.tool_calls]
        return {"messages": [reply], "calls": calls, "events": [{"type": "tool_call", **call} for call in calls]}

    async def tools(call: dict[str, Any]) -> _Update:
        content = await _look_up(**call["args"])
        message = ToolMessage(content, tool_call_id=call["id"], name=call["name"])
        return {"messages": [message], "events": [{"type": "tool_result", "id": call["id"], "content": content}]}

    async def finalize(state: _Route) -> _Update:
        return {"events": [{"type": "agent_response"}]}

    schema = _GrowingState if saver is not None else _State
    graph: Any = StateGraph(schema)
    graph.add_node("plan", plan, input_schema=schema)
    graph.add_node("tools", tools)
    graph.add_node("delegate", tools)
    graph.add_node("finalize", finalize)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", _route, ["tools", "delegate", "finalize"])
    graph.add_edge("tools", "plan")
    graph.add_edge("delegate", "plan")
    graph.add_edge("finalize", END)
    return session_of(graph.compile(checkpointer=saver), turns)


def bare_loop_session(turns: int) -> Session:
    """Return a session of a loop written by hand on LangChain's model and tool: no graph, no saver."""
    tool = lookup_tool()
    model = CountingModel().bind_tools([tool])

    async def run(thread: str) -> list[AnyMessage]:
        begin(turns)
        messages: list[AnyMessage] = [HumanMessage("go")]
        while True:
            reply = await model.ainvoke(messages)
            messages.append(reply)
            if not reply.tool_calls:
                return messages
            (call,) = reply.tool_calls
            messages.append(ToolMessage(await tool.ainvoke(call["args"]), tool_call_id=call["id"] or ""))

    return run


@asynccontextmanager
async def stock_saver(folder: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open LangGraph's SQLite saver on a new file."""
    async with aiosqlite.connect(folder / "bench.db") as connection:
        saver = AsyncSqliteSaver(connection, serde=strict_serializer())
        await saver.setup()
        yield saver


@asynccontextmanager
async def own_saver(folder: Path, url: str = "") -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open this package's saver, on a new SQLite file unless `url` names a database."""
    async with open_saver(url or f"sqlite:///{folder / 'bench.db'}") as saver:
        if (set_up := getattr(saver, "setup", None)) is not None and (waiting := set_up()) is not None:
            await waiting
        yield saver


Opener = Callable[[Path], AbstractAsyncContextManager[BaseCheckpointSaver[Any]]]
"""Opens a saver in a new folder."""


def sessions_trial(
    make: Callable[[Saver], Session],
    *,
    opener: Opener | None = None,
    sessions: int = 1,
    repeats: int = 1,
    first: bool = False,
) -> Trial:
    """Return a trial of some sessions that run at the same time, on an agent that has answered before.

    Args:
        make: Builds the agent over a saver and returns its session.
        opener: Opens the saver; None for no saver.
        sessions: Number of sessions at the same time.
        repeats: How often they run, one after the other, each time with new sessions.
        first: Whether the agent has not answered before.
    """

    @asynccontextmanager
    async def trial() -> AsyncIterator[Work]:
        async with AsyncExitStack() as stack:
            saver: Saver = None
            if opener is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                saver = await stack.enter_async_context(opener(folder))
            session = make(saver)
            if not first:
                await session("warm-up")

            async def work() -> None:
                for _ in range(repeats):
                    await asyncio.gather(*(session(uuid.uuid4().hex) for _ in range(sessions)))

            yield work

    return trial


def stored_beyond_messages(folder: Path, messages: Sequence[AnyMessage]) -> int:
    """Return the bytes in the SQLite file of a saver beyond the size of the messages themselves."""
    with closing(sqlite3.connect(folder / "bench.db")) as db:
        (checkpoints,) = db.execute("select sum(length(checkpoint) + length(metadata)) from checkpoints").fetchone()
        (writes,) = db.execute("select sum(length(value)) from writes").fetchone()
    serde = strict_serializer()
    return int(checkpoints + (writes or 0) - sum(len(serde.dumps_typed(message)[1]) for message in messages))
