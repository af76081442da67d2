"""An empty answer is requested again once; then the input fails with a report of the finished calls."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks, echo

CALL = asks(("c1", "echo", {"text": "x"}))
PLAN = '{"status": "done", "tools": [{"id": "t1", "tool": "echo", "args": {"text": "x"}}]}'
DONE = "No more actions."
EMPTY = "The model's answer was empty, and so was the answer to a second request."


class City(BaseModel):
    name: str


async def run(script: list[str], *, streamed: bool, tools: Any = (echo,), **parts: Any) -> tuple[Any, Any]:
    model = ScriptedChatModel(script)
    config = LoopConfig(**parts.pop("config", {}))
    graph = create_graph_agent(model, tools=tools, config=config, checkpointer=InMemorySaver(), **parts)
    session = Session(graph, "s1")
    if streamed:
        *_, last = [part async for part in session.stream("go")]
        result = last.result  # type: ignore[union-attr]  # the last part is Done
    else:
        result = await session.run("go")
    model.assert_spent()
    return result, await session.events()


CASES: list[tuple[dict[str, Any], list[str], Any]] = [
    ({}, [], ()),
    ({}, [], (echo,)),
    ({}, [CALL], (echo,)),
    ({"finalize": "direct"}, [CALL], (echo,)),
    ({"finalize": "compose"}, [CALL, DONE], (echo,)),
    ({}, [CALL, DONE], (echo,)),
    ({"tool_calling": "text"}, [CALL], (echo,)),
    ({"tool_calling": "text", "finalize": "compose"}, [CALL, DONE], (echo,)),
    ({"tool_calling": "wave"}, [PLAN], (echo,)),
    ({"tool_calling": "wave"}, [], (echo,)),
    ({"tool_calling": "wave", "finalize": "direct"}, [PLAN], (echo,)),
]


@pytest.mark.parametrize(("config", "before", "tools"), CASES)
@pytest.mark.parametrize("empty", ["", " \n\t", "<think>What now?</think>\n"])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_a_repeatedly_empty_answer_is_replaced_by_a_report(
    config: dict[str, Any], before: list[str], tools: Any, empty: str, streamed: bool
) -> None:
    result, events = await run([*before, empty, empty], streamed=streamed, tools=tools, config=config)

    done = "Done: echo." if before and before[0] != DONE else ""
    errors = [(event["kind"], event["message"]) for event in events if event["type"] == "error"]
    assert (EMPTY in result.answer, done in result.answer, result.status, result.stop_reason, errors) == (
        True,
        True,
        "FAILED",
        "failed",
        [("empty_answer", EMPTY)],
    )


@pytest.mark.parametrize(("config", "before", "tools"), CASES)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_an_empty_answer_is_requested_again_once(
    config: dict[str, Any], before: list[str], tools: Any, streamed: bool
) -> None:
    result, events = await run([*before, " ", "Here it is."], streamed=streamed, tools=tools, config=config)

    errors = [event for event in events if event["type"] == "error"]
    assert (result.answer, result.stop_reason, errors, result.usage["model_calls"]) == (
        "Here it is.",
        "completed",
        [],
        len(before) + 2,
    )


@pytest.mark.parametrize("tools", [(), (echo,)], ids=["no tools", "tools"])
async def test_a_repeatedly_empty_structured_answer_is_replaced_by_a_report(tools: Any) -> None:
    result, events = await run(["", ""], streamed=False, tools=tools, response_format=City)

    errors = [event["kind"] for event in events if event["type"] == "error"]
    assert (EMPTY in result.answer, result.structured_response, result.stop_reason, errors) == (
        True,
        None,
        "failed",
        ["empty_answer"],
    )


@pytest.mark.parametrize("tools", [(), (echo,)], ids=["no tools", "tools"])
async def test_a_structured_answer_may_be_empty_once(tools: Any) -> None:
    result, _ = await run(["", '{"name": "Oslo"}'], streamed=False, tools=tools, response_format=City)

    assert (result.structured_response, result.stop_reason) == (City(name="Oslo"), "completed")


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(("second", "below"), [("", f"{EMPTY}\n\nDone: echo."), ("So far: x.", "So far: x.")])
async def test_an_empty_answer_below_a_limit_is_asked_for_once_more(streamed: bool, second: str, below: str) -> None:
    result, _ = await run([CALL, "", second], streamed=streamed, config={"max_steps": 1})

    assert (result.answer.startswith(f"Reached maximum reasoning steps (1)\n\n{below}"), result.stop_reason) == (
        True,
        "step_limit",
    )
