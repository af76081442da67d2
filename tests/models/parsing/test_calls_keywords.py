"""Calls written as Python whose arguments, or tools, are named by keywords of Python."""

from __future__ import annotations

import keyword
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.calls import parse_tool_calls

FORMATS = {
    "bare list": "[{first}, {second}]",
    "tool_code": "```tool_code\n{first}\n{second}\n```",
    "tool_code, printed": "```tool_code\nprint({first})\nprint(default_api.{second})\n```",
    "tool_code, a list": "```tool_code\n[{first}, {second}]\n```",
    "tool_call fence": "```tool_call\n[{first}, {second}]\n```",
    "llama": "<|python_tag|>[{first}, {second}]<|eom_id|>",
    "llama, one call a line": "<|python_tag|>{first}\n{second}<|eom_id|>",
    "lfm2": "<|tool_call_start|>[{first}, {second}]<|tool_call_end|>",
    "olmo": "<function_calls>\n{first}\n{second}\n</function_calls>",
    "hermes": "<tool_call>[{first}, {second}]</tool_call>",
    "mistral": "[TOOL_CALLS][{first}, {second}]",
}


def read(text: str, tools: list[str] | None = None) -> list[tuple[str, dict[str, Any]]]:
    return [(call["name"], call["arguments"]) for call in parse_tool_calls(text, tools)]


def written(name: str, arguments: dict[str, Any], equals: str = "=") -> str:
    """A call as Python, of literals that stand in one line."""
    listed = ", ".join(f"{key}{equals}{value!a}" for key, value in arguments.items())
    return f"{name}({listed})"


@pytest.mark.parametrize("known", [True, False], ids=["names known", "no names known"])
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_transfers_are_read_in_every_format(form: str, known: bool) -> None:
    text = form.format(first='transfer(from="A", to="B")', second="find(class=[1, {'in': 2}], import=None)")

    assert read(text, ["transfer", "find"] if known else None) == [
        ("transfer", {"from": "A", "to": "B"}),
        ("find", {"class": [1, {"in": 2}], "import": None}),
    ]


@pytest.mark.parametrize("name", keyword.kwlist)
def test_every_keyword_names_an_argument_a_tool_and_a_part_of_one(name: str) -> None:
    text = f"[find({name} = 1), {name}(x=2), of.{name}({name}=3), {name}.of(y=4)]"

    assert read(text) == [("find", {name: 1}), (name, {"x": 2}), (f"of.{name}", {name: 3}), (f"{name}.of", {"y": 4})]


# Text in which an argument's name, a bracket or a quote is only text.
TEXTS = st.lists(
    st.sampled_from([*keyword.kwlist, "=", "(", ")", "[", "]", ",", " ", "'", '"', "\\", "#", "\n", "x", ".", '"""'])
).map("".join)
SCALARS = TEXTS | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
NAMES = st.sampled_from(keyword.kwlist) | st.sampled_from(["to", "x", "print", "match"])


@given(
    st.dictionaries(NAMES, VALUES, min_size=1, max_size=4),
    st.dictionaries(NAMES, VALUES, max_size=3),
    st.sampled_from(["=", " = ", "= "]),
    st.sampled_from(sorted(FORMATS)),
)
def test_argument_values_are_parsed_literally(
    first: dict[str, Any], second: dict[str, Any], equals: str, form: str
) -> None:
    text = FORMATS[form].format(first=written("send", first, equals), second=written("find", second, equals))

    assert read(text, ["send", "find"]) == [("send", first), ("find", second)]


def test_an_object_behind_two_asterisks_holds_arguments() -> None:
    assert read('[transfer(**{"from": "A"}, to="B")]') == [("transfer", {"from": "A", "to": "B"})]


@pytest.mark.parametrize(
    "text",
    ["[f(a=not (1))]", "[f(a=x if True else 2)]", "[f(a=lambda: 1)]", "[f(a==1)]", "[f(a in (1, 2))]", "[f(from)]"],
)
def test_python_expressions_beyond_literals_are_not_calls(text: str) -> None:
    assert read(text) == []
