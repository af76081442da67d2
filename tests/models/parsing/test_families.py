"""Calls in the notations of model families, as their chat templates and the parsers of vLLM and SGLang have them."""

from __future__ import annotations

from typing import Any

import pytest

from graph_agent.calls import read_text_calls
from graph_agent.models.stream_filters import TextCallFilter
from tests.support.written_calls import work_of

A: list[tuple[str, dict[str, Any]]] = [("a", {"x": 1})]
A_AND_B: list[tuple[str, dict[str, Any]]] = [*A, ("b", {})]
HARMONY_CALL = '<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"x": 1}<|call|>'
KIMI_B = '<|open|>call tool="b" index="2"<|sep|><|close|>call<|sep|>'

FAMILIES: dict[str, tuple[str, list[tuple[str, dict[str, Any]]], str]] = {
    "gemma 4": ("<|tool_call>call:a{x:1}<tool_call|><|tool_call>call:b{}<tool_call|>", A_AND_B, ""),
    "gemma 4, nested": (
        'Hm.\n<|tool_call>call:a{x:<|"|>it\'s {1}, "2"<|"|>,y:{z:[<|"|>u<|"|>,2.5,true,null]},w:red car}<tool_call|>',
        [("a", {"x": 'it\'s {1}, "2"', "y": {"z": ["u", 2.5, True, None]}, "w": "red car"})],
        "Hm.",
    ),
    "gemma 4, after thinking": ("<|channel>thought\nHm {x}.<channel|><|tool_call>call:a{x:1}<tool_call|>", A, ""),
    "functiongemma": (
        "<start_function_call>call:a{x:<escape>u, v<escape>,n:3}<end_function_call><start_function_response>",
        [("a", {"x": "u, v", "n": 3})],
        "",
    ),
    "hy3": (
        "<tool_calls>\n<tool_call>a<tool_sep>\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"
        "<tool_call>b<tool_sep>\n</tool_call>\n</tool_calls>",
        A_AND_B,
        "",
    ),
    "hy3, suffix": (
        "<tool_calls:open>\n<tool_call:open>a<tool_sep:open>\n<arg_key:open>x</arg_key:open>\n"
        "<arg_value:open>1</arg_value:open>\n</tool_call:open>\n</tool_calls:open>",
        A,
        "",
    ),
    "gpt-oss": (HARMONY_CALL, A, ""),
    "gpt-oss, after analysis": (
        f'<|channel|>analysis<|message|>Shall I {{"name": "b"}}?<|end|><|start|>assistant{HARMONY_CALL}',
        A,
        "",
    ),
    "gpt-oss, preamble": (
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{HARMONY_CALL}",
        A,
        "I look.",
    ),
    "gpt-oss, recipient first": (
        '<|start|>assistant to=functions.a<|channel|>commentary json<|message|>{"x": 1}<|call|>',
        A,
        "",
    ),
    "gpt-oss, no arguments": ("<|channel|>commentary to=functions.b<|message|><|call|>", [("b", {})], ""),
    "deepseek v4": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="a">\n{ "x": 1 }\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        A,
        "",
    ),
    "dsml, plain bars": (
        '<|DSML|function_calls>\n<|DSML|invoke name="a">\n<|DSML|parameter name="x" string="false">1'
        "</|DSML|parameter>\n</|DSML|invoke>\n</|DSML|function_calls>",
        A,
        "",
    ),
    "dsml, mixed bars": (
        '<｜DSML|invoke name="a"><｜DSML|parameter name="x" string="false">1</｜DSML|parameter></｜DSML|invoke>',
        A,
        "",
    ),
    "kimi k3": (
        "<|open|>response<|sep|>On it.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="a" index="1"<|sep|>'
        '<|open|>argument key="x" type="number"<|sep|>1<|close|>argument<|sep|><|open|>argument key="y" type="string"'
        f"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>{KIMI_B}<|close|>tools<|sep|><|close|>message<|sep|>",
        [("a", {"x": 1, "y": "1"}), ("b", {})],
        "On it.",
    ),
    "kimi k3, json": (
        '<|open|>tools<|sep|><|open|>call tool="a" index="1"<|sep|><|open|>json type="object"<|sep|>{"x": 1}'
        "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        A,
        "",
    ),
    "minimax m3": (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="a">\n]<]minimax[>[<x>1]<]minimax[>[</x>\n'
        "]<]minimax[>[<y>two\nlines]<]minimax[>[</y>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        [("a", {"x": 1, "y": "two\nlines"})],
        "",
    ),
    "apertus": ('<|tools_prefix|>[{"a": {"x": 1}}, {"b": {}}]<|tools_suffix|>', A_AND_B, ""),
    "longcat": ('<longcat_tool_call>{"name": "a", "arguments": {"x": 1}}</longcat_tool_call>', A, ""),
    "minicpm 5": (
        '<function name="a"><param name="x">1</param><param name="y"><![CDATA[u\n<v>]]></param></function>',
        [("a", {"x": 1, "y": "u\n<v>"})],
        "",
    ),
    "step 3": (
        '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="a">\n'
        '<steptml:parameter name="x">1</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>',
        A,
        "",
    ),
    "llama 4": ("<|python_start|>[a(x=1), b()]<|python_end|>", A_AND_B, ""),
    "openpangu": ('[unused11][{"name": "a", "arguments": {"x": 1}}][unused12]', A, ""),
    "gigachat 3": ('Hm.<|message_sep|>\n\n<|function_call|>{"name": "a", "arguments": {"x": 1}}', A, "Hm."),
    "command a": (
        '<|START_THINKING|>Plan.<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": "a", '
        '"parameters": {"x": 1}}]<|END_ACTION|>',
        A,
        "",
    ),
}


@pytest.mark.parametrize("tools", [None, ["a", "b"]], ids=["no names known", "known"])
@pytest.mark.parametrize(("text", "calls", "prose"), list(FAMILIES.values()), ids=list(FAMILIES))
def test_the_call_of_a_family(
    text: str, calls: list[tuple[str, dict[str, Any]]], prose: str, tools: list[str] | None
) -> None:
    read = read_text_calls(text, tools)

    named = [(call["name"].removeprefix("functions."), call["arguments"]) for call in read.calls]
    assert (named, read.prose) == (calls, prose)


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 3.<|return|>",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>It is 3.<|END_RESPONSE|>",
        "<|channel>thought\nHm.<channel|>It is 3.",
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>It is 3.<|close|>response<|sep|>",
    ],
    ids=["gpt-oss", "command a", "gemma 4", "kimi k3"],
)
def test_the_answer_of_a_family_is_the_text_between_its_tokens(text: str) -> None:
    read = read_text_calls(text, ["a"])

    assert (read.calls, read.prose) == ([], "It is 3.")


@pytest.mark.parametrize(("text", "calls", "prose"), list(FAMILIES.values()), ids=list(FAMILIES))
def test_no_part_of_a_familys_call_is_shown_while_it_is_streamed(
    text: str, calls: list[tuple[str, dict[str, Any]]], prose: str
) -> None:
    visibility = TextCallFilter()

    ends = [visibility.part(f"Let me see.\n{text}"[:length])[1] for length in range(len(text) + 13)]

    assert f"Let me see.\n{text}"[: ends[-1]] in ("Let me see.", f"Let me see.\n{prose}")


@pytest.mark.parametrize(
    ("text", "unclosed", "partial"),
    [
        ('<|tool_call>call:a{x:<|"|>All that w', True, True),
        ('<|tool_call>call:a{x:<|"|>All.<|"|>', True, False),
        ('<|channel|>commentary to=functions.a<|message|>{"x": "All th', True, True),
        ('<|open|>call tool="a" index="1"<|sep|><|open|>argument key="x" type="string"<|sep|>All th', True, True),
    ],
    ids=["gemma, in a text", "gemma, no bracket", "gpt-oss", "kimi k3"],
)
def test_a_familys_call_that_was_cut_off_is_marked(text: str, unclosed: bool, partial: bool) -> None:
    read = read_text_calls(text, ["a"])

    assert ([call["name"].removeprefix("functions.") for call in read.calls], read.unclosed, read.partial) == (
        ["a"],
        unclosed,
        partial,
    )


@pytest.mark.timeout(60)  # a quadratic search takes many minutes
@pytest.mark.parametrize(
    "unit",
    [
        *("<|tool_call>call:a{x:", "<|tool_call>call:a{", '<|"|>', "<|channel|>", "<|channel|>analysis<|message|>"),
        *(
            HARMONY_CALL,
            "<|open|>",
            '<|open|>call tool="a"<|sep|>',
            "]<]minimax[>[",
            "]<]minimax[>[<x>",
            "<|channel>thought",
        ),
        *("<tool_call:", "<|start|>assistant", "to=a ", '<|open|>call tool="a"<|sep|><|open|>argument key="x"<|sep|>'),
    ],
)
def test_reading_a_family_takes_linear_time(unit: str) -> None:
    short, long = (work_of(unit * (size // len(unit))) for size in (5_000, 20_000))

    assert long <= 4.5 * short + 150_000
