"""A run that nothing observes answers in the superstep of its last plan, and differs in nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from pydantic import BaseModel

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from tests.support.agents import asks, echo, says, thread

FIELDS = ["messages", "events", "loop", "ready", "usage", "status", "stop_reason", "structured_response"]
_CHANGING = {"ts", "started", "queued_s", "waited_s", "duration_s", "worked_s", "id", "last_input_id"}


class City(BaseModel):
    """A response format."""

    name: str


class Unsteady(ScriptedChatModel):
    """A scripted model whose reply "fail" is a failure."""

    def __init__(self, script: list[str]) -> None:
        super().__init__(script)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        result = await super()._agenerate(*args, **kwargs)
        if result.generations[0].text == "fail":
            raise ConnectionError("The provider is away.")
        return result


@tool
def fails(text: str) -> str:
    """Fail."""
    raise ValueError(text)


@tool(return_direct=True)
def answers(text: str) -> str:
    """Return the answer."""
    return text


def _stable(value: Any) -> Any:
    """The value without ids and times."""
    if isinstance(value, BaseMessage):
        return type(value).__name__, _stable({**value.model_dump(), "response_metadata": dict(value.response_metadata)})
    if isinstance(value, list | tuple):
        return [_stable(each) for each in value]
    if isinstance(value, dict):
        return {key: _stable(each) for key, each in value.items() if key not in _CHANGING}
    return value


async def outcome(script: list[str], observed: bool, config: dict[str, Any], response_format: Any) -> Any:
    """The state after a run, its custom stream, and the requests of the model."""
    model, tools = Unsteady(script), [echo, fails, answers]
    settings = LoopConfig(model_retries=0, **config)
    graph = create_graph_agent(model, tools=tools, config=settings, response_format=response_format)
    modes: list[Any] = ["values", "custom", *(["updates"] if observed else [])]
    chunks = [chunk async for chunk in graph.astream(says("Go."), stream_mode=modes)]
    values = next(payload for mode, payload in reversed(chunks) if mode == "values")
    custom = [payload for mode, payload in chunks if mode == "custom"]
    requests = [[message.text for message in request.messages] for request in model.requests]
    return _stable({name: values.get(name) for name in FIELDS}), _stable(custom), requests


CALLED = ["echo", "fails", "answers", "unknown"]
REPLIES = st.sampled_from([*CALLED, "An answer.", "No more actions.", "", "fail", '{"name": "Rome"}'])
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "finalize": st.sampled_from(["auto", "direct", "compose"]),
        "max_steps": st.integers(1, 3),
        "on_limit": st.sampled_from(["answer", "message"]),
        "max_tokens_total": st.sampled_from([1, 400]),
        "tool_calling": st.sampled_from(["native", "text", "wave"]),
        "on_failure": st.just("answer"),
    },
)


@given(st.lists(REPLIES, min_size=1, max_size=4), CONFIGS, st.sampled_from([None, City]))
def test_a_run_that_nothing_observes_has_the_same_outcome(
    replies: list[str], config: dict[str, Any], response_format: Any
) -> None:
    script = [asks((f"c{at}", name, {"text": "x"})) if name in CALLED else name for at, name in enumerate(replies)]
    script += ["The end."] * 6

    async def both() -> tuple[Any, Any]:
        return (
            await outcome(script, False, config, response_format),
            await outcome(script, True, config, response_format),
        )

    unobserved, observed = asyncio.run(both())

    assert unobserved == observed


class Tracer(AsyncCallbackHandler):
    """A handler of callbacks, as a tracer is."""


async def supersteps(saver: Any = None, *, modes: list[Any] | None = None, **options: Any) -> int:
    """The number of supersteps of an input that the model answers at once."""
    graph = create_graph_agent(ScriptedChatModel(["Hello."]), tools=[echo], checkpointer=saver)
    config: Any = {**thread(), **options.pop("config", {})}
    chunks = graph.astream(says("hi"), config, stream_mode=["values", *(modes or [])], **options)
    # The first chunk is the input.
    return [mode async for mode, _ in chunks].count("values") - 1


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 1),
        ({"modes": ["custom"]}, 1),
        ({"modes": ["updates"]}, 2),
        ({"modes": ["tasks"]}, 2),
        ({"modes": ["messages"]}, 2),
        ({"modes": ["debug"]}, 2),
        ({"config": {"callbacks": [Tracer()]}}, 2),
        ({"saver": InMemorySaver()}, 2),
        ({"interrupt_before": ["tools"]}, 2),
    ],
    ids=["values", "custom", "updates", "tasks", "messages", "debug", "callbacks", "saver", "breakpoint"],
)
async def test_only_a_run_that_nothing_observes_answers_in_the_superstep_of_its_plan(
    options: dict[str, Any], count: int
) -> None:
    assert await supersteps(**options) == count


async def test_a_run_inside_another_graph_keeps_its_nodes() -> None:
    inner = create_graph_agent(ScriptedChatModel(["Hello."]), tools=[echo])
    outer: Any = StateGraph(MessagesState).add_node("agent", inner).set_entry_point("agent").compile()

    chunks = [chunk async for chunk in outer.astream(says("hi"), stream_mode="updates", subgraphs=True)]

    assert [list(update) for _, update in chunks] == [["plan"], ["finalize"], ["agent"]]
