"""Calls that do not run: their status, events and stream differ from those of a call that ran and failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from langchain.agents.middleware import after_model, wrap_tool_call
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, Field, field_validator

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import reject, respond
from graph_agent.session.results import CallState, Done
from tests.support.agents import asks, echo
from tests.support.gates import Gate, gated_tool
from tests.support.wave_helpers import plan, use

Work = Callable[[Session, Gate], Awaitable[list[Any]]]
"""Runs inputs of a session, and returns the parts of their streams; a tool `work` waits at the gate."""


@tool
async def broken() -> str:
    """Fail."""
    raise RuntimeError("out of paper")


class Line(BaseModel):
    """A line of at most two words."""

    words: list[str] = Field(max_length=2)

    @field_validator("words", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.split() if isinstance(value, str) else value


@tool(args_schema=Line)
async def split(words: list[str]) -> str:
    """Split a line, which its schema does."""
    return Line(words=[*words, "and", "more"]).words[0]


@tool
async def handled(text: str) -> str:
    """Report unfit arguments by itself."""
    return text


handled.handle_validation_error = True


@wrap_tool_call
async def passing_on(request: Any, handler: Any) -> Any:
    return await handler(request)


@wrap_tool_call
async def denying(request: Any, handler: Any) -> Any:
    return ToolMessage("No.", tool_call_id=request.tool_call["id"], status="error")


@wrap_tool_call
async def answering(request: Any, handler: Any) -> Any:
    return ToolMessage("Cached.", tool_call_id=request.tool_call["id"])


@wrap_tool_call
async def raising(request: Any, handler: Any) -> Any:
    raise PermissionError("closed")


@after_model
def removing(state: Any, runtime: Any) -> dict[str, Any] | None:
    last = state["messages"][-1]
    return {"messages": [last.model_copy(update={"tool_calls": []})]} if last.tool_calls else None


@after_model(can_jump_to=["end"])
def ending(state: Any, runtime: Any) -> dict[str, Any] | None:
    return {"jump_to": "end"} if state["messages"][-1].tool_calls else None


async def listed(parts: AsyncIterator[Any]) -> list[Any]:
    return [part async for part in parts]


async def run(talk: Session, gate: Gate) -> list[Any]:
    return await listed(talk.stream("go"))


def resumed(answer: Any) -> Work:
    async def work(talk: Session, gate: Gate) -> list[Any]:
        return [*await run(talk, gate), *await listed(talk.stream_resume(answer, decided_by="ana"))]

    return work


async def with_client_tool(talk: Session, gate: Gate) -> list[Any]:
    paint = {"name": "paint", "parameters": {"type": "object", "properties": {}}}
    context = {"client_tools": [{"type": "function", "function": paint}], "parallel_client_calls": False}
    waiting = await listed(talk.stream("go", context=context))
    return [*waiting, *await listed(talk.stream_resume({"content": "painted"}, context=context))]


async def aborted(talk: Session, gate: Gate) -> list[Any]:
    streaming = asyncio.create_task(run(talk, gate))
    await gate.reached()
    await talk.abort()
    return await streaming


async def superseded(talk: Session, gate: Gate) -> list[Any]:
    return [*await run(talk, gate), *await run(talk, gate)]


@dataclass(frozen=True)
class Way:
    """A way in which the call `c` ends."""

    status: str
    call_event: Literal["runs", "refused", "none"]
    """Whether the call has an event before its result, and whether that event refuses it."""
    replies: Sequence[str | AIMessage]
    work: Work = run
    config: dict[str, Any] = field(default_factory=dict)
    hooks: Sequence[Any] = ()
    decided_by: str | None = None
    recursion_limit: int = 100


def reply(**fields: Any) -> AIMessage:
    return AIMessage("", **fields)


ECHO = asks(("c", "echo", {"text": "a"}))
UNFIT = asks(("c", "echo", {"txt": "a"}))
TWO = asks(("b", "echo", {"text": "a"}), ("c", "echo", {"text": "b"}))
BROKEN_JSON = {"id": "c", "name": "echo", "args": "text: a", "error": None, "type": "invalid_tool_call"}
CUT_OFF = {"finish_reason": "length"}
CALL = {"id": "c", "name": "echo", "args": {"text": "a"}, "type": "tool_call"}
WAVE = {"tool_calling": "wave"}
FAILED_NEED = plan(use("b", "broken"), use("c", "echo", "b", text="${b}"))
EARLIER = [plan(use("b", "broken")), plan(use("c", "echo", "b", text="${b}"))]
CHAIN = plan(use("b", "echo", text="x"), use("c", "echo", "b", text="${b}"))
SAME = [asks((id_, "echo", {"text": "a"})) for id_ in ("b1", "b2", "b3", "b4", "c")]
ASK = {"approve": ["echo"]}

WAYS = {
    "ran and failed": Way("error", "runs", [asks(("c", "broken", {}))]),
    "ran and failed at its own schema": Way("error", "runs", [asks(("c", "split", {"words": "a b"}))]),
    "unknown name": Way("invalid", "refused", [asks(("c", "serch", {}))]),
    "unfit arguments": Way("invalid", "refused", [UNFIT]),
    "unfit arguments, middleware": Way("invalid", "runs", [UNFIT], hooks=[passing_on]),
    "unfit arguments, approval": Way("invalid", "refused", [UNFIT], config=ASK),
    "unfit arguments, own report": Way("invalid", "runs", [asks(("c", "handled", {"txt": "a"}))]),
    "no JSON": Way("invalid", "refused", [reply(invalid_tool_calls=[BROKEN_JSON])]),
    "unknown delegate": Way("invalid", "refused", [asks(("c", "delegate_to_x", {"task": "Look."}))]),
    "no task": Way("invalid", "refused", [asks(("c", "delegate_to_r", {}))]),
    "no depth": Way(
        "skipped", "runs", [asks(("c", "delegate_to_r", {"task": "Look."}))], config={"max_delegation_depth": 0}
    ),
    "rejected": Way("denied", "none", [ECHO], resumed(reject()), ASK, decided_by="ana"),
    "responded": Way("answered", "none", [ECHO], resumed(respond("By hand.")), ASK, decided_by="ana"),
    "superseded": Way("skipped", "none", [ECHO, "Hello."], superseded, ASK),
    "denied by middleware": Way("denied", "runs", [ECHO], hooks=[denying], decided_by="denying"),
    "answered by middleware": Way("answered", "runs", [ECHO], hooks=[answering], decided_by="answering"),
    "prevented by middleware": Way("denied", "runs", [ECHO], hooks=[raising], decided_by="raising"),
    "removed by a hook": Way("denied", "none", [ECHO], hooks=[removing], decided_by="removing"),
    "ended by a hook": Way("skipped", "none", [ECHO], hooks=[ending]),
    "failed need": Way("skipped", "none", [FAILED_NEED], config=WAVE),
    "failed need of an earlier wave": Way("skipped", "refused", EARLIER, config=WAVE),
    "wave limit": Way("skipped", "none", [TWO], config={"max_calls_per_wave": 1}),
    "recursion limit": Way("skipped", "none", [CHAIN], config=WAVE, recursion_limit=5),
    "second client call": Way("skipped", "refused", [asks(("b", "paint", {}), ("c", "paint", {}))], with_client_tool),
    "cut-off reply": Way("skipped", "refused", [reply(tool_calls=[CALL], response_metadata=CUT_OFF)]),
    "loop": Way("denied", "refused", SAME, config={"max_steps": 9}, decided_by="loop_detection"),
    "aborted": Way("skipped", "runs", [asks(("b", "work", {}), ("c", "work", {}))], aborted, {"max_parallel_calls": 1}),
}


@pytest.mark.parametrize("name", WAYS)
async def test_a_call_that_does_not_run_differs_from_one_that_failed(name: str) -> None:
    way, gate = WAYS[name], Gate()
    graph = create_graph_agent(
        ScriptedChatModel([*way.replies, *["No more actions.", "Done."] * 2]),
        tools=[echo, broken, split, handled, gated_tool(gate)],
        delegates=[GraphDelegate("r", "Researches.", create_graph_agent(ScriptedChatModel(["Found."])))],
        hooks=way.hooks,
        config=LoopConfig(on_limit="message", **way.config),
        checkpointer=InMemorySaver(),
    )

    parts = await way.work(Session(graph.with_config(recursion_limit=way.recursion_limit), "s1"), gate)

    events: list[Any] = await Session(graph, "s1").events()
    own = [event for event in events if event.get("id") == "c"]
    calls = [event.get("refused", "runs") for event in own if event["type"] in ("tool_call", "delegation_request")]
    results = [event for event in own if event["type"] in ("tool_result", "delegation_response")]
    ended = [call for part in parts if isinstance(part, Done) for call in part.result.calls if call.id == "c"]
    assert {
        "events": [*calls, *((event["status"], event.get("decided_by")) for event in results)],
        "stream": [*dict.fromkeys(part.status for part in parts if isinstance(part, CallState) and part.id == "c")],
        "calls": {(call.status, call.duration_s is None) for call in ended if call.status is not None},
    } == {
        "events": [
            *{"runs": ["runs"], "refused": [way.status], "none": []}[way.call_event],
            (way.status, way.decided_by),
        ],
        "stream": [*(["started"] if way.call_event == "runs" else []), way.status],
        # New input has calls of its own.
        "calls": set() if name == "superseded" else {(way.status, way.status != "error")},
    }


async def test_arguments_that_the_schema_converts_are_put_before_a_person() -> None:
    script = [asks(("c", "split", {"words": "a b"}))]
    graph = create_graph_agent(
        ScriptedChatModel(script), tools=[split], config=LoopConfig(approve="split"), checkpointer=InMemorySaver()
    )

    waiting = await Session(graph, "s1").run("go")

    assert [each.value["call_ids"] for each in waiting.interrupts] == [["c"]]
