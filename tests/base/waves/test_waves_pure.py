"""Pure functions of a wave: order, faults, and the selection of ready calls."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.calls import Call
from graph_agent.waves import PlanError, PlanningResult, WaveCall, check_wave, select
from tests.support.wave_helpers import use


def wave_of(*calls: dict[str, Any], max_calls: int = 64) -> list[Call]:
    tools = [WaveCall(**call) for call in calls]
    return check_wave(PlanningResult.model_construct(status="done", tools=tools), max_calls)


def faults_of(*calls: dict[str, Any], max_calls: int = 64) -> list[str]:
    """The lines of the error, without its heading."""
    with pytest.raises(PlanError) as refused:
        wave_of(*calls, max_calls=max_calls)
    heading, *faults = str(refused.value).splitlines()
    return faults or [heading]


def waiting(*calls: tuple[str, list[str]], **arguments: Any) -> list[Call]:
    return [{"id": id_, "name": "t", "arguments": arguments, "needs": needs} for id_, needs in calls]


def test_a_wave_is_ordered_by_level_and_within_a_level_as_planned() -> None:
    wave = wave_of(
        use("late", "t", "b"), use("c", "t"), use("b", "t", "a", x=1), use("a", "t"), use("r", "t", x="${a.y} ${b}")
    )

    assert wave == [
        {"id": "c", "name": "t", "arguments": {}},
        {"id": "a", "name": "t", "arguments": {}},
        {"id": "b", "name": "t", "arguments": {"x": 1}, "needs": ["a"]},
        {"id": "late", "name": "t", "arguments": {}, "needs": ["b"]},
        {"id": "r", "name": "t", "arguments": {"x": "${a.y} ${b}"}, "needs": ["a", "b"]},
    ]


def test_needs_named_twice_and_referred_to_stand_once() -> None:
    (_, call) = wave_of(use("a", "t"), use("b", "t", "a", "a", x="${a} ${a.b}", y=["${a}"]))

    assert call.get("needs") == ["a"]


def test_no_calls_are_an_empty_wave() -> None:
    assert wave_of() == []


@pytest.mark.parametrize(
    ("calls", "faults"),
    [
        pytest.param(
            [use("a", "t", "b")], ["Call 'a' needs 'b', no call of this plan or of an earlier one."], id="unknown"
        ),
        pytest.param(
            [use("a", "t", x="${b.c}")],
            ["Call 'a' needs 'b', no call of this plan or of an earlier one."],
            id="unknown-reference",
        ),
        pytest.param([use("a", "t", "a")], ["These calls need each other in a circle: a → a."], id="circle-of-one"),
        pytest.param(
            [use("a", "t", x="${a}")], ["These calls need each other in a circle: a → a."], id="reference-to-itself"
        ),
        pytest.param(
            [use("a", "t", "b"), use("b", "t", "c"), use("c", "t", x="${a}")],
            ["These calls need each other in a circle: a → c → b → a."],
            id="circle-of-three",
        ),
        pytest.param([use("a", "t"), use("a", "u")], ["The id 'a' is used twice."], id="doubled"),
        pytest.param(
            [use("a.b", "t")],
            ["The id 'a.b' cannot be used; take up to 64 letters, digits, _ and -."],
            id="dot",
        ),
        pytest.param(
            [use("a[0]", "t")],
            ["The id 'a[0]' cannot be used; take up to 64 letters, digits, _ and -."],
            id="bracket",
        ),
        pytest.param(
            [use("", "t"), use("a b", "t")],
            [
                "The id '' cannot be used; take up to 64 letters, digits, _ and -.",
                "The id 'a b' cannot be used; take up to 64 letters, digits, _ and -.",
            ],
            id="empty-and-space",
        ),
        pytest.param(
            [use("b", "t"), use("a", "t", x=[{"y": "see ${b c}"}])],
            ["Call 'a': ${b c} is no reference; write ${id.field[0]}, or $${ for a plain ${."],
            id="malformed-reference",
        ),
        pytest.param(
            [use("a", "t", "z"), use("a", "t"), use("b.c", "t", x="${}")],
            [
                "Call 'a' needs 'z', no call of this plan or of an earlier one.",
                "The id 'a' is used twice.",
                "The id 'b.c' cannot be used; take up to 64 letters, digits, _ and -.",
                "Call 'b.c': ${} is no reference; write ${id.field[0]}, or $${ for a plain ${.",
            ],
            id="everything-at-once",
        ),
    ],
)
def test_every_fault_is_listed(calls: list[dict[str, Any]], faults: list[str]) -> None:
    assert faults_of(*calls) == faults


def test_a_plan_over_the_cap_is_a_fault_whatever_else_is_wrong() -> None:
    assert faults_of(*[use("a", "t", "z")] * 10_000) == [
        "The plan has 10000 calls; at most 64 are allowed in one. Plan fewer."
    ]


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([use(f"c{i}", "t", f"unknown{i}") for i in range(10_000)], id="ten-thousand-unknown"),
        pytest.param([use("a", "t", *(f"unknown{i}" for i in range(100_000)))], id="many-needs-of-one"),
        pytest.param([use("x" * 1_000_000, "t"), use("x" * 1_000_000, "t", "y" * 1_000_000)], id="long-ids"),
        pytest.param([use(f"c{i}", "t", f"c{(i + 1) % 10_000}") for i in range(10_000)], id="circle-of-ten-thousand"),
        pytest.param([use("a", "t", x="${b[" + "9" * 1_000_000 + "]}"), use("b", "t")], id="endless-index"),
        pytest.param([use("a", "t", x="${" + "b." * 500_000 + "}"), use("b", "t")], id="endless-path"),
        pytest.param([use("a", "t", x="${b c}" * 100_000)], id="many-malformed"),
    ],
)
def test_the_fault_list_of_a_huge_plan_is_shortened(calls: list[dict[str, Any]]) -> None:
    assert len("\n".join(faults_of(*calls, max_calls=10_000))) < 5000


def test_a_plan_of_ten_thousand_calls_in_one_chain_is_ordered() -> None:
    calls = [use(f"c{i}", "t", f"c{i - 1}") if i else use("c0", "t") for i in range(10_000)]
    random.Random(1).shuffle(calls)

    assert [call["id"] for call in wave_of(*calls, max_calls=10_000)] == [f"c{i}" for i in range(10_000)]


def test_a_chain_a_thousand_deep_runs_link_by_link() -> None:
    left = wave_of(
        *(use(f"c{i}", "t", x=f"${{c{i - 1}}}") if i else use("c0", "t", x=0) for i in range(1000)), max_calls=1000
    )
    results: dict[str, Any] = {}
    while left:
        chosen = select(left, results, ())
        results |= {call["id"]: call["arguments"]["x"] for call in chosen.ready}
        left = chosen.waiting

    assert results == {f"c{i}": 0 for i in range(1000)}


def test_the_end_of_a_chain_a_thousand_deep_is_skipped_at_once() -> None:
    chosen = select(waiting(*((f"c{i}", [f"c{i - 1}"]) for i in range(1, 1000))), {}, {"c0"})

    assert (len(chosen.skipped), chosen.ready, chosen.waiting, chosen.skipped[-1][1]) == (
        999,
        [],
        [],
        "Not run: it needs 'c998', which failed or was not run.",
    )


def test_ready_skipped_and_waiting_calls_are_selected() -> None:
    calls = waiting(("a", []), ("b", ["x"]), ("c", ["y"]), ("d", ["x", "y", "z"]), ("e", ["x", "a"]), ("f", ["c"]))

    chosen = select(calls, {"x": 1}, {"y", "z"})

    by_id = {call["id"]: call for call in calls}
    assert (chosen.ready, chosen.skipped, chosen.waiting) == (
        [by_id["a"], by_id["b"]],
        [
            (by_id["c"], "Not run: it needs 'y', which failed or was not run."),
            (by_id["d"], "Not run: it needs 'y', 'z', which failed or was not run."),
            (by_id["f"], "Not run: it needs 'c', which failed or was not run."),
        ],
        [by_id["e"]],
    )


def test_references_are_filled_in_when_a_call_is_ready_and_a_path_to_nowhere_skips_it() -> None:
    calls = [
        *waiting(("a", ["x"]), y="${x.n}"),
        *waiting(("b", ["x"]), y="${x.m}"),
        *waiting(("c", ["b"]), y="${b}"),
    ]

    chosen = select(calls, {"x": {"n": 1}}, ())

    assert (chosen.ready, chosen.skipped) == (
        [{"id": "a", "name": "t", "arguments": {"y": 1}, "needs": ["x"]}],
        [
            (calls[1], "Not run: ${x.m}: x has no 'm'; it is an object with n."),
            (calls[2], "Not run: it needs 'b', which failed or was not run."),
        ],
    )


def test_selection_does_not_mutate_the_wave() -> None:
    calls = waiting(("a", ["x"]), y=["${x}"])

    select(calls, {"x": 1}, ())

    assert calls == waiting(("a", ["x"]), y=["${x}"])


@st.composite
def dags(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls in any order whose needs, given in `needs` or by reference, have no circle."""
    size = draw(st.integers(0, 12))
    calls = []
    for index in range(size):
        before = [f"c{i}" for i in range(index)]
        needs = draw(st.lists(st.sampled_from(before), max_size=4)) if before else []
        referred = draw(st.lists(st.sampled_from(before), max_size=2)) if before else []
        calls.append({**use(f"c{index}", "t", *needs, x=[f"${{{id_}}}" for id_ in referred])})
    return draw(st.permutations(calls))


@given(dags())
def test_each_call_comes_after_its_needs(calls: list[dict[str, Any]]) -> None:
    wave = wave_of(*calls)

    place = {call["id"]: index for index, call in enumerate(wave)}
    wanted = {call["id"]: {*call.get("needs", []), *(ref[2:-1] for ref in call["args"]["x"])} for call in calls}
    assert {call["id"]: set(call.get("needs", [])) for call in wave} == wanted
    assert all(place[need] < place[id_] for id_, needs in wanted.items() for need in needs)


@given(dags(), st.data())
def test_select_puts_every_call_in_one_place_and_every_wave_ends(
    calls: list[dict[str, Any]], data: st.DataObject
) -> None:
    left = wave_of(*calls)
    results: dict[str, Any] = {}
    failed: set[str] = set()
    seen: list[str] = []
    while left:
        chosen = select(left, results, failed)
        ready = [call["id"] for call in chosen.ready]
        skipped = [call["id"] for call, _ in chosen.skipped]
        still = [call["id"] for call in chosen.waiting]
        assert sorted(ready + skipped + still) == sorted(call["id"] for call in left)
        assert ready or skipped
        broken = set(data.draw(st.lists(st.sampled_from(ready)))) if ready else set()
        failed |= {*skipped, *broken}
        results |= {id_: id_ for id_ in ready if id_ not in broken}
        seen += ready + skipped
        left = chosen.waiting

    needs = {call["id"]: {*call.get("needs", []), *(ref[2:-1] for ref in call["args"]["x"])} for call in calls}
    assert sorted(seen) == sorted(needs)
    assert all(needs[id_] <= set(results) for id_ in results)
