"""Private names of dependencies that this package uses: each test fails when one moves or changes its meaning."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelCallLimitMiddleware,
    ModelResponse,
    TracePolicy,
    omit_payload,
)
from langchain_core.messages import AIMessage, content
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langchain_core.tools import StructuredTool, tool
from langgraph.cache.sqlite import SqliteCache
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.errors import UnknownInterruptError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.types import Command, Send, interrupt
from openai import APIStatusError

from graph_agent import ScriptedChatModel
from graph_agent.base._compat import (
    STRICT_RESUME,
    InjectedArguments,
    SubPattern,
    as_tool_output,
    cache_block_types,
    can_jump_to,
    chain_model_calls,
    chain_tool_calls,
    checkpointer_of,
    config_parameter,
    count_resume_values,
    custom_writer,
    dual_runnable,
    gate_message_stream,
    in_namespace,
    inherits_durability,
    is_overridden,
    is_resuming,
    messages_delta_reducer,
    parent_checkpoint,
    parse_pattern,
    read_running_state,
    read_state,
    surrounding_context,
    trace_policy_of,
    uses_responses_api,
)
from graph_agent.base._compat.checkpoints import ClockedStateGraph, loads_older_checkpoint, raise_checkpoint_id_floor
from graph_agent.base._compat.release import close_sqlite_cache
from graph_agent.base._internal.sync_bridge import blocking
from tests.support.agents import thread
from tests.support.clocks import process_with_clock
from tests.support.openai_stub import Failure, OpenAIStub

REDUCER: Any = messages_delta_reducer


class State(TypedDict, total=False):
    word: str
    seen: Any


async def test_a_send_task_reads_the_state_and_finds_the_saver() -> None:
    saver = InMemorySaver()

    async def task(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {"seen": (read_state(config, ["word", "seen"]), checkpointer_of(config) is saver)}

    async def fan_out(state: State) -> list[Send]:
        return [Send("task", {})]

    graph = StateGraph(State)
    graph.add_node("task", dual_runnable(blocking(task), task, "task"), input_schema=State)
    graph.add_conditional_edges(START, fan_out, ["task"])
    graph.add_edge("task", END)

    result = await graph.compile(checkpointer=saver).ainvoke({"word": "hi"}, thread())

    assert result["seen"] == ({"word": "hi"}, True)


async def test_a_run_in_a_node_finds_the_context_around_it() -> None:
    async def node(state: State, config: RunnableConfig) -> dict[str, Any]:
        given: list[RunnableConfig | None] = [config, None, {"tags": ["x"]}, {"configurable": {"thread_id": "own"}}]
        return {"seen": [surrounding_context(one) for one in given]}

    schema: Any = dict
    graph: Any = StateGraph(State, context_schema=schema)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled: Any = graph.compile()

    result = await compiled.ainvoke({"word": "hi"}, context={"tenant": "acme"})

    assert (result["seen"], surrounding_context(None)) == ([{"tenant": "acme"}] * 3 + [None], None)


@pytest.mark.parametrize(("given", "responses"), [({}, False), ({"use_responses_api": True}, True)])
async def test_the_api_of_an_openai_model_is_detected(given: dict[str, Any], responses: bool) -> None:
    with OpenAIStub(Failure(400, "No.")) as stub:
        async with stub.chat_model(**given) as model:
            with suppress(APIStatusError):
                await model.ainvoke("hi")

    assert (uses_responses_api(model, {}), stub.requests[0].path) == (
        responses,
        "/v1/responses" if responses else "/v1/chat/completions",
    )


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_task_counts_its_answered_interrupts(by_id: bool) -> None:
    counted: list[int] = []

    async def task(state: State, config: RunnableConfig) -> dict[str, Any]:
        counted.append(count_resume_values(config))
        return {"seen": [interrupt("first?"), interrupt("second?")]}

    graph = StateGraph(State)
    graph.add_node("task", dual_runnable(blocking(task), task, "task"))
    graph.add_edge(START, "task")
    compiled = graph.compile(checkpointer=InMemorySaver())
    given: Any = {"word": "hi"}
    for answer in ("a", "b"):
        result = await compiled.ainvoke(given, thread())
        given = Command(resume={result["__interrupt__"][0].id: answer} if by_id else answer)

    result = await compiled.ainvoke(given, thread())

    assert (counted, result["seen"]) == ([0, 1, 2], ["a", "b"])


async def test_a_node_runs_a_graph_in_the_namespace_of_an_earlier_run_of_it() -> None:
    namespaces: list[str] = []
    parents: list[tuple[str, str | None]] = []

    async def step(state: State, config: RunnableConfig) -> dict[str, Any]:
        namespaces.append(config["configurable"]["checkpoint_ns"].rpartition("|")[0])
        return {}

    inner = StateGraph(State)
    inner.add_node("step", step)
    inner.add_edge(START, "step")
    graph = inner.compile()

    async def task(state: State, config: RunnableConfig) -> dict[str, Any]:
        parents.append(parent_checkpoint(config["configurable"]))
        for _ in range(2):
            own: RunnableConfig = {"configurable": in_namespace(config, "task:before")}
            await graph.ainvoke({"word": "hi"}, merge_configs(config, own))
        return {}

    outer = StateGraph(State)
    outer.add_node("task", task)
    outer.add_edge(START, "task")
    compiled = outer.compile(checkpointer=InMemorySaver())

    await compiled.ainvoke({"word": "hi"}, thread())

    started_from = [found async for found in compiled.aget_state_history(thread())][1]
    assert (namespaces, parents) == (
        ["task:before"] * 2,
        [("", started_from.config["configurable"]["checkpoint_id"])],
    )


async def test_a_node_detects_a_resumed_run() -> None:
    resuming: list[bool] = []

    async def task(state: State, config: RunnableConfig) -> dict[str, Any]:
        resuming.append(is_resuming(config))
        return {"seen": interrupt("first?")}

    graph = StateGraph(State)
    graph.add_node("task", dual_runnable(blocking(task), task, "task"))
    graph.add_edge(START, "task")
    compiled = graph.compile(checkpointer=InMemorySaver())
    await compiled.ainvoke({"word": "hi"}, thread())

    await compiled.ainvoke(Command(resume="a"), thread())

    assert resuming == [False, True]


def test_a_node_runs_both_ways() -> None:
    async def slow(state: State) -> dict[str, Any]:
        return {"word": "asynchronous"}

    def fast(state: State) -> dict[str, Any]:
        return {"word": "blocking"}

    graph = StateGraph(State)
    graph.add_node("node", dual_runnable(fast, slow, "node"), input_schema=State)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)

    assert graph.compile().invoke({"word": ""})["word"] == "blocking"


async def test_pairs_are_stamped_where_our_reducer_stands() -> None:
    class Messages(TypedDict):
        messages: Annotated[list[Any], DeltaChannel(REDUCER)]

    async def nothing(state: Messages) -> None:
        return None

    graph = StateGraph(Messages)
    graph.add_node("nothing", nothing)
    graph.add_edge(START, "nothing")
    graph.add_edge("nothing", END)
    compiled = graph.compile(checkpointer=InMemorySaver())
    await compiled.ainvoke({"messages": [("user", "hi")]}, thread())

    first = (await compiled.aget_state(thread())).values["messages"][0].id

    assert (first is not None, first) == (True, (await compiled.aget_state(thread())).values["messages"][0].id)


def test_injected_tool_parameters_are_detected() -> None:
    @tool
    def look(
        text: str,
        runtime: ToolRuntime,
        state: Annotated[dict[str, Any], InjectedState],
        word: Annotated[str, InjectedState("word")],
        store: Annotated[Any, InjectedStore()],
    ) -> str:
        """Look."""
        return text

    found = InjectedArguments(look)

    assert (found.state, found.store, found.runtime, found.hidden, bool(found)) == (
        {"state": None, "word": "word"},
        "store",
        "runtime",
        {"runtime", "state", "word", "store"},
        True,
    )


def test_the_config_parameter_of_a_tool() -> None:
    def plain(text: str) -> str:
        return text

    def wants(text: str, settings: RunnableConfig) -> str:
        return text

    assert (config_parameter(plain), config_parameter(wants)) == (None, "settings")


def test_a_tools_output_becomes_its_message() -> None:
    made = StructuredTool.from_function(func=lambda: 1, name="t", description="d")

    message = as_tool_output({"a": 1}, None, made, "c1")

    assert (message.content, message.tool_call_id, message.name, message.status) == ('{"a": 1}', "c1", "t", "success")


@pytest.mark.parametrize(("durability", "inherited"), [(None, False), ("exit", True)], ids=str)
async def test_a_node_detects_an_explicit_durability(durability: Any, inherited: bool) -> None:
    found: list[bool] = []

    def look(state: MessagesState, config: RunnableConfig) -> None:
        found.append(inherits_durability(config["configurable"]))

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("look", look)
    graph.add_edge(START, "look")

    given: Any = {"messages": []}
    saver = InMemorySaver()
    await graph.compile(checkpointer=saver).ainvoke(given, {"configurable": {"thread_id": "t"}}, durability=durability)

    assert found == [inherited]


def test_repeats_of_a_parsed_pattern_are_found() -> None:
    [(_, (least, most, inside)), (_, members)] = parse_pattern("(?:a|b){2,3}[xy]")

    assert (int(least), int(most), isinstance(inside, SubPattern), len(members)) == (2, 3, True, 2)


def test_a_closed_cache_cannot_be_used(tmp_path: Path) -> None:
    cache = SqliteCache[Any](path=str(tmp_path / "cache.db"))

    close_sqlite_cache(cache)

    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        cache.get([(("a",), "b")])


async def test_a_fresh_read_sees_what_the_update_writes() -> None:
    seen: list[Any] = []

    async def route(state: State, config: RunnableConfig) -> str:
        seen.append((read_state(config, ["word"]), read_state(config, ["word"], fresh=True)))
        return END

    graph = StateGraph(State)
    graph.add_node("say", lambda state: {"word": "said"})
    graph.add_edge(START, "say")
    graph.add_conditional_edges("say", dual_runnable(blocking(route), route, "route"), [END])
    compiled = graph.compile(checkpointer=InMemorySaver())
    await compiled.ainvoke({"word": "hi"}, thread())

    await compiled.aupdate_state(thread(), {"word": "edited"}, as_node="say")

    assert seen[-1] == ({"word": "said"}, {"word": "edited"})


def test_checkpoint_ids_are_made_from_a_clock_that_can_be_raised() -> None:
    with process_with_clock(3600):
        later = str(uuid6())
    with process_with_clock(0):
        before = str(uuid6())
        raise_checkpoint_id_floor(later)
        after = str(uuid6())

    assert before < later < after


async def test_a_compiled_graph_observes_each_loaded_checkpoint() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("node", lambda state: {})
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.__class__ = ClockedStateGraph
    with process_with_clock(3600):
        await graph.ainvoke({"messages": []}, thread())
        loaded = (await graph.aget_state(thread())).config["configurable"]["checkpoint_id"]
    with process_with_clock(0):
        await graph.ainvoke({"messages": []}, thread())
        made = (await graph.aget_state(thread())).config["configurable"]["checkpoint_id"]

    assert made > loaded


async def test_a_run_from_an_older_checkpoint_is_recognized_also_in_its_subgraphs() -> None:
    seen: list[bool] = []

    async def inner(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {}

    class Watched(ClockedStateGraph):
        def astream(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            seen.append(loads_older_checkpoint(config["configurable"]))
            return super().astream(input, config, **kwargs)

    child = StateGraph(State)
    child.add_node("inner", inner)
    child.add_edge(START, "inner")
    compiled = child.compile(checkpointer=True)
    compiled.__class__ = Watched
    parent = StateGraph(State)
    parent.add_node("child", compiled)
    parent.add_edge(START, "child")
    graph = parent.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"word": "hi"}, thread())
    history = [state async for state in graph.aget_state_history(thread())]
    await graph.ainvoke(None, history[1].config)

    assert seen == [False, True]


async def test_the_message_stream_of_a_model_call_goes_through_a_gate() -> None:
    passed: list[Any] = []

    def gate(send: Callable[[Any], None], seen: set[int | str]) -> Callable[[Any], None]:
        def take(entry: Any) -> None:
            namespace, mode, (message, metadata) = entry
            passed.append((namespace, mode, message.text, metadata["langgraph_node"], message.id in seen))
            send(entry)

        return take

    async def node(state: State, config: RunnableConfig) -> dict[str, Any]:
        await ScriptedChatModel(["One two."]).ainvoke("hi", gate_message_stream(config, gate))
        return {}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)

    shown = [
        cast("Any", chunk).text async for chunk, _ in graph.compile().astream({"word": "hi"}, stream_mode="messages")
    ]

    assert (passed, shown) == (
        [((), "messages", text, "node", True) for text in ("One", " two.", "")],
        ["One", " two.", ""],
    )


async def test_a_node_writes_to_its_custom_stream_without_waking_the_loop() -> None:
    loop, woken = asyncio.get_running_loop(), list[Any]()

    async def node(state: State) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", lambda *call, **_: woken.append(call))
            custom_writer(loop)("first")
        get_stream_writer()("second")
        return {"seen": True}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")

    written = [entry async for entry in graph.compile().astream({"word": "hi"}, stream_mode=["custom"])]

    assert (written, woken) == ([("custom", "first"), ("custom", "second")], [])


def test_types_of_content_blocks_are_found_once() -> None:
    found = content._get_data_content_block_types()
    cache_block_types()
    kept = content._get_data_content_block_types

    assert (kept(), kept() is kept(), "image" in found) == (found, True, True)


async def test_middleware_around_model_calls_is_composed_with_its_commands() -> None:
    async def wrap(name: str, request: Any, handler: Any) -> Any:
        inner = await handler(f"{request}{name}")
        return ExtendedModelResponse(inner, Command(update={"name": name}))

    async def model(request: Any) -> Any:
        return ModelResponse(result=[AIMessage(request)])

    composed = chain_model_calls([partial(wrap, "a"), partial(wrap, "b")])

    answered = await composed("", model)

    commands = [command.update for command in answered.commands]
    assert (answered.model_response.result[0].text, commands) == ("ab", [{"name": "b"}, {"name": "a"}])


async def test_middleware_around_tool_calls_is_composed() -> None:
    async def wrap(name: str, request: Any, handler: Any) -> Any:
        return f"{name}({await handler(request)})"

    async def run(request: Any) -> Any:
        return request

    assert await chain_tool_calls([partial(wrap, "a"), partial(wrap, "b")])("x", run) == "a(b(x))"


def test_the_jumps_and_methods_of_middleware_are_detected() -> None:
    limit = ModelCallLimitMiddleware(run_limit=1)

    found = [is_overridden(limit, AgentMiddleware, name) for name in ("before_model", "wrap_tool_call")]

    assert (can_jump_to(limit, "before_model"), can_jump_to(limit, "after_model"), found) == (
        ["end"],
        [],
        [True, False],
    )


def test_a_strict_resume_refuses_an_interrupt_that_is_not_open() -> None:
    graph = StateGraph(MessagesState).add_node("ask", lambda state: interrupt("?")).add_edge(START, "ask")
    compiled = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t", STRICT_RESUME: True}}
    compiled.invoke({"messages": []}, config)

    with pytest.raises(UnknownInterruptError, match="0" * 32):
        compiled.invoke(Command(resume={"0" * 32: "yes"}), config)


def test_the_state_is_empty_outside_a_node() -> None:
    assert read_running_state(["messages"]) == {}


def test_a_middleware_has_its_own_trace_policy_or_the_global_one() -> None:
    class Private(AgentMiddleware[Any, Any, Any]):
        trace_policy = TracePolicy(process_inputs=omit_payload)

    processed = [trace_policy_of(each).process_inputs for each in (Private(), AgentMiddleware())]

    assert [process({"a": 1}) for process in processed if process is not None] == [{}, {"a": 1}]
