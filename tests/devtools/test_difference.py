"""Differences of JSON values by path, and pairs of calls."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graph_agent.devtools.input_differences import PairedCalls, pair_calls
from graph_agent.devtools.json_values import ABSENT, value_differences

_SEGMENT = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+)\]|\['(?P<quoted>(?:\\.|[^'\\])*)'\]")
_SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2, width=16) | st.sampled_from(["", "a", "b"])
_NAMES = st.sampled_from(["a", "b c", "'", '"', "\\", "\n", "é", "0"]) | st.text(max_size=3)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=8
)


def _at(value: Any, path: str) -> Any:
    """Return the value at a JSON path."""
    position = 1
    while position < len(path):
        found = _SEGMENT.match(path, position)
        assert found is not None, path
        position = found.end()
        if found["index"] is not None:
            value = value[int(found["index"])] if int(found["index"]) < len(value) else ABSENT
        else:
            quoted = found["quoted"]
            name = found["name"] if quoted is None else json.loads(f'"{_as_json(quoted)}"')
            value = value.get(name, ABSENT)
    return value


def _as_json(quoted: str) -> str:
    return re.sub(r"""\\.|\"""", lambda one: {"\\'": "'", '"': '\\"'}.get(one[0], one[0]), quoted)


@given(_VALUES, _VALUES)
def test_a_path_yields_the_values_that_differ(recorded: Any, now: Any) -> None:
    found = list(value_differences(recorded, now))

    assert [(each.recorded, each.now) for each in found] == [
        (_at(recorded, each.path), _at(now, each.path)) for each in found
    ]
    assert bool(found) == (json.dumps(_plain(recorded), sort_keys=True) != json.dumps(_plain(now), sort_keys=True))


def _plain(value: Any) -> Any:
    """Return a value with each whole number as an integer."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@given(st.lists(st.tuples(st.sampled_from(["find", "pay"]), st.dictionaries(_NAMES, _VALUES, max_size=2)), max_size=4))
def test_the_calls_of_a_wave_have_any_order(calls: list[tuple[str, Any]]) -> None:
    paired = pair_calls(calls, calls[::-1])

    assert (len(paired.equal), paired.changed, paired.missing, paired.added) == (len(calls), (), (), ())


def test_a_changed_call_is_paired_with_the_nearest_of_its_name() -> None:
    recorded = [("find", {"city": "Oslo", "days": 1}), ("find", {"city": "Rome", "days": 2}), ("pay", {})]
    now = [("ask", {}), ("find", {"city": "Rome", "days": 3}), ("find", {"city": "Oslo", "days": 1.0})]

    assert pair_calls(recorded, now) == PairedCalls(equal=((0, 2),), changed=((1, 1),), missing=(2,), added=(0,))
