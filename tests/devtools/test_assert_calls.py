"""`assert_calls`: which calls a run has made, and what the message says if it has made others."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.testing import ANY, ScriptedChatModel, assert_calls, contains
from tests.support.agents import add, asks, echo

SCRIPT = [
    asks(("a", "add", {"a": 1, "b": 2}), ("b", "echo", {"text": "Hello, Ada"})),
    asks(("c", "echo", {"text": "3"})),
    "Three.",
]


async def session() -> Session:
    agent = create_graph_agent(ScriptedChatModel(SCRIPT), tools=[add, echo], checkpointer=InMemorySaver())
    made = Session(agent, "s1")
    await made.run("Hello")
    return made


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        (["add", "echo", "echo"], {}),
        (["echo", "add", "echo"], {}),
        ([["echo", "add"], "echo"], {}),
        (["echo", "add", "echo"], {"order": "any"}),
        ([("echo", {"text": "3"})], {"order": "subset"}),
        ([("add", {"a": 1}), "echo", "echo"], {"partial": True}),
        ([("add", {"a": ANY, "b": 2}), ("echo", {"text": contains("Ada")}), ("echo", ANY_TEXT := {"text": ANY})], {}),
        ([("add", contains({"a": 1})), {"name": "echo", "status": "success"}, ("echo", ANY_TEXT)], {}),
    ],
)
async def test_expected_calls_pass(expected: list[Any], options: Any) -> None:
    made = await session()

    assert_calls(await made.events(), expected, **options)


@pytest.mark.parametrize(
    ("expected", "options", "message"),
    [
        ([("add", {"a": 1, "b": 3}), "echo", "echo"], {}, "wave 1: add $.arguments.b: expected 3, got 2"),
        (["add", ["echo", "echo"]], {}, 'wave 1: echo: expected no call, got {"echo": {"text": "Hello, Ada"}}'),
        (["echo", "add", "echo"], {"order": "exact"}, "wave 1: echo: expected"),
        ([("add", {"a": 1}), "echo", "echo"], {}, "wave 1: add $.arguments.b: expected (absent), got 2"),
        ([{"name": "add", "status": "error"}], {"order": "subset"}, 'add $.status: expected "error", got "success"'),
    ],
)
async def test_a_difference_is_named_with_its_place_and_values(expected: list[Any], options: Any, message: str) -> None:
    made = await session()

    with pytest.raises(AssertionError) as error:
        assert_calls(await made.events(), expected, **options)

    head, *calls = str(error.value).split("\n")
    assert (head.startswith(message), calls) == (
        True,
        [
            "The run has made:",
            '  wave 1: add({"a": 1, "b": 2}), echo({"text": "Hello, Ada"})',
            '  wave 2: echo({"text": "3"})',
        ],
    ), head


async def test_results_are_compared_one_or_several() -> None:
    agent = create_graph_agent(ScriptedChatModel(SCRIPT, cycle=True), tools=[add, echo], checkpointer=InMemorySaver())
    made = Session(agent, "s1")

    results = [await made.run("Hello"), await made.run("Again")]

    assert_calls(results[1], ["add", "echo", "echo"])
    assert_calls(results, [["add", "echo"], "echo", ["add", "echo"], "echo"])


@pytest.mark.parametrize(("run", "expected"), [("events", []), (None, []), ([], [("add", 1)]), ([], [{"tool": "add"}])])
def test_other_forms_are_refused(run: Any, expected: list[Any]) -> None:
    with pytest.raises(ConfigError, match=r"assert_calls\(\) takes a RunResult|is no expected call; write"):
        assert_calls(run, expected)


@pytest.mark.parametrize("decision", ["reject", None], ids=["denied", "waiting"])
async def test_a_call_that_did_not_run_fits_only_an_expectation_with_its_status(decision: str | None) -> None:
    async def refund(order: str) -> str:
        """Refund an order."""
        return "refunded"

    model = ScriptedChatModel([{"name": "refund", "arguments": {"order": "17"}}, "Done."])
    agent = create_graph_agent(model, [refund], config=LoopConfig(approve="refund"), checkpointer=InMemorySaver())
    result = await agent.session("s1").run("Refund 17.")
    if decision is not None:
        result = await agent.session("s1").resume(decision)

    with pytest.raises(AssertionError, match=r"refund \$\.status: expected \"a call that ran\", got"):
        assert_calls(result, ["refund"])
    assert_calls(result, [{"name": "refund", "status": "denied" if decision else None}])
