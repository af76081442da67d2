"""Arguments that do not fit a tool's schema, of whatever kind: the call is `invalid`, and the tool does not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import wrap_tool_call
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime
from pydantic import BaseModel, field_validator
from pydantic import v1 as pydantic_v1

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve, edit
from graph_agent.errors import DecisionError
from graph_agent.mcp import open_mcp_tools
from graph_agent.session.results import CallState
from tests.support.agents import asks
from tests.support.mcp_servers.running import stdio
from tests.support.wave_helpers import plan, use

SCHEMA = {
    "type": "object",
    "properties": {"room": {"type": "integer", "minimum": 1}, "name": {"type": "string", "maxLength": 5}},
    "required": ["room"],
    "additionalProperties": False,
}
REFERRING = {
    "$defs": {"room": {"type": "integer", "minimum": 1}},
    "type": "object",
    "properties": {"room": {"$ref": "#/$defs/room"}, "name": {"type": "string", "maxLength": 5}},
    "required": ["room"],
    "additionalProperties": False,
}


class Booking(BaseModel):
    room: int
    name: str = ""


class BookingV1(pydantic_v1.BaseModel):
    room: int
    name: str = ""


class Book(BaseTool):
    name: str = "book"
    description: str = "Book a room."
    ran: Any

    def _run(self, room: int, name: str = "") -> str:
        self.ran.append(room)
        return f"Booked {room}."


class BookV1(Book):
    args_schema: Any = BookingV1


def tool_of(ran: list[Any], schema: Any, *, blocking: bool = False) -> BaseTool:
    def book(room: int, name: str = "") -> str:
        ran.append(room)
        return f"Booked {room}."

    async def book_later(room: int, name: str = "") -> str:
        return book(room, name)

    code: dict[str, Any] = {"func": book} if blocking else {"coroutine": book_later}
    return StructuredTool.from_function(**code, name="book", description="Book.", args_schema=schema)


def with_runtime(ran: list[Any]) -> BaseTool:
    async def book(room: int, runtime: ToolRuntime, name: str = "") -> str:
        ran.append(room)
        return f"Booked {room} by {runtime.tool_call_id}."

    return StructuredTool.from_function(coroutine=book, name="book", description="Book.", args_schema=SCHEMA)


KINDS: dict[str, Callable[[list[Any]], BaseTool]] = {
    "pydantic": lambda ran: tool_of(ran, Booking),
    "pydantic 1": lambda ran: tool_of(ran, BookingV1),
    "json schema": lambda ran: tool_of(ran, SCHEMA),
    "json schema, blocking": lambda ran: tool_of(ran, SCHEMA, blocking=True),
    "json schema, references": lambda ran: tool_of(ran, REFERRING),
    "json schema, runtime": with_runtime,
    "class without schema": lambda ran: Book(ran=ran),
    "class with pydantic 1": lambda ran: BookV1(ran=ran),
}


@wrap_tool_call
async def passing_on(request: Any, handler: Any) -> Any:
    return await handler(request)


@wrap_tool_call
async def spoiling(request: Any, handler: Any) -> Any:
    """Replace a fitting argument by another."""
    return await handler(request.override(tool_call={**request.tool_call, "args": {"room": "four"}}))


def agent_of(tool: BaseTool, *replies: str, hooks: Any = (), **config: Any) -> Any:
    model = ScriptedChatModel([*replies, "Done."])
    return create_graph_agent(
        model, [tool], middleware=hooks, config=LoopConfig(**config), checkpointer=InMemorySaver()
    )


UNFIT: list[dict[str, Any]] = [{"room": "four"}, {}, {"room": [4]}, {"room": None}]
WAYS: dict[str, dict[str, Any]] = {
    "native": {},
    "text": {"tool_calling": "text"},
    "middleware": {"hooks": [passing_on]},
    "approval": {"approve": "book"},
    "approval and middleware": {"approve": "book", "hooks": [passing_on]},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_of_any_kind_does_not_run_with_unfit_arguments(kind: str, way: str) -> None:
    ran: list[Any] = []
    calls = asks(*((f"c{at}", "book", arguments) for at, arguments in enumerate(UNFIT)))
    agent = agent_of(KINDS[kind](ran), calls, **WAYS[way])

    result = await Session(agent, "s1").run("go")

    texts = {call.result["error"].partition(":")[0] for call in result.calls}
    assert (ran, [(call.status, call.duration_s) for call in result.calls], result.interrupts, texts) == (
        [],
        [("invalid", None)] * len(UNFIT),
        [],
        {"The arguments do not fit the tool 'book'"},
    )


@pytest.mark.parametrize("way", ["native", "approval"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_of_any_kind_runs_with_fitting_arguments(kind: str, way: str) -> None:
    ran: list[Any] = []
    session = Session(agent_of(KINDS[kind](ran), asks(("c", "book", {"room": 4, "name": "Ann"})), **WAYS[way]), "s1")

    result = await session.run("go")
    if result.interrupts:
        result = await session.resume(approve())

    assert (ran, [call.status for call in result.calls]) == ([4], ["success"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_of_any_kind_does_not_run_with_unfit_arguments_in_a_blocking_run(kind: str) -> None:
    ran: list[Any] = []
    agent = agent_of(KINDS[kind](ran), asks(("c", "book", {"room": "four"})))

    result = Session(agent, "s1").run_sync("go")

    assert (ran, [call.status for call in result.calls]) == ([], ["invalid"])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_result_that_does_not_fit_is_no_argument_of_a_later_call(kind: str) -> None:
    ran: list[Any] = []
    wave = plan(use("a", "book", room=4), use("b", "book", "a", room="${a}"))
    agent = agent_of(KINDS[kind](ran), wave, tool_calling="wave")

    result = await Session(agent, "s1").run("go")

    assert (ran, [call.status for call in result.calls]) == ([4], ["success", "invalid"])


@pytest.mark.parametrize("kind", KINDS)
async def test_middleware_cannot_run_a_tool_with_unfit_arguments(kind: str) -> None:
    ran: list[Any] = []
    agent = agent_of(KINDS[kind](ran), asks(("c", "book", {"room": 4})), hooks=[spoiling])

    result = await Session(agent, "s1").run("go")

    assert (ran, [call.status for call in result.calls]) == ([], ["invalid"])


@pytest.mark.parametrize("kind", ["pydantic", "json schema", "class without schema"])
async def test_an_unfit_call_has_no_start_in_the_stream(kind: str) -> None:
    agent = agent_of(KINDS[kind]([]), asks(("c", "book", {"room": "four"})))

    parts = [part async for part in Session(agent, "s1").stream("go")]

    assert [part.status for part in parts if isinstance(part, CallState)] == ["invalid"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_person_cannot_edit_a_call_to_arguments_that_do_not_fit(kind: str) -> None:
    session = Session(agent_of(KINDS[kind]([]), asks(("c", "book", {"room": 4})), approve="book"), "s1")
    await session.run("go")

    with pytest.raises(DecisionError, match="room"):
        await session.resume(edit({"room": "four"}))


async def test_an_edit_that_makes_a_validator_fail_is_an_error_of_the_call() -> None:
    class Fragile(BaseModel):
        room: int

        @field_validator("room")
        @classmethod
        def known(cls, room: int) -> int:
            return {4: 4}[room]

    session = Session(agent_of(tool_of([], Fragile), asks(("c", "book", {"room": 4})), approve="book"), "s1")
    await session.run("go")

    result = await session.resume(edit({"room": 5}))

    assert [call.status for call in result.calls] == ["error"]


async def test_a_schema_that_cannot_be_evaluated_stops_no_call() -> None:
    ran: list[Any] = []
    agent = agent_of(tool_of(ran, {**SCHEMA, "pattern": "("}), asks(("c", "book", {"room": 4})))

    result = await Session(agent, "s1").run("go")

    assert (ran, [call.status for call in result.calls]) == ([4], ["success"])


async def test_a_tool_of_an_mcp_server_is_not_called_with_unfit_arguments(tmp_path: Path) -> None:
    calls: Any = (("a", "counts", {"to": "many"}), ("b", "counts", {}), ("c", "dotted.echo", {"text": 5}))
    async with open_mcp_tools({"demo": stdio(tmp_path)}) as tools:
        model = ScriptedChatModel([asks(*calls, ("d", "counts", {"to": 1})), "Done."])
        agent = create_graph_agent(model, tools, checkpointer=InMemorySaver())
        result = await Session(agent, "s1").run("go")

    assert [call.status for call in result.calls] == ["invalid", "invalid", "invalid", "success"]
