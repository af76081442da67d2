"""A model that goes round in a circle is warned, then loses the tool, then has to answer."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.intake import NOT_SHOWN
from graph_agent.types import SessionStatus
from tests.agents import add, asks, echo, marked

ROUND = LoopConfig(max_steps=20)


def session(script: list[str], tools: list[BaseTool], config: LoopConfig = ROUND) -> tuple[Session, ScriptedChatModel]:
    model = ScriptedChatModel(script)
    return Session(create_graph_agent(model, tools=tools, config=config, checkpointer=InMemorySaver()), "s1"), model


def same(count: int) -> list[str]:
    """Waves of the same call; neither key order, nor `1` beside `1.0`, nor white space tells them apart."""
    spelt: list[dict[str, Any]] = [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}, {"a": 1, "b": 2.0}]
    return [asks((f"c{n}", "add", spelt[n % 3])) for n in range(count)]


def offered(request: Any) -> list[str]:
    return [schema["function"]["name"] for schema in request.tools]


async def detected(talk: Session) -> list[tuple[list[str], int]]:
    return [(e["pattern"], e["count"]) for e in await talk.events() if e["type"] == "loop_detected"]


async def test_a_circle_is_warned_of_then_loses_its_tool_then_ends_the_input() -> None:
    talk, model = session([*same(5), "What I know."], [add, echo])

    result = await talk.run("go")

    told = [
        m.text for m in (await talk._graph.aget_state(talk._config)).values["messages"] if m.id.startswith(NOT_SHOWN)
    ]
    assert {
        "result": (result.answer, result.status, result.stop_reason),
        "calls": [("error" if isinstance(value, dict) else value) for value in result.results.values()],
        "detected": await detected(talk),
        "offered": [offered(request) for request in model.requests],
        "told": [text.splitlines()[-1] for text in told],
    } == {
        "result": (
            "Stopped: the same calls were made again and again\n\nWhat I know.",
            SessionStatus.ROUND_LIMIT,
            "loop",
        ),
        "calls": [3, 3, 3, 3, "error"],
        "detected": [(["add"], 3), (["add"], 4), (["add"], 5)],
        "offered": [["add", "echo"]] * 4 + [["echo"]] * 2,
        "told": [
            "You have made the same calls 3 times: add. Their results will not change. Try something else, or answer.",
            "add can no longer be called for this task.",
        ],
    }


async def test_the_next_input_begins_anew() -> None:
    talk, model = session([*same(4), "No more actions.", "One.", *same(1), "No more actions.", "Two."], [add, echo])
    await talk.run("go")

    result = await talk.run("again")

    assert (result.answer, offered(model.requests[-1]), await detected(talk)) == (
        "Two.",
        ["add", "echo"],
        [(["add"], 3), (["add"], 4)],
    )


@pytest.mark.parametrize("period", [2, 3])
async def test_longer_circles_are_found_where_they_do_not_divide_the_window(period: int) -> None:
    circle = [asks((f"c{n}", "echo", {"text": "abc"[n % period]})) for n in range(3 * period)]
    talk, _ = session([*circle, "No more actions.", "Done."], [echo])

    result = await talk.run("go")

    assert (result.answer, await detected(talk)) == ("Done.", [(["echo"] * period, 3)])


async def test_polling_is_no_circle() -> None:
    talk, _ = session([*same(9), "No more actions.", "Done."], [marked(add, poll=True)])

    result = await talk.run("go")

    assert (result.answer, await detected(talk)) == ("Done.", [])


async def test_a_poll_after_the_warning_does_not_make_the_circle_go_on() -> None:
    @tool
    async def wait() -> str:
        """Wait for the job."""
        return "not yet"

    script = [*same(3), asks(("w", "wait", {})), asks(("v", "wait", {})), "No more actions.", "Done."]
    talk, _ = session(script, [add, marked(wait, poll=True)])

    await talk.run("go")

    assert await detected(talk) == [(["add"], 3)]


async def test_results_that_never_change_are_a_warning_only() -> None:
    @tool
    async def look(at: str) -> str:
        """Look somewhere."""
        return "nothing"

    script = [asks((at, "look", {"at": at})) for at in "abcd"]
    talk, _ = session([*script, "No more actions.", "Done."], [look])

    result = await talk.run("go")

    warnings = [e["message"] for e in await talk.events() if e["type"] == "warning"]
    assert (result.answer, warnings, await detected(talk)) == (
        "Done.",
        ["look gave the same result each time, whatever its arguments were."],
        [],
    )


@pytest.mark.parametrize("mode", ["text", "wave"])
async def test_every_mode_withholds(mode: Any) -> None:
    config = LoopConfig(max_steps=20, tool_calling=mode)
    calls = same(4)
    if mode == "wave":
        one = '{"status": "continue", "tools": [{"id": "%s", "tool": "add", "args": {"a": 1, "b": 2}}]}'
        calls = [one % f"c{n}" for n in range(4)]
    over = "No more actions." if mode == "text" else '{"status": "done", "tools": []}'
    talk, model = session([*calls, over, "Done."], [add, echo], config)

    result = await talk.run("go")

    assert (result.answer, ["## add" in str(request.messages[0].content) for request in model.requests]) == (
        "Done.",
        [True] * 4 + [False] * 2,
    )


async def test_the_only_tool_stays_offered_and_is_refused() -> None:
    talk, model = session([*same(5), "Done."], [add])

    result = await talk.run("go")

    assert (
        result.stop_reason,
        [offered(request) for request in model.requests],
        list(result.results.values())[-1],
    ) == (
        "loop",
        [["add"]] * 6,
        {
            "error": "add is withheld until the user's next message, because its calls went round in a circle. Use "
            "something else, or answer from what you know."
        },
    )
