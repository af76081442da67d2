"""JSON schemas of clients and MCP servers whose checks take long: bounded, and never on the event loop."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import edit
from graph_agent.base._internal.json_schema import SchemaCheck
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.errors import ConfigError
from graph_agent.models.wire.schemas import fold_schema
from graph_agent.server import AgentSource, create_app

MANY: list[Any] = [{"a": number} for number in range(20_000)]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[bool]:
    """Whether schemas were read and values checked on the thread of the event loop."""
    found: set[bool] = set()
    read, check = SchemaCheck.__init__, SchemaCheck.__call__

    def reading(self: SchemaCheck, *given: Any) -> None:
        found.add(threading.current_thread() is threading.main_thread())
        read(self, *given)

    def checking(self: SchemaCheck, value: Any) -> None:
        found.add(threading.current_thread() is threading.main_thread())
        check(self, value)

    monkeypatch.setattr(SchemaCheck, "__init__", reading)
    monkeypatch.setattr(SchemaCheck, "__call__", checking)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": MANY}, "is not one of"),
        ({"required": ["a", *map(str, range(20_000)), "a"]}, "has non-unique elements"),
        ({"required": MANY}, "is not of type 'string'"),
        ({"properties": {"a": {"dependentRequired": {"b": MANY}}}}, "is not of type 'string'"),
    ],
)
def test_a_long_list_in_a_schema_is_read_once(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SchemaCheck(schema)


def doubling(keyword: str, levels: int) -> dict[str, Any]:
    """A schema whose parts double at each level of references."""
    names = {
        f"l{level}": {"type": "object", keyword: [{"$ref": f"#/$defs/l{level + 1}"}] * 2} for level in range(levels)
    }
    return {"type": "object", "$ref": "#/$defs/l0", "$defs": {**names, f"l{levels}": {"type": "object"}}}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_parameters_whose_references_double_are_not_offered_beyond_a_size(keyword: str) -> None:
    few, many = fold_schema(doubling(keyword, 4)), fold_schema(doubling(keyword, 60))

    assert (few is not None, many) == (True, None)


def test_a_pattern_of_a_tool_is_not_compiled() -> None:
    pattern = "(?i)" + "[\\u0001-\\U0010fffe]" * 10_000  # each set takes 8 ms to compile
    given = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}

    folded = fold_schema(given)

    assert folded is not None
    assert folded.parameters == given


async def test_the_answer_of_a_request_is_checked_off_the_event_loop(threads: set[bool]) -> None:
    fields = {f"field_{number}": {"type": "string"} for number in range(800)}
    response_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"properties": fields}}}
    body = {"model": "agent", "messages": [{"role": "user", "content": "hi"}], "response_format": response_format}

    @asynccontextmanager
    async def opened() -> AsyncIterator[CompiledAgentGraph]:
        yield create_graph_agent(ScriptedChatModel(['{"field_1": "x"}']))

    app = create_app(AgentSource("agent", "", "memory:", opened))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            answer = await http.post("/v1/chat/completions", json=body)

    assert (json.loads(answer.json()["choices"][0]["message"]["content"]), threads) == ({"field_1": "x"}, {False})


async def test_an_edit_is_checked_off_the_event_loop(threads: set[bool]) -> None:
    async def book(**arguments: Any) -> str:
        return f"booked {arguments}"

    schema = {"type": "object", "properties": {"rooms": {"type": "array", "uniqueItems": True}}}
    tool = StructuredTool(name="book", description="Books.", args_schema=schema, coroutine=book)
    model = ScriptedChatModel(
        [AIMessage("", tool_calls=[{"id": "1", "name": "book", "args": {"rooms": [1]}}]), "Done."]
    )
    graph = create_graph_agent(model, tools=[tool], checkpointer=InMemorySaver(), config=LoopConfig(approve=["book"]))
    session = Session(graph, "s")
    await session.run("Book.")

    result = await session.resume(edit({"rooms": [1, 2]}))

    assert (result.results["1"], threads) == ("booked {'rooms': [1, 2]}", {False})
