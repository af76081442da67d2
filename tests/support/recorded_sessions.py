"""Sessions of every kind, recorded in memory, each in an agent of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from langchain.agents.middleware import AgentMiddleware, wrap_tool_call
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from pydantic import BaseModel

from graph_agent import (
    GraphDelegate,
    LoopConfig,
    LoopHook,
    LoopPlan,
    RequestPatch,
    ScriptedChatModel,
    Session,
    create_graph_agent,
)
from graph_agent.approvals import approve, edit, reject, respond
from graph_agent.delegation import Delegation, DelegationResult
from graph_agent.errors import McpServerError
from tests.support.gates import Gate, GatedModel

SESSIONS: dict[str, Callable[[], Awaitable[Session]]] = {}
"""Name → records the session."""
ODD = (
    'Zürich "quotes" \'single\' \\ back\\slash {braces} ${ref} \t tab\nline two\r\n# no comment\n""" 漢字 🎉 \x07 end\\'
)


def recorded(record: Callable[[], Awaitable[Session]]) -> Callable[[], Awaitable[Session]]:
    SESSIONS[record.__name__] = record
    return record


def calls(*made: tuple[str, str, dict[str, Any]], content: str = "") -> str:
    listed = [{"id": id_, "name": name, "arguments": arguments} for id_, name, arguments in made]
    return json.dumps({"content": content, "tool_calls": listed})


def search(q: str) -> dict[str, Any]:
    """Search."""
    return {"hits": [q, 1], "next": None}


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def broken(q: str) -> str:
    """Fail."""
    raise ValueError(f"no {q}")


def agent(
    replies: Sequence[Any] | ScriptedChatModel,
    tools: Sequence[Any] = (search, pay, broken),
    *,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> Session:
    model = replies if isinstance(replies, ScriptedChatModel) else ScriptedChatModel(replies)
    settings = LoopConfig(record_requests=True, **(config or {}))
    return Session(create_graph_agent(model, tools=tools, config=settings, checkpointer=InMemorySaver(), **more), "s1")


@recorded
async def waves() -> Session:
    session = agent(
        [
            calls(("c1", "search", {"q": "a"}), ("c2", "search", {"q": "b"}), content="I look."),
            calls(("c3", "pay", {"amount": 2})),
            "No more actions.",
            "Paid.",
        ]
    )
    await session.run("Look, and pay.")
    return session


@recorded
async def greeting() -> Session:
    session = agent(["Hello!"])
    await session.run("Hi")
    return session


@recorded
async def no_tools() -> Session:
    session = agent(["Hello!"], tools=())
    await session.run("Hi")
    return session


@recorded
async def structured_plans_with_needs() -> Session:
    plan = {
        "status": "continue",
        "action": "look",
        "reasoning": "first",
        "slots": {"city": "Bonn"},
        "tools": [
            {"id": "a", "tool": "search", "args": {"q": "x"}, "needs": []},
            {"id": "b", "tool": "search", "args": {"q": "${a.hits[0]}"}, "needs": ["a"]},
        ],
    }
    done = {"status": "done", "action": "", "tools": []}
    session = agent([json.dumps(plan), json.dumps(done), "Found."], config={"tool_calling": "wave"})
    await session.run("Look.")
    return session


@recorded
async def last_structured_plan() -> Session:
    plan = {
        "status": "done",
        "action": "pay",
        "tools": [{"id": "a", "tool": "pay", "args": {"amount": 1}, "needs": []}],
    }
    session = agent([json.dumps(plan), "Paid."], config={"tool_calling": "wave"})
    await session.run("Pay.")
    return session


@recorded
async def delegates() -> Session:
    helper = create_graph_agent(ScriptedChatModel([calls(("h1", "search", {"q": "z"})), "Helped."]), tools=[search])
    session = agent(
        [calls(("d1", "delegate_to_helper", {"task": "Help me."})), "Done."],
        tools=(),
        delegates=[GraphDelegate("helper", "Helps.", helper)],
    )
    await session.run("Get help.")
    return session


class _Down:
    name, description = "down", "Is down."

    async def run(self, delegation: Delegation) -> DelegationResult:
        raise ConnectionError("no route")


@recorded
async def failed_delegate() -> Session:
    session = agent([calls(("d1", "delegate_to_down", {"task": "Help."})), "No help."], delegates=[_Down()])
    await session.run("Get help.")
    return session


class _Lost:
    name, description = "lost", "Loses tasks."

    async def run(self, delegation: Delegation) -> DelegationResult:
        return DelegationResult("It is not known how the task ended.", "unknown")


def pay_abroad(amount: int) -> str:
    """Pay, by a server that is lost meanwhile."""
    error = McpServerError("The server is lost.")
    error.may_have_run = True
    raise error


@recorded
async def unknown_outcomes() -> Session:
    wave = calls(("c1", "pay_abroad", {"amount": 1}), ("d1", "delegate_to_lost", {"task": "Help."}))
    session = agent([wave, "Not known."], tools=[pay_abroad], delegates=[_Lost()])
    await session.run("Pay, and get help.")
    return session


@recorded
async def approvals() -> Session:
    made = [(f"c{at}", "pay", {"amount": at}) for at in range(1, 5)]
    session = agent([calls(*made), "Done."], config={"approve": ["pay"]})
    await session.run("Pay 1 to 4.")
    await session.resume(
        {
            "decisions": {
                "c1": approve(),
                "c2": edit({"amount": 20}),
                "c3": reject("too much"),
                "c4": respond("paid in cash"),
            }
        },
        decided_by="Ann",
    )
    return session


@recorded
async def approval_of_another_tool() -> Session:
    session = agent([calls(("c1", "pay", {"amount": 3})), "Done."], config={"approve": ["pay"]})
    await session.run("Pay.")
    await session.resume(edit({"q": "cheaper"}, name="search"))
    return session


@recorded
async def approvals_one_by_one() -> Session:
    session = agent(
        [calls(("c1", "pay", {"amount": 1}), ("c2", "pay", {"amount": 2})), "Done."], config={"approve": ["pay"]}
    )
    await session.run("Pay.")
    await session.resume({"decisions": {"c1": approve()}})
    await session.resume({"decisions": {"c2": reject()}})
    return session


@recorded
async def approval_policy() -> Session:
    def dear(call: Any) -> bool:
        return bool(call["arguments"].get("amount", 0) > 10)

    session = agent(
        [calls(("c1", "pay", {"amount": 1}), ("c2", "pay", {"amount": 100})), "Done."], config={"approve": [dear]}
    )
    await session.run("Pay.")
    await session.resume(approve())
    return session


@recorded
async def waiting_for_approval() -> Session:
    session = agent([calls(("c1", "pay", {"amount": 1}), ("c2", "search", {"q": "a"}))], config={"approve": ["pay"]})
    await session.run("Pay.")
    return session


@recorded
async def abort_of_an_approval() -> Session:
    session = await waiting_for_approval()
    await session.abort()
    return session


@recorded
async def steering() -> Session:
    gate = Gate()
    model = GatedModel([calls(("c1", "search", {"q": "a"})), "No more actions.", "Berlin."])
    model.before = {1: gate}
    session = agent(model)
    run = asyncio.create_task(session.run("Where?"))
    await gate.reached()
    await session.steer("Only Berlin.")
    gate.open()
    await run
    return session


@recorded
async def steering_of_an_answer() -> Session:
    gate = Gate()
    model = GatedModel(["Bonn.", "Berlin."])
    model.before = {1: gate}
    session = agent(model)
    run = asyncio.create_task(session.run("Where?"))
    await gate.reached()
    await session.steer("Only Berlin.")
    gate.open()
    await run
    return session


@recorded
async def steering_before_an_input() -> Session:
    session = agent(["Berlin."])
    await session.steer("Only Berlin.")
    await session.run("Where?")
    return session


@recorded
async def abort_of_a_reply() -> Session:
    gate = Gate()
    model = GatedModel([calls(("c1", "search", {"q": "a"})), "Late."])
    model.before = {2: gate}
    session = agent(model)
    run = asyncio.create_task(session.run("Where?"))
    await gate.reached()
    await session.abort()
    await run
    return session


def _held(gate: Gate, **marks: Any) -> BaseTool:
    async def wait(minutes: int) -> str:
        """Wait."""
        await gate.passing()
        return "waited"

    return tool(wait).model_copy(update={"metadata": marks})


@recorded
async def abort_of_a_call() -> Session:
    gate = Gate()
    session = agent([calls(("c1", "search", {"q": "a"}), ("c2", "wait", {"minutes": 5}))], tools=[search, _held(gate)])
    run = asyncio.create_task(session.run("Wait."))
    await gate.reached()
    while not any(entry["type"] == "tool_call" for entry in await session.events()):
        await asyncio.sleep(0.01)
    await session.abort()
    await run
    return session


@recorded
async def abort_of_a_call_of_the_second_input() -> Session:
    gate = Gate()
    first, second = (
        calls(("c1", "search", {"q": "a"})),
        calls(("c2", "search", {"q": "b"}), ("c3", "wait", {"minutes": 5})),
    )
    session = agent([first, "Found.", second], tools=[search, _held(gate)])
    await session.run("Look.")
    run = asyncio.create_task(session.run("Look, and wait."))
    await gate.reached()
    while not any(entry.get("id") == "c2" and entry["type"] == "tool_result" for entry in await session.events()):
        await asyncio.sleep(0.01)
    await session.abort()
    await run
    return session


@recorded
async def failed_requests() -> Session:
    class Unreachable(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            raise ConnectionError("no route")

    session = agent(Unreachable(responses=[]), config={"model_retries": 1})
    await session.run("Look.")
    return session


@recorded
async def step_limit() -> Session:
    session = agent([calls(("c1", "search", {"q": "a"})), "Half."], config={"max_steps": 1})
    await session.run("Look.")
    return session


@recorded
async def step_limit_without_an_answer() -> Session:
    session = agent([calls(("c1", "search", {"q": "a"}))], config={"max_steps": 1, "on_limit": "message"})
    await session.run("Look.")
    return session


@recorded
async def turn_limit() -> Session:
    session = agent(["Hello.", calls(("c1", "search", {"q": "a"})), "Half."], config={"max_turns": 2})
    await session.run("Hi")
    await session.run("Look.")
    return session


@recorded
async def token_limit() -> Session:
    used = {"input_tokens": 700, "output_tokens": 50, "total_tokens": 750}
    reply = AIMessage("", tool_calls=[{"id": "c1", "name": "search", "args": {"q": "a"}}], usage_metadata=used)
    session = agent([reply, "Half."], config={"max_tokens_total": 1000})
    await session.run("Look.")
    return session


@recorded
async def cost_limit() -> Session:
    used = {"input_tokens": 700_000, "output_tokens": 0, "total_tokens": 700_000}
    reply = AIMessage("", tool_calls=[{"id": "c1", "name": "search", "args": {"q": "a"}}], usage_metadata=used)
    prices = {"scripted": {"input": 1.0, "output": 1.0}}
    session = agent([reply, "Half."], config={"max_cost": 0.8, "prices": prices})
    await session.run("Look.")
    return session


@recorded
async def recursion_limit() -> Session:
    session = agent(
        [calls((f"c{at}", "search", {"q": str(at)})) for at in range(9)] + ["Half."], config={"max_steps": 50}
    )
    graph = session.graph.with_config({"recursion_limit": 8})
    session = Session(graph, "s1")
    await session.run("Look.")
    return session


@contextmanager
def _clock() -> Iterator[Callable[[], None]]:
    """Yield a function that puts the monotonic clock forward by 28 s, past the time for work of 30 s."""
    ahead_s, read = 0.0, time.monotonic

    def forward() -> None:
        nonlocal ahead_s
        ahead_s += 28.0

    with patch.object(time, "monotonic", lambda: read() + ahead_s):
        yield forward


@recorded
async def deadline_in_a_call() -> Session:
    with _clock() as forward:

        async def wait(minutes: int) -> str:
            """Wait."""
            await asyncio.sleep(0.1)  # the other call ends
            forward()
            await asyncio.Event().wait()
            return "waited"

        waiting = tool(wait).model_copy(update={"metadata": {"effect": "read"}})
        made = calls(("c1", "search", {"q": "a"}), ("c2", "wait", {"minutes": 5}))
        session = agent([made, "Half."], tools=[search, waiting], config={"deadline_s": 30})
        await session.run("Wait.")
    return session


@recorded
async def deadline_in_a_reply() -> Session:
    class Late(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            if self.requests:
                forward()
                await asyncio.Event().wait()
            return await super()._agenerate(*args, **kwargs)

    with _clock() as forward:
        session = agent(Late(responses=[calls(("c1", "search", {"q": "a"}))]), config={"deadline_s": 30})
        await session.run("Look.")
    return session


@recorded
async def loop() -> Session:
    session = agent([*(calls((f"c{at}", "search", {"q": "a"})) for at in range(5)), "Same."], config={"max_steps": 9})
    await session.run("Look.")
    return session


@recorded
async def text_mode() -> Session:
    reply = 'I look.\n<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'
    session = agent([reply, "Found."], config={"tool_calling": "text"})
    await session.run("Look.")
    return session


class _AskAgain(LoopHook):
    def should_run(self, response: Any, request: Any) -> tuple[bool, Any]:
        return request.depth == 0 and bool(response.calls), None

    def build_plan(self, context: Any, response: Any, request: Any) -> LoopPlan:
        messages = [*request.messages, HumanMessage("Again.")]
        return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=messages))


@recorded
async def hook_that_asks_again() -> Session:
    session = agent(
        [calls(("c1", "search", {"q": "a"})), calls(("c2", "search", {"q": "b"})), "Found."], hooks=[_AskAgain()]
    )
    await session.run("Look.")
    return session


class _Notes(AgentMiddleware[Any, Any]):
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return {"messages": [HumanMessage("Be brief.", id="note")]} if len(state["messages"]) == 1 else None


@recorded
async def middleware() -> Session:
    @wrap_tool_call
    async def answer(request: Any, handler: Any) -> ToolMessage:
        if request.tool_call["args"].get("q") == "cached":
            return ToolMessage("from a cache", tool_call_id=request.tool_call["id"])
        returned: ToolMessage = await handler(request)
        return returned

    session = agent(
        [calls(("c1", "search", {"q": "cached"}), ("c2", "search", {"q": "b"})), "Found."],
        middleware=[_Notes(), answer],
    )
    await session.run("Look.")
    return session


class City(BaseModel):
    """A city."""

    name: str


@recorded
async def structured_response() -> Session:
    session = agent([calls(("c1", "search", {"q": "a"})), '{"name": "Bonn"}'], response_format=City)
    await session.run("Which city?")
    return session


@recorded
async def composed_structured_response() -> Session:
    session = agent([calls(("c1", "search", {"q": "a"})), "It is Bonn.", '{"name": "Bonn"}'], response_format=City)
    await session.run("Which city?")
    return session


@recorded
async def follow_ups() -> Session:
    session = agent(["One.", calls(("c1", "pay", {"amount": 1})), "Two.", "Three."])
    await session.run("First.")
    await session.follow_up("Third.")
    await session.run("Second: pay.")
    return session


@recorded
async def unusable_calls() -> Session:
    session = agent(
        [
            calls(("c1", "nope", {"q": "a"}), ("c2", "pay", {"amount": "much"}), ("c3", "pay", {"amount": 7})),
            json.dumps({"tool_calls": [{"id": "c4", "name": "search", "arguments": "{bad"}]}),
            "Sorry.",
        ]
    )
    await session.run("Try.")
    return session


@recorded
async def tool_errors() -> Session:
    session = agent([calls(("c1", "broken", {"q": "a"}), ("c2", "search", {"q": "b"})), "Half."])
    await session.run("Try.")
    return session


@recorded
async def timeout() -> Session:
    slow = _held(Gate(), timeout_s=0.05)
    session = agent([calls(("c1", "wait", {"minutes": 5})), "Too slow."], tools=[slow])
    await session.run("Wait.")
    return session


@recorded
async def images() -> Session:
    block = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    session = agent(["A dot."])
    await session.run([HumanMessage([{"type": "text", "text": "What is it?"}, block])])
    return session


@recorded
async def image_results() -> Session:
    def photo(q: str) -> list[Any]:
        """Take a photo."""
        return [
            {"type": "text", "text": "A dot"},
            {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
        ]

    session = agent([calls(("c1", "photo", {"q": "x"})), "A dot."], tools=[photo])
    await session.run("Show.")
    return session


@recorded
async def odd_texts() -> Session:
    def echo(text: str) -> dict[str, str]:
        """Echo."""
        return {text: text * 5, "list": [text]}  # type: ignore[dict-item]  # any JSON

    def raw(text: str) -> str:
        """Echo."""
        return text * 9

    made = (("c'1\"", "echo", {"text": ODD, ODD: 1}), ("c2", "raw", {"text": ODD}))
    session = agent([calls(*made, content=ODD), ODD * 4], tools=[echo, raw])
    await session.run(ODD)
    return session


@recorded
async def no_value_and_false() -> Session:
    def give(what: str) -> Any:
        """Give."""
        return {"none": None, "false": False, "empty": "", "float": 1.5, "list": []}[what]

    made = [(f"c{at}", "give", {"what": what}) for at, what in enumerate(["none", "false", "empty", "float", "list"])]
    session = agent([calls(*made), "Done."], tools=[give])
    await session.run("Give all.")
    return session


@recorded
async def direct_result() -> Session:
    direct = StructuredTool.from_function(search, return_direct=True)
    session = agent([calls(("c1", "search", {"q": "a"}))], tools=[direct])
    await session.run("Look.")
    return session


@recorded
async def mcp_result() -> Session:
    async def lookup(q: str) -> Any:
        """Look up."""
        value = {"q": q, "n": [1, 2]}
        return [{"type": "text", "text": json.dumps(value, indent=2)}], {"structured_content": value}

    tool_ = StructuredTool.from_function(
        coroutine=lookup, response_format="content_and_artifact", metadata={"effect": "read"}
    )
    session = agent([calls(("c1", "lookup", {"q": "a"})), "Found."], tools=[tool_])
    await session.run("Look up.")
    return session


@recorded
async def cut_off_answer() -> Session:
    session = agent([AIMessage("This is the beg", response_metadata={"finish_reason": "length"})])
    await session.run("Tell.")
    return session


class _RefusedError(Exception):
    status_code = 401


class _RefusingModel(ScriptedChatModel):
    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.requests) == 1:
            raise _RefusedError("wrong key")
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        if len(self.requests) == 1:
            raise _RefusedError("wrong key")
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk


@recorded
async def failed_request() -> Session:
    session = agent(_RefusingModel(responses=[calls(("c1", "search", {"q": "a"}))]))
    await session.run("Look.")
    return session


@recorded
async def repeated_ids() -> Session:
    session = agent([calls(("c1", "search", {"q": "a"})), calls(("c1", "search", {"q": "b"})), "Found."])
    await session.run("Look.")
    return session


def ask_person(q: str) -> str:
    """Ask a person."""
    return str(interrupt(q))


@recorded
async def waiting_call_of_a_wave() -> Session:
    wave = calls(("c1", "ask_person", {"q": "Which one?"}), ("c2", "search", {"q": "a"}))
    session = agent([wave], tools=[ask_person, search])
    await session.run("Look, and ask.")
    return session


@recorded
async def input_that_superseded_a_waiting_call() -> Session:
    wave = calls(("c1", "ask_person", {"q": "Which one?"}), ("c2", "search", {"q": "a"}))
    session = agent([wave, "Never mind."], tools=[ask_person, search])
    await session.run("Look, and ask.")
    await session.run("Leave it.")
    return session


@recorded
async def input_that_superseded_an_approval() -> Session:
    wave = calls(("c1", "pay", {"amount": 2}), ("c2", "search", {"q": "a"}))
    session = agent([wave, "Never mind."], config={"approve": ["pay"]})
    await session.run("Look, and pay.")
    await session.run("Leave it.")
    return session


@recorded
async def several_messages() -> Session:
    session = agent(["Both."])
    await session.run([HumanMessage("One."), HumanMessage("Two.")])
    return session


@recorded
async def follow_up_after_a_failure() -> Session:
    session = agent([calls(("c1", "broken", {"q": "a"})), "Failed.", calls(("c1", "search", {"q": "a"})), "Found."])
    await session.run("Try.")
    await session.run("Try again.")
    return session
