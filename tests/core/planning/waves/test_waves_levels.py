"""Needs within a wave: concurrent calls, resolved references, and skipped calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import tool

from graph_agent import GraphDelegate, ScriptedChatModel, SessionStatus, create_graph_agent
from tests.support.agents import echo, kinds, says, thread
from tests.support.wave_helpers import DONE, answers, fail, find, of_type, plan, plan_requests, results_of, use, waves


def meeting(parties: int) -> Any:
    """A tool whose calls return only once `parties` of them are inside, so that they can only pass together."""
    barrier = asyncio.Barrier(parties)

    @tool
    async def meet(text: str = "") -> str:
        """Wait for the others."""
        async with asyncio.timeout(30):
            await barrier.wait()
        return text or "met"

    return meet


async def test_the_calls_of_a_level_run_at_once_and_the_levels_one_after_the_other() -> None:
    wave = plan(
        use("a", "meet"),
        use("c", "meet", "a", "b"),
        use("b", "meet"),
        use("d", "meet", text="${a} ${b}"),
        status="done",
    )
    session = waves([wave, "Answer."], tools=[meeting(2)])

    result = await session.run("go")

    events = await session.events()
    begun = {e["id"]: e["ts"] for e in events if e["type"] == "tool_call"}
    ended = {e["id"]: e["ts"] for e in events if e["type"] == "tool_result"}
    assert (
        [(e["type"], e["id"]) for e in events if e["type"] == "tool_call" or e["type"] == "tool_result"],
        result.results,
        result.iterations,
    ) == (
        [
            *[("tool_call", "a"), ("tool_call", "b"), ("tool_result", "a"), ("tool_result", "b")],
            *[("tool_call", "c"), ("tool_call", "d"), ("tool_result", "c"), ("tool_result", "d")],
        ],
        {"a": "met", "b": "met", "c": "met", "d": "met met"},
        1,
    )
    levels = [("a", "b"), ("c", "d")]
    assert [max(begun[id_] for id_ in level) < min(ended[id_] for id_ in level) for level in levels] == [True, True]
    assert max(ended["a"], ended["b"]) <= min(begun["c"], begun["d"])


async def test_references_take_values_in_their_own_type() -> None:
    given: list[Any] = []

    @tool
    async def take(number: int, whole: dict[str, Any], listed: list[Any], text: str) -> str:
        """Take values."""
        given.append((number, whole, listed, text))
        return "taken"

    values = {
        "number": "${f.hits[0].id}",
        "whole": "${f.hits[1]}",
        "listed": ["${f.what}", {"deep": "${f.hits[1].id}"}],
        "text": "$${f} is ${f.what}: ${f.hits[0]}",
    }
    session = waves(
        [plan(use("f", "find", what="room"), use("t", "take", **values), status="done"), "Answer."], tools=[find, take]
    )

    await session.run("go")

    arguments = of_type(await session.events(), "tool_call", "id", "arguments")[1][1]
    assert (given, tuple(arguments.values())) == (
        [(7, {"id": 8, "name": "room two"}, ["room", {"deep": 8}], '${f} is room: {"id": 7, "name": "room one"}')],
        given[0],
    )


async def test_a_failed_call_skips_its_dependents_and_no_others() -> None:
    wave = plan(
        use("bad", "fail"),
        use("child", "echo", "bad", text="x"),
        use("grandchild", "echo", text="${child}"),
        use("good", "echo", text="y"),
        use("after", "echo", "good", text="z"),
        use("both", "echo", "good", "bad", text="w"),
    )
    model = ScriptedChatModel([wave, DONE, "Answer."])
    session = waves(model, tools=[echo, fail])

    result = await session.run("go")

    events = await session.events()
    messages = (await session.graph.aget_state(thread())).values["messages"]
    skipped = "Not run: it needs 'bad', which failed or was not run."
    assert (of_type(events, "tool_result", "id", "status"), result.results, result.pending) == (
        [
            ("bad", "error"),
            ("good", "success"),
            ("child", "skipped"),
            ("both", "skipped"),
            ("grandchild", "skipped"),
            ("after", "success"),
        ],
        {
            "bad": {"error": "fail failed: ValueError: no such thing"},
            "good": "y",
            "child": {"error": skipped},
            "both": {"error": skipped},
            "grandchild": {"error": "Not run: it needs 'child', which failed or was not run."},
            "after": "z",
        },
        [],
    )
    assert [len(found) for _, found in answers(messages)] == [1] * 6
    assert len(plan_requests(model)) == 2


async def test_skipped_calls_are_listed_in_the_next_plans_request() -> None:
    wave = plan(use("bad", "fail"), use("child", "echo", "bad", text="x"))
    model = ScriptedChatModel([wave, DONE, "Answer."])
    await waves(model, tools=[echo, fail]).run("go")

    assert results_of(plan_requests(model)[1]) == [
        {
            "bad": {"error": "fail failed: ValueError: no such thing"},
            "child": {"error": "Not run: it needs 'bad', which failed or was not run."},
        }
    ]


async def test_a_missing_path_skips_its_call_and_lists_the_available_keys() -> None:
    wave = plan(
        use("f", "find", what="room"), use("e", "echo", text="${f.hits[5].name}"), use("g", "echo", text="${f.bed}")
    )
    session = waves([wave, DONE, "Answer."], tools=[find, echo])

    result = await session.run("go")

    assert (result.results["e"], result.results["g"], result.status) == (
        {"error": "Not run: ${f.hits[5].name}: f.hits has no 5; it is a list of 2."},
        {"error": "Not run: ${f.bed}: f has no 'bed'; it is an object with what, hits."},
        SessionStatus.COMPLETED,
    )


async def test_a_reference_in_a_result_is_text() -> None:
    wave = plan(use("a", "echo", text="$${b.secret}"), use("c", "echo", text="<${a}>"), status="done")

    result = await waves([wave, "Answer."], tools=[echo]).run("go")

    assert result.results == {"a": "${b.secret}", "c": "<${b.secret}>"}


async def test_a_wave_whose_last_level_is_skipped_goes_on_to_the_answer() -> None:
    wave = plan(use("bad", "fail"), use("child", "echo", "bad", text="x"), status="done")
    model = ScriptedChatModel([wave, "Answer."])

    result = await waves(model, tools=[echo, fail]).run("go")

    model.assert_spent()
    assert (result.answer, result.iterations, len(result.results)) == ("Answer.", 1, 2)


async def test_delegations_and_calls_need_each_other() -> None:
    delegate = create_graph_agent(ScriptedChatModel(["Found."], cycle=True))
    inner = GraphDelegate("r", "Researches.", delegate)
    wave = plan(
        use("f", "find", what="room"),
        use("d", "delegate_to_r", task="Look at ${f.hits[0].name}."),
        use("e", "echo", text="It said: ${d}"),
        status="done",
    )
    session = waves([wave, "Answer."], tools=[find, echo], delegates=[inner])

    result = await session.run("go")

    events = await session.events()
    assert (of_type(events, "delegation_request", "id", "task"), result.results["d"], result.results["e"]) == (
        [("d", "Look at room one.")],
        "Found.",
        "It said: Found.",
    )


async def test_a_failed_delegation_skips_its_dependents() -> None:
    class Broken:
        name, description = "r", "Breaks."

        async def run(self, delegation: Any) -> Any:
            raise RuntimeError("gone")

    wave = plan(
        use("d", "delegate_to_r", task="Look."), use("e", "echo", text="${d}"), use("o", "delegate_to_r", "e", task="t")
    )
    session = waves([wave, DONE, "Answer."], tools=[echo], delegates=[Broken()])

    result = await session.run("go")

    responses = of_type(await session.events(), "delegation_response", "id", "status", "content")
    assert (result.results["e"], responses) == (
        {"error": "Not run: it needs 'd', which failed or was not run."},
        [
            ("d", "error", "The delegate 'r' failed: RuntimeError: gone"),
            ("o", "skipped", "Not run: it needs 'e', which failed or was not run."),
        ],
    )


async def test_a_whole_task_may_be_a_reference_to_any_result() -> None:
    inner = GraphDelegate("r", "Researches.", create_graph_agent(ScriptedChatModel(["Found."], cycle=True)))
    wave = plan(use("f", "find", what="room"), use("d", "delegate_to_r", task="${f}"), status="done")

    result = await waves([wave, "Answer."], tools=[find], delegates=[inner]).run("go")

    assert result.results["d"] == "Found."


async def test_a_chain_as_deep_as_the_cap_runs_link_by_link() -> None:
    links = [use("c0", "echo", text="x"), *(use(f"c{i}", "echo", text=f"${{c{i - 1}}}x") for i in range(1, 64))]
    session = waves([plan(*links, status="done"), "Answer."], tools=[echo])

    result = await session.run("go")

    assert (result.results["c63"], result.iterations, kinds(await session.events()).count("plan")) == ("x" * 64, 1, 1)


@pytest.mark.parametrize(
    ("recursion_limit", "ran", "skipped"),
    [(3, 0, 0), (4, 0, 0), (5, 1, 2), (7, 2, 1), (9, 3, 0)],
    ids=str,
)
async def test_a_recursion_limit_met_between_levels_leaves_no_orphan(
    recursion_limit: int, ran: int, skipped: int
) -> None:
    chain = [use("a", "echo", text="x"), use("b", "echo", text="${a}"), use("c", "echo", text="${b}")]
    session = waves([plan(*chain)], tools=[echo], settings={"on_limit": "message"})

    await session.graph.ainvoke(says("go"), thread(recursion_limit=recursion_limit))

    result = await session.driver.result()
    messages = (await session.graph.aget_state(thread())).values["messages"]
    statuses = [status for (status,) in of_type(await session.events(), "tool_result", "status")]
    assert (
        [call["id"] for call in result.pending],
        statuses,
        [len(found) for _, found in answers(messages)],
        result.status,
    ) == (
        ["a", "b", "c"][ran:],
        ["success"] * ran + ["skipped"] * skipped,
        [1] * (ran + skipped),
        SessionStatus.ROUND_LIMIT,
    )


async def test_the_step_limit_counts_plans_and_not_levels() -> None:
    chain = [use("a", "echo", text="x"), use("b", "echo", text="${a}"), use("c", "echo", text="${b}")]
    session = waves([plan(*chain)], tools=[echo], settings={"on_limit": "message", "max_steps": 1})

    result = await session.run("go")

    assert (result.answer, result.results, result.stop_reason) == (
        "Reached maximum reasoning steps (1)",
        {"a": "x", "b": "x", "c": "x"},
        "step_limit",
    )
