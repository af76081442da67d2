"""References in arguments to the results of other calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.base.waves.references import BadReferenceError, referenced_ids, renamed, resolve

RESULTS = {
    "a": {"n": 1, "list": [10, {"deep": [None, True]}], "a key": "v", "text": "hello", "ü": 2, "0": "zero"},
    "b-2": "plain",
    "c": [[1, 2], [3]],
    "none": None,
}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("${a.n}", 1),
        ("${a}", RESULTS["a"]),
        ("${a.list}", [10, {"deep": [None, True]}]),
        ("${a.list[0]}", 10),
        ("${a.list[1].deep[1]}", True),
        ("${a.list[1].deep[0]}", None),
        ("${none}", None),
        ("${c[0][1]}", 2),
        ("${b-2}", "plain"),
        ("${ a.n }", 1),
        ("${a.a key}", "v"),
        ("${a.ü}", 2),
        ("${a.0}", "zero"),
        ("${a.text}, ${b-2}!", "hello, plain!"),
        (" ${a.n}", " 1"),
        ("${a.n}${a.n}", "11"),
        ("${a.list[1]} ${none}", '{"deep": [null, true]} null'),
        ("$${a.n}", "${a.n}"),
        ("$$${a.n}", "$${a.n}"),
        ("$${${a.n}}", "${1}"),
        ("$$ $5 {a} }${ ${a", "$$ $5 {a} }${ ${a"),
        ({"k": ["${a.n}", {"l": "${b-2}"}], "${a}": 1, "m": 2.5}, {"k": [1, {"l": "plain"}], "${a}": 1, "m": 2.5}),
        ("", ""),
        ({}, {}),
    ],
)
def test_a_reference_is_filled_in(arguments: Any, expected: Any) -> None:
    assert json.dumps(resolve(arguments, RESULTS)) == json.dumps(expected)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("${z}", "${z}: the call 'z' has no result."),
        ("${a.m}", "${a.m}: a has no 'm'; it is an object with n, list, a key, text, ü, 0."),
        ("${a.list[2]}", "${a.list[2]}: a.list has no 2; it is a list of 2."),
        ("${a.list.n}", "${a.list.n}: a.list has no 'n'; it is a list of 2."),
        ("${a[0]}", "${a[0]}: a has no 0; it is an object with n, list, a key, text, ü, 0."),
        ("${a.n.m}", "${a.n.m}: a.n has no 'm'; it is the int 1."),
        ("${b-2[0]}", "${b-2[0]}: b-2 has no 0; it is the str plain."),
        ("${none.x}", "${none.x}: none has no 'x'; it is the NoneType null."),
    ],
)
def test_a_missing_path_lists_the_available_keys(arguments: Any, fault: str) -> None:
    with pytest.raises(BadReferenceError) as refused:
        resolve([arguments], RESULTS)

    assert str(refused.value) == fault


@pytest.mark.parametrize(
    "reference",
    [
        "",
        " ",
        ".",
        "a.",
        "a..b",
        "a b",
        "a[",
        "a[]",
        "a[x]",
        "a[-1]",
        "a[0",
        "[0]",
        ".a",
        "a[0]b",
        "ü",
        "a/b",
        "a[9999999999]",
    ],
)
def test_a_reference_that_cannot_be_read_is_a_fault(reference: str) -> None:
    faults = []
    for attempt in (lambda: list(referenced_ids([f"${{{reference}}}"])), lambda: resolve(f"${{{reference}}}", RESULTS)):
        with pytest.raises(BadReferenceError) as refused:
            attempt()
        faults.append(str(refused.value))

    assert faults == [f"${{{reference}}} is no reference; write ${{id.field[0]}}, or $${{ for a plain ${{."] * 2


def test_the_ids_that_references_name() -> None:
    arguments = {"x": ["${a.n} ${b-2}", {"${no}": "$${no} ${a}"}], "y": 3, "z": "${c[0]}"}

    assert list(referenced_ids(arguments)) == ["a", "b-2", "a", "c"]


def test_the_ids_in_references_are_replaced() -> None:
    arguments = {"x": ["${a.n} $${a} ${ab} ${ a }", {"k": "${a[0].a}"}], "a": "a", "n": 1}

    assert renamed(arguments, {"a": "fresh"}) == {
        "x": ["${fresh.n} $${a} ${ab} ${fresh}", {"k": "${fresh[0].a}"}],
        "a": "a",
        "n": 1,
    }


def test_a_result_that_looks_like_a_reference_stays_text() -> None:
    assert resolve(["${a}", "<${a}>"], {"a": "${b}", "b": "secret"}) == ["${b}", "<${b}>"]


def test_the_error_of_a_reference_into_a_long_value_is_short() -> None:
    with pytest.raises(BadReferenceError) as refused:
        resolve("${a.x}", {"a": {f"{'k' * 100_000}{i}": i for i in range(100)}})

    assert len(str(refused.value)) < 5000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
STRINGS_WITH_SIGNS = st.text("${}a.[0] ", max_size=20)


def escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: escaped(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [escaped(inner) for inner in value]
    return value.replace("${", "$${") if isinstance(value, str) else value


def without_references(value: Any) -> bool:
    return "${" not in json.dumps(value)


@given(JSON.filter(without_references))
def test_values_without_references_are_unchanged(value: Any) -> None:
    assert (resolve(value, {}), renamed(value, {"a": "b"}), list(referenced_ids(value))) == (value, value, [])


@given(JSON | st.lists(STRINGS_WITH_SIGNS, max_size=3))
def test_escaped_references_stay_text(value: Any) -> None:
    assert (resolve(escaped(value), {}), list(referenced_ids(escaped(value)))) == (value, [])


@given(JSON)
def test_a_whole_reference_is_the_very_value(value: Any) -> None:
    assert resolve({"x": ["${a.b[0]}"]}, {"a": {"b": [value]}}) == {"x": [value]}


@given(STRINGS_WITH_SIGNS)
def test_any_string_is_resolved_or_refused(text: str) -> None:
    try:
        resolve([text], {"a": {"a": [0]}})
        list(referenced_ids(text))
    except BadReferenceError:
        pass


@given(STRINGS_WITH_SIGNS)
def test_renaming_there_and_back_changes_nothing_that_is_meant(text: str) -> None:
    back = renamed(renamed(text, {"a": "b"}), {"b": "a"})

    try:
        expected = list(referenced_ids(text))
    except BadReferenceError:
        return
    assert list(referenced_ids(back)) == expected
