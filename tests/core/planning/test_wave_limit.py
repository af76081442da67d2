"""The limit of calls in one wave, in every mode, and the cost of a wave."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.server import AgentSource, create_app
from tests.support.agents import echo, marked
from tests.support.wave_helpers import plan, use

READ_ECHO = marked(echo, effect="read")


class Idle(AgentMiddleware):
    def after_model(self, state: Any, runtime: Any) -> None:
        return None


def native(count: int) -> AIMessage:
    calls: list[Any] = [{"id": f"c{number}", "name": "echo", "args": {"text": "x"}} for number in range(count)]
    return AIMessage("", tool_calls=calls)


def text(count: int) -> str:
    return "\n".join('<tool_call>{"name": "echo", "arguments": {"text": "x"}}</tool_call>' for _ in range(count))


def session(reply: AIMessage | str, *, hooks: tuple[Any, ...] = (), **config: Any) -> Session:
    model = ScriptedChatModel([reply, "No more actions.", "Done."])
    graph = create_graph_agent(
        model, tools=[READ_ECHO], hooks=hooks, config=LoopConfig(**config), checkpointer=InMemorySaver()
    )
    return Session(graph, "s1")


@pytest.mark.parametrize(
    ("reply", "mode", "hooks"),
    [
        pytest.param(native(5), "native", (), id="native"),
        pytest.param(text(5), "text", (), id="text"),
        pytest.param(native(5), "native", (Idle(),), id="with hooks"),
    ],
)
async def test_calls_of_a_reply_beyond_the_limit_are_skipped_with_the_reason(
    reply: AIMessage | str, mode: str, hooks: tuple[Any, ...]
) -> None:
    result = await session(reply, hooks=hooks, tool_calling=mode, max_calls_per_wave=2).run("go")

    refused = {"error": "Not run: of the 5 calls of one reply, only the first 2 run. Call it again if it is needed."}
    assert (list(result.results.values()), result.answer) == (["x", "x", refused, refused, refused], "Done.")


async def test_ten_thousand_calls_of_one_reply_start_no_more_than_the_limit() -> None:
    talk = session(native(10_000))

    result = await talk.run("go")

    started = [event for event in await talk.events() if event["type"] == "tool_call"]
    assert (len(started), len(result.results), result.answer) == (256, 10_000, "Done.")


WIDE: dict[str, AIMessage | str] = {
    "native": native(200),
    "text": text(200),
    "wave": plan(*(use(f"c{number}", "echo", text="x") for number in range(200))),
}


def counting() -> tuple[Any, list[int]]:
    """A tool, and the numbers of its calls in flight at the start of each."""
    running, seen = 0, list[int]()

    @tool
    async def count(text: str) -> str:
        """Repeat the text."""
        nonlocal running
        running += 1
        seen.append(running)
        await asyncio.sleep(0)
        running -= 1
        return text

    count.name = "echo"
    return count, seen


@pytest.mark.parametrize("mode", WIDE)
async def test_two_hundred_calls_of_one_reply_all_run_sixteen_at_a_time(mode: Any) -> None:
    counted, seen = counting()
    graph = create_graph_agent(
        ScriptedChatModel([WIDE[mode], "Done."]),
        tools=[counted],
        config=LoopConfig(tool_calling=mode),
        checkpointer=InMemorySaver(),
    )

    result = await Session(graph, "s1").run("go")

    statuses = [call.status for call in result.calls]
    assert (statuses, len(seen), max(seen) <= 16) == (["success"] * 200, 200, True)


async def test_two_hundred_calls_of_one_reply_all_run_over_http() -> None:
    counted, seen = counting()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield create_graph_agent(ScriptedChatModel([WIDE["native"], "Done."]), tools=[counted])

    app = create_app(AgentSource("agent", "", "memory:", opened))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    body = {"model": "agent", "messages": [{"role": "user", "content": "go"}]}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http,
    ):
        answered = await http.post("/v1/chat/completions", json=body, headers={"x-session-id": "s1"})
        events = await http.get("/memory/sessions/s1/events", params={"type": "tool_result", "limit": 1000})

    statuses = [event["status"] for event in events.json()["events"]]
    assert (answered.json()["choices"][0]["message"]["content"], len(seen), statuses) == (
        "Done.",
        200,
        ["success"] * 200,
    )


@pytest.mark.parametrize("limit", [1_000, 10])
async def test_the_cost_of_a_wave_is_linear_in_its_calls(limit: int) -> None:
    async def own_function_calls(count: int) -> int:
        seen = 0

        def observe(frame: Any, event: str, argument: Any) -> None:
            nonlocal seen
            path = frame.f_code.co_filename
            seen += event == "call" and ("/graph_agent/" in path or "/nodes/" in path)

        talk = session(native(count), max_calls_per_wave=limit)
        sys.setprofile(observe)
        try:
            await talk.run("go")
        finally:
            sys.setprofile(None)
        return seen

    # The first run also pays for imports and caches.
    await own_function_calls(10)
    few, many = await own_function_calls(100), await own_function_calls(400)

    assert many < 4.5 * few
