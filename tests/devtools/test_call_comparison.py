"""The comparison of calls."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from graph_agent.devtools.calls import CallDifference, CallInWave, compare_calls, compare_runs
from graph_agent.devtools.json_values import value_differences
from graph_agent.evaluation import ExpectedCall, ExpectedCalls

A, B = CallInWave("a", {"x": 1}, "success", 1), CallInWave("b", {"y": [1, 2]}, "success", 1)
C = CallInWave("c", {"z": "Bergen"}, "error", 2)
RUN = [A, B, C]


@pytest.mark.parametrize(
    ("expected", "order", "place"),
    [
        (["b", "a", "c"], "waves", None),
        ([["b", "a"], "c"], "waves", None),
        (["a", ["b", "c"]], "waves", (1, "b", "$")),
        (["a", "c", "b"], "waves", (1, "c", "$")),
        (["b", "a", "c"], "exact", (1, "b", "$")),
        (["c", "b", "a"], "any", None),
        (["c", "a"], "any", (0, "b", "$")),
        (["c"], "subset", None),
        (["c", "c"], "subset", (0, "c", "$")),
        ([], "waves", (1, "a", "$")),
        (["a", "b", "c", "d"], "waves", (3, "d", "$")),
        ([{"name": "a", "arguments": {"x": 2}}, "b", "c"], "waves", (1, "a", "$.arguments.x")),
        ([{"name": "b", "arguments": {"y": [1, 3]}}], "subset", (0, "b", "$.arguments.y[1]")),
        ([{"name": "c", "status": "success"}], "subset", (0, "c", "$.status")),
    ],
)
def test_calls_are_compared_in_the_order_that_counts(
    expected: list[Any], order: Any, place: tuple[int, str, str] | None
) -> None:
    calls = ExpectedCalls.model_validate({"calls": expected, "order": order}).calls

    found = compare_calls(calls, RUN, order)

    assert (None if found is None else (found.wave, found.call, found.path)) == place


@pytest.mark.parametrize(
    ("expected", "actual", "path"),
    [
        ({"a": {"$any": True}}, {"a": None}, None),
        ({"a": ANY}, {"a": [1]}, None),
        ({"a": ANY}, {"a": True}, None),
        ({"a": ANY}, {}, "$.a"),
        ({"a": {"$any": True}}, {}, "$.a"),
        ({1: "b"}, {1: "c"}, "$['1']"),
        ({"a": {"$matches": "^B"}}, {"a": "Bergen"}, None),
        ({"a": {"$matches": "^B"}}, {"a": "Oslo"}, "$.a"),
        ({"a": {"$contains": "erg"}}, {"a": "Bergen"}, None),
        ([{"$schema": {"type": "integer"}}], [1], None),
        ([{"$schema": {"type": "integer"}}], ["1"], "$[0]"),
        # The search for the pattern would take hours.
        ([{"$schema": {"pattern": "^(a|aa)+$"}}], ["a" * 200 + "b"], "$[0]"),
        ({"$partial": {"a": 1}}, {"a": 1, "b": 2}, None),
        ({"a": 1}, {"a": 1, "b": 2}, "$.b"),
        ({"a": 1}, {"a": True}, "$.a"),
        ({"a": 1}, {"a": 1.0}, None),
    ],
)
def test_values_are_compared_with_matchers(expected: Any, actual: Any, path: str | None) -> None:
    found = next(value_differences(expected, actual, matches=True), None)

    assert (None if found is None else found.path) == path


def test_each_expected_call_is_assigned_another_call_of_the_run() -> None:
    both = [ExpectedCall(name="a"), ExpectedCall(name="a", arguments={"x": 1})]

    found = compare_calls(both, [A, CallInWave("a", {"x": 2})], "any")

    assert found is None


def test_the_first_diverging_wave_of_two_runs_is_found_whatever_its_order() -> None:
    other = [B, A, CallInWave("c", {"z": "Oslo"}, "success", 2)]

    assert compare_runs(RUN, other) == CallDifference(2, "c", "$.arguments.z", "Bergen", "Oslo")
