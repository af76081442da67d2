"""A call with a number that is not finite is an error result: it never runs, with that number or with null."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from pydantic import BaseModel

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.calls import parse_tool_calls
from tests.support.agents import says
from tests.support.wave_helpers import plan, use

FAULT = "The arguments cannot be used: a number is NaN, infinite or out of range; send a finite one."
HUGE = "9" * 5_000
JSON_NUMBERS = ["1e999", "-1e400", "NaN", "Infinity", "-Infinity", HUGE]
PYTHON_NUMBERS = [*JSON_NUMBERS, "nan", "-inf", "float('nan')", "float('-inf')", "math.inf", "np.nan"]
JSON_FORMATS = {
    "bare object": '{{"name": "take", "arguments": {{"x": {value}}}}}',
    "envelope": '{{"tool_calls": [{{"name": "take", "arguments": {{"x": {value}}}}}]}}',
    "damaged": "{{name: 'take', arguments: {{x: {value},}}",
    "fence": '```tool_call\n{{"name": "take", "arguments": {{"x": {value}}}}}\n```',
    "hermes": '<tool_call>{{"name": "take", "arguments": {{"x": {value}}}}}</tool_call>',
    "hermes, name first": '<tool_call>take\n{{"x": {value}}}</tool_call>',
    "llama": '<function=take>{{"x": {value}}}</function>',
    "mistral": '[TOOL_CALLS]take[ARGS]{{"x": {value}}}',
    "python_tag": '<|python_tag|>{{"name": "take", "parameters": {{"x": {value}}}}}<|eom_id|>',
    "qwen3-coder": "<tool_call><function=take><parameter=x>{value}</parameter></function></tool_call>",
    "glm": "<tool_call>take\n<arg_key>x</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>",
}
PYTHON_FORMATS = {
    "pythonic": "[take(x={value})]",
    "tool_code": "```tool_code\nprint(default_api.take(x={value}))\n```",
    "lfm2": "<|tool_call_start|>[take(x={value})]<|tool_call_end|>",
    "olmo": "<function_calls>\ntake(x={value})\n</function_calls>",
}


class Point(BaseModel):
    at: float = 0


class Taking:
    """An agent with tools of several types, which record their arguments."""

    def __init__(self) -> None:
        self.took: list[Any] = []

    def tools(self) -> list[BaseTool]:
        @tool
        async def take(x: Any) -> str:
            """Take anything."""
            self.took.append(x)
            return "taken"

        @tool
        def measure(x: float, points: list[Point] | None = None) -> str:
            """Take a number."""
            self.took.append((x, points))
            return "measured"

        @tool
        async def repeat(x: str) -> str:
            """Take a text, and return it."""
            self.took.append(x)
            return x

        schema = {"type": "object", "properties": {"x": {}}, "title": "give", "description": "Take anything."}

        async def give(**arguments: Any) -> str:
            self.took.append(arguments)
            return "given"

        return [
            take,
            measure,
            repeat,
            StructuredTool(name="give", description="Give.", args_schema=schema, coroutine=give),
        ]

    async def results(self, reply: Any, mode: Any = "native") -> list[tuple[str, str]]:
        """Each result's status and text, in call order."""
        script = [reply, '{"status": "done"}' if mode == "wave" else "No more actions.", "Done."]
        config = LoopConfig(tool_calling=mode, finalize="compose")
        graph = create_graph_agent(ScriptedChatModel(script), tools=self.tools(), config=config)
        result = await graph.ainvoke(says("go"))
        assert result["status"] == "COMPLETED"
        return [(m.status, m.text) for m in result["messages"] if isinstance(m, ToolMessage)]


@pytest.mark.parametrize("nested", ["{value}", "[1, {value}]", "[{{'a': [{value}]}}]"], ids=["bare", "list", "deep"])
@pytest.mark.parametrize(
    ("form", "value"),
    [
        *((form, value) for form in JSON_FORMATS.values() for value in ("1e999", "NaN")),
        *((form, value) for form in PYTHON_FORMATS.values() for value in ("1e999", "float('nan')")),
    ],
)
async def test_a_text_call_with_a_non_json_number_does_not_run(form: str, value: str, nested: str) -> None:
    taking = Taking()
    inner = nested.format(value=value)
    if form in JSON_FORMATS.values():
        inner = inner.replace("'", '"')
    if "<parameter" in form or "<arg_value" in form:
        # By itself it is a text there, which the schema of `measure` reads as a number.
        form = form if nested != "{value}" else form.replace("take", "measure")

    ((status, text),) = await taking.results(form.format(value=inner), "text")

    assert (taking.took, status, "finite" in text) == ([], "error", True)


@pytest.mark.parametrize("value", JSON_NUMBERS, ids=lambda value: value[:10])
@pytest.mark.parametrize("form", JSON_FORMATS.values(), ids=JSON_FORMATS)
def test_no_number_of_json_is_read_as_null(form: str, value: str) -> None:
    (call,) = parse_tool_calls(form.format(value=f"[{value}]"), ["take"])

    ((number,),) = call["arguments"].values()
    assert not math.isfinite(number)


@pytest.mark.parametrize("value", PYTHON_NUMBERS, ids=lambda value: value[:12])
@pytest.mark.parametrize("form", PYTHON_FORMATS.values(), ids=PYTHON_FORMATS)
def test_no_number_of_python_is_lost(form: str, value: str) -> None:
    (call,) = parse_tool_calls(form.format(value=f"{{'a': {value}}}"), ["take"])

    assert not math.isfinite(call["arguments"]["x"]["a"])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_a_call_with_a_non_json_number_does_not_run_but_its_siblings_do(number: float) -> None:
    taking = Taking()
    calls: list[Any] = [
        {"id": "1", "name": "take", "args": {"x": {"deep": [[number]]}}},
        {"id": "2", "name": "take", "args": {"x": 1.5}},
        {"id": "3", "name": "give", "args": {"x": number}},
    ]

    results = await taking.results(AIMessage("", tool_calls=calls))

    assert (taking.took, results) == ([1.5], [("error", FAULT), ("success", "taken"), ("error", FAULT)])


@pytest.mark.parametrize("raw", ['{"x": NaN,}', "{x: 1e999,", '{"x": [-Infinity]', f'{{"x": {HUGE}}}'])
async def test_unparsed_client_arguments_are_repaired_where_possible(raw: str) -> None:
    taking = Taking()
    broken: list[Any] = [{"id": "1", "name": "take", "args": raw, "error": "no JSON", "type": "invalid_tool_call"}]

    results = await taking.results(AIMessage("", invalid_tool_calls=broken))

    assert (taking.took, results) == ([], [("error", FAULT)])


async def _in_a_plan(made: Callable[[str], Any]) -> tuple[list[Any], list[tuple[str, str]]]:
    taking = Taking()
    text = plan(
        use("a", "take", x="BAD"), use("b", "take", x=2), use("c", "take", x="${a}"), use("d", "take", x="${b}")
    ).replace('"BAD"', "[1e999, NaN]")
    return taking.took, await taking.results(made(text), "wave")


@pytest.mark.parametrize(
    "made",
    [
        str,
        lambda text: AIMessage("", tool_calls=[{"id": "p", "name": "make_plan", "args": json.loads(text)}]),
        lambda text: text[:-1] + ",}",
    ],
    ids=["text", "tool", "damaged"],
)
async def test_a_planned_call_with_a_non_json_number_does_not_run_but_the_others_do(made: Callable[[str], Any]) -> None:
    took, results = await _in_a_plan(made)

    lost = "Not run: it needs 'a', which failed or was not run."
    assert (took, results) == (
        [2, "taken"],
        [("error", FAULT), ("success", "taken"), ("error", lost), ("success", "taken")],
    )


async def test_calls_in_the_place_of_a_plan_are_checked_too() -> None:
    taking = Taking()
    calls: list[Any] = [
        {"id": "1", "name": "take", "args": {"x": math.inf}},
        {"id": "2", "name": "take", "args": {"x": 2}},
    ]

    results = await taking.results(AIMessage("", tool_calls=calls), "wave")

    assert (taking.took, results) == ([2], [("error", FAULT), ("success", "taken")])


async def test_a_reference_to_a_non_json_number_skips_its_call_but_one_to_text_runs() -> None:
    taking = Taking()
    text = plan(use("a", "repeat", x='{"v": [NaN]}'), use("b", "take", x="${a}"), use("c", "give", x="${a.v}"))

    results = await taking.results(text, "wave")

    output = '{"v": [NaN]}'
    why = f"Not run: ${{a.v}}: a has no 'v'; it is the str {output}."
    assert (taking.took, results) == ([output, output], [("success", output), ("success", "taken"), ("error", why)])


@pytest.mark.parametrize("word", ["NaN", "Infinity", "1e999", "-inf"])
async def test_text_coerced_to_a_non_json_number_does_not_run(word: str) -> None:
    taking = Taking()
    calls: list[Any] = [
        {"id": "1", "name": "measure", "args": {"x": word}},
        {"id": "2", "name": "measure", "args": {"x": 1, "points": [{"at": word}]}},
        {"id": "3", "name": "repeat", "args": {"x": word}},
        {"id": "4", "name": "take", "args": {"x": word}},
    ]

    results = await taking.results(AIMessage("", tool_calls=calls))

    def unfit(name: str, given: Any) -> tuple[str, str]:
        why = f"{name} must be finite, and was given as {given!r}. Send a finite number."
        return "error", f"The arguments do not fit the tool 'measure': {why}"

    assert (sorted(taking.took), results) == (
        [word, word],
        [unfit("x", word), unfit("points", [{"at": word}]), ("success", word), ("success", "taken")],
    )


NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf])
NESTED = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(st.lists(st.integers(), max_size=2), inner).map(lambda pair: [*pair[0], pair[1]]),
        st.tuples(st.text("ab", max_size=2), inner).map(lambda pair: {"k": 1, pair[0]: pair[1]}),
    ),
    max_leaves=8,
)


@given(NESTED, st.sampled_from(sorted(JSON_FORMATS.values())))
def test_nested_non_json_numbers_are_preserved(value: Any, form: str) -> None:
    (call,) = parse_tool_calls(form.format(value=json.dumps([value])), ["take"])

    assert repr(call["arguments"]["x"]) == repr([value])
