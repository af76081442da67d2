"""Execution of calls: errors are results, siblings continue, and no output breaks the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel, SecretStr

from graph_agent import AgentContext, LoopConfig, ScriptedChatModel, SessionMemory, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import add, asks, echo, marked, says, thread

UNKNOWN_EFFECT = "It is not known whether it took effect; check before repeating it."


async def results_of(tools: list[Any], *calls: tuple[str, dict[str, Any]], **options: Any) -> list[tuple[str, str]]:
    """Run one wave and give each result's status and text, in call order."""
    wave = asks(*((str(i), name, arguments) for i, (name, arguments) in enumerate(calls)))
    run: dict[str, Any] = options.pop("run", {})
    graph = create_graph_agent(ScriptedChatModel([wave, "No more actions.", "Done."]), tools=tools, **options)
    result = await graph.ainvoke(says("go"), **run)
    return [(m.status, m.text) for m in result["messages"] if isinstance(m, ToolMessage)]


@tool
async def broken() -> str:
    """Fail."""
    raise RuntimeError("out of paper")


@tool
async def refusing() -> str:
    """Fail in words for the model."""
    raise ToolException("No rooms in May.")


@tool
async def forever() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return "unreachable"


async def test_one_failing_call_leaves_its_siblings_alone() -> None:
    assert await results_of(
        [echo, add, broken, refusing],
        ("broken", {}),
        ("echo", {"text": "x"}),
        ("refusing", {}),
        ("serch", {}),
        ("add", {"a": "one", "b": 2}),
        ("add", {"a": 1, "b": 2}),
    ) == [
        ("error", "broken failed: RuntimeError: out of paper"),
        ("success", "x"),
        ("error", "No rooms in May."),
        ("error", "Unknown tool 'serch'; known: add, broken, echo, refusing."),
        (
            "error",
            "The arguments do not fit the tool 'add': a: Input should be a valid integer, unable to parse string as an "
            "integer. It takes: a, b.",
        ),
        ("success", "3"),
    ]


async def test_a_call_that_runs_too_long_is_stopped_alone() -> None:
    assert await results_of(
        [echo, forever], ("forever", {}), ("echo", {"text": "x"}), config=LoopConfig(tool_timeout_s=2)
    ) == [
        ("error", f"forever was stopped at its time limit of 2 s. {UNKNOWN_EFFECT}"),
        ("success", "x"),
    ]


async def test_a_tools_own_time_limit_wins(caplog: pytest.LogCaptureFixture) -> None:
    limited = marked(forever, timeout_s=0.01)

    assert await results_of([limited], ("forever", {})) == [
        ("error", f"forever was stopped at its time limit of 0.01 s. {UNKNOWN_EFFECT}")
    ]
    assert "The tool 'forever' failed: TimeLimitError: stopped at its time limit of 0.01 s" in caplog.messages


async def test_a_timeout_of_a_reading_tool_reports_no_change() -> None:
    reading = marked(forever, timeout_s=0.01, effect="read")

    assert await results_of([reading], ("forever", {})) == [
        ("error", "forever was stopped at its time limit of 0.01 s. It only reads, so nothing was changed.")
    ]


async def test_blocking_tools_of_one_wave_run_at_once() -> None:
    barrier = threading.Barrier(12, timeout=30)

    @tool
    def meet() -> str:
        """Wait for eleven others."""
        barrier.wait()
        return "met"

    assert await results_of([meet], *[("meet", {})] * 12) == [("success", "met")] * 12


async def test_arguments_that_are_no_json_go_back_to_the_model() -> None:
    reply = AIMessage(
        "",
        invalid_tool_calls=[
            {"id": "a", "name": "echo", "args": "not json", "error": None, "type": "invalid_tool_call"},
            {"id": "b", "name": "echo", "args": '{"text": "mended",', "error": None, "type": "invalid_tool_call"},
        ],
    )
    graph = create_graph_agent(ScriptedChatModel([reply, "No more actions.", "Done."]), tools=[echo])

    result = await graph.ainvoke(says("go"))

    assert [(m.status, m.text) for m in result["messages"] if isinstance(m, ToolMessage)] == [
        ("error", "The arguments are no JSON object: 'not json'. Send one JSON object for each call."),
        ("success", "mended"),
    ]


class _Unprintable:
    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (None, ("success", "null")),
        (True, ("success", "true")),
        (3.5, ("success", "3.5")),
        ({"a": [1, None]}, ("success", '{"a": [1, null]}')),
        ([], ("success", "[]")),
        ("", ("success", "")),
        ("a\x00b", ("success", "a\ufffdb")),
        ("lone \ud800 surrogate", ("success", "lone \ufffd surrogate")),
        ("é – 漢字 🎉", ("success", "é – 漢字 🎉")),
        ({"\udfff": "\ud800"}, ("success", '{"\ufffd": "\ufffd"}')),
        (b"bytes", ("success", "b'bytes'")),
    ],
    ids=["none", "bool", "float", "mapping", "empty list", "empty", "nul", "surrogate", "unicode", "keys", "bytes"],
)
async def test_any_output_survives_the_checkpoint(output: Any, shown: tuple[str, str], tmp_path: Path) -> None:
    @tool
    async def produce() -> Any:
        """Produce something odd."""
        return output

    async with open_saver(f"sqlite:///{tmp_path}/odd.db") as saver:
        wave = asks(("1", "produce", {}))
        model = ScriptedChatModel([wave, "No more actions.", "Done."])
        graph = create_graph_agent(model, tools=[produce], checkpointer=saver)
        await graph.ainvoke(says("go"), thread())

        stored = (await graph.aget_state(thread())).values["messages"]

    assert [(m.status, m.text) for m in stored if isinstance(m, ToolMessage)] == [shown]


async def test_an_empty_output_is_an_error_result() -> None:
    @tool
    async def produce() -> Any:
        """Produce something odd."""
        return _Unprintable()

    assert await results_of([produce], ("produce", {})) == [("error", "produce failed: ValueError: no words")]


async def test_a_huge_output_is_cut_for_the_model_and_kept_in_the_history(tmp_path: Path) -> None:
    huge = "x" * 100_000_000

    @tool
    async def produce() -> str:
        """Produce 100 MB."""
        return huge

    async with open_saver(f"sqlite:///{tmp_path}/huge.db") as saver:
        model = ScriptedChatModel([asks(("1", "produce", {})), "No more actions.", "Done."])
        graph = create_graph_agent(model, tools=[produce], checkpointer=saver)
        result = await graph.ainvoke(says("go"), thread())

        events = await SessionMemory(graph).get_session_events("s1")

    kept = [(e["content"] == huge, e["truncated"]) for e in events if e["type"] == "tool_result"]
    shown = next(m.text for m in result["messages"] if isinstance(m, ToolMessage))
    marker = "[… 99,970,000 characters left out here; the history keeps the whole output …]"
    assert (kept, shown) == ([(True, True)], f"{'x' * 15_000}\n{marker}\n{'x' * 15_000}")


async def test_arguments_with_odd_characters_survive_the_checkpoint(tmp_path: Path) -> None:
    reply = AIMessage("", tool_calls=[{"id": "1", "name": "echo", "args": {"text": "a\x00\ud800"}}])
    async with open_saver(f"sqlite:///{tmp_path}/odd.db") as saver:
        model = ScriptedChatModel([reply, "No more actions.", "Done."])
        graph = create_graph_agent(model, tools=[echo], checkpointer=saver)
        await graph.ainvoke(says("go"), thread())

        events = await SessionMemory(graph).get_session_events("s1")

    assert [e["arguments"] for e in events if e["type"] == "tool_call"] == [{"text": "a\ufffd\ufffd"}]


async def test_the_injected_arguments_of_toolnode_are_injected() -> None:
    @tool
    async def look(
        text: str,
        runtime: ToolRuntime[AgentContext, dict[str, Any]],
        state: Annotated[dict[str, Any], InjectedState],
        messages: Annotated[list[Any], InjectedState("messages")],
        store: Annotated[BaseStore, InjectedStore()],
        call_id: Annotated[str, InjectedToolCallId],
        config: RunnableConfig,
    ) -> dict[str, Any]:
        """Return the injected arguments."""
        return {
            "text": text,
            "call": [call_id, runtime.tool_call_id],
            "first": [messages[0].text, state["messages"][0].text, runtime.state["messages"][0].text],
            "store": runtime.store is store,
            "secret": runtime.context.credentials["pms"].get_secret_value(),
            "tag": "mine" in config["tags"],
        }

    context = AgentContext(credentials={"pms": SecretStr("s3cret")})
    run: dict[str, Any] = {"context": context, "config": {"tags": ["mine"]}}
    wave = asks(("c1", "look", {"text": "hi", "store": "forged", "runtime": "forged"}))
    graph = create_graph_agent(ScriptedChatModel([wave, "No more actions.", "Done."]), tools=[look])
    compiled = create_graph_agent(
        ScriptedChatModel([wave, "No more actions.", "Done."]), tools=[look], store=InMemoryStore()
    )

    result = await compiled.ainvoke(says("go"), **run)
    without_store = await graph.ainvoke(says("go"), **run)

    assert [m.text for r in (result, without_store) for m in r["messages"] if isinstance(m, ToolMessage)] == [
        '{"text": "hi", "call": ["c1", "c1"], "first": ["go", "go", "go"], "store": true, "secret": "s3cret", '
        '"tag": true}',
        "The tool 'look' needs a store, but this agent was built without one.",
    ]


async def test_a_tool_may_answer_with_a_command() -> None:
    @tool
    async def note(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Answer with a command."""
        return Command(update={"messages": [ToolMessage("noted", tool_call_id=call_id)]})

    @tool
    async def jump() -> Command[Any]:
        """Try to steer the graph."""
        return Command(goto="finalize")

    assert await results_of([note, jump], ("note", {}), ("jump", {})) == [
        ("success", "noted"),
        ("error", "The tool ran, but this agent does not allow the changes it requested: it has a `goto`."),
    ]


class _ToolRunRecorder(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.names: list[str] = []

    async def on_tool_start(self, serialized: dict[str, Any], *_: Any, **__: Any) -> None:
        self.names.append(serialized["name"])


async def test_callbacks_receive_every_tool_run() -> None:
    recorder = _ToolRunRecorder()

    shown = await results_of([add], ("add", {"a": 1, "b": 2}), run={"config": {"callbacks": [recorder]}})

    assert (shown, recorder.names) == ([("success", "3")], ["add"])


class _Arguments(BaseModel):
    count: int = 2
    word: str


async def _repeat(count: int, word: str) -> list[str]:
    return [word] * count


@pytest.mark.parametrize("observed", [False, True], ids=["direct", "through ainvoke"])
@pytest.mark.parametrize(
    "made",
    [
        StructuredTool.from_function(coroutine=_repeat, name="t", description="d", args_schema=_Arguments),
        StructuredTool.from_function(
            coroutine=_repeat, name="t", description="d", args_schema=_Arguments.model_json_schema()
        ),
        StructuredTool.from_function(
            func=lambda count, word: [word] * count, name="t", description="d", args_schema=_Arguments
        ),
    ],
    ids=["coroutine", "json schema", "blocking"],
)
async def test_the_fast_path_and_ainvoke_return_the_same(made: BaseTool, observed: bool) -> None:
    run = {"config": {"callbacks": [_ToolRunRecorder()]}} if observed else {}

    assert await results_of([made], ("t", {"word": "a", "count": 2}), run=run) == [("success", '["a", "a"]')]


async def test_a_tool_that_handles_its_own_errors_keeps_them() -> None:
    async def refuse() -> str:
        raise ToolException("No rooms in May.")

    made = StructuredTool.from_function(coroutine=refuse, name="t", description="d", handle_tool_error="Try June.")

    assert await results_of([made], ("t", {})) == [("error", "Try June.")]


async def test_a_large_wave_is_answered_whole() -> None:
    calls = [("echo", {"text": str(i)}) for i in range(300)]

    options: dict[str, Any] = {"config": LoopConfig(max_calls_per_wave=300), "checkpointer": InMemorySaver()}
    assert await results_of([echo], *calls, **options, run={"config": thread()}) == [
        ("success", str(i)) for i in range(300)
    ]
