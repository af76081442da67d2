"""Calls parsed from model output, one published or observed format a row."""

from __future__ import annotations

import math
from typing import Any

import pytest

from graph_agent.calls import split_tool_calls

Row = tuple[str, list[tuple[str, dict[str, Any]]], str]

A: list[tuple[str, dict[str, Any]]] = [("a", {"x": 1})]
A_AND_B: list[tuple[str, dict[str, Any]]] = [("a", {"x": 1}), ("b", {})]
HOLIDAY: list[tuple[str, dict[str, Any]]] = [("calendar.resolve_holiday", {"name": "Hanukkah"})]
OBJECT = '{"name": "a", "arguments": {"x": 1}}'
OBJECT_B = '{"name": "b", "arguments": {}}'
HOLIDAY_ARGUMENTS = '{"name": "Hanukkah"}'

# Each is a call whatever the known names are: tags, call fences and the envelope.
TRUSTED: dict[str, Row] = {
    "envelope": (f'{{"tool_calls": [{OBJECT}, {OBJECT_B}]}}', A_AND_B, ""),
    "envelope in prose": (f'I look.\n{{"tool_calls": [{OBJECT}]}}\nWait.', A, "I look.\n\nWait."),
    "envelope of one": (f'{{"tool_calls": {OBJECT}}}', A, ""),
    "envelope as a string": ('{"tool_calls": "[{\\"name\\": \\"a\\", \\"arguments\\": {\\"x\\": 1}}]"}', A, ""),
    "envelope without calls": ('Done. {"tool_calls": []}', [], "Done."),
    "whole message": (f'{{"role": "assistant", "content": "Hm.", "tool_calls": [{OBJECT}]}}', A, "Hm."),
    "openai": (
        '{"tool_calls": [{"id": "1", "type": "function", "function": {"name": "a", "arguments": "{\\"x\\": 1}"}}]}',
        A,
        "",
    ),
    "envelope without arguments": ('{"tool_calls": [{"name": "b"}]}', [("b", {})], ""),
    "delegation in an envelope": (
        '{"tool_calls": [{"name": "delegate_to_r", "arguments": {"task": "t"}}]}',
        [("delegate_to_r", {"task": "t"})],
        "",
    ),
    "delegate fence": ('Ok\n```delegate\n{"agent": "r", "task": "t"}\n```', [("delegate_to_r", {"task": "t"})], "Ok"),
    "tool_call fence": (f"```tool_call\n{OBJECT}\n{OBJECT_B}\n```", A_AND_B, ""),
    "gemma tool_code, its api named": ("```tool_code\nprint(default_api.a(x=1))\n```", A, ""),
    "gemma tool_code": ("```tool_code\nprint(a(x=1))\n```", A, ""),
    "hermes": (f"Hm.\n<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>{OBJECT_B}</tool_call>", A_AND_B, "Hm."),
    "hermes with a fence inside": (f"<tool_call>\n```json\n{OBJECT}\n```\n</tool_call>", A, ""),
    "hermes, brace missing": ('<tool_call>{"name": "a", "arguments": {"x": 1}</tool_call> ok', A, "ok"),
    "hermes, brace too many": (f"<tool_call>{OBJECT}}}\n</tool_call>", A, ""),
    "hermes, quote missing": (
        '<tool_call>{"name": "a", "arguments": {"x": "1}}</tool_call> "ok"',
        [("a", {"x": "1"})],
        '"ok"',
    ),
    "hermes, not closed": (f"<tool_call>{OBJECT}", A, ""),
    "hermes, arguments beside the name": ('<tool_call>{"name": "a", "x": 1}</tool_call>', A, ""),
    "tag inside an argument": (
        '<tool_call>{"name": "a", "arguments": {"x": "</tool_call>"}}</tool_call>',
        [("a", {"x": "</tool_call>"})],
        "",
    ),
    "tags in a fence": (f"```\n<tool_call>{OBJECT}</tool_call>\n<tool_call>{OBJECT_B}</tool_call>\n```", A_AND_B, ""),
    "name, then object": (f"<tool_call>calendar.resolve_holiday\n{HOLIDAY_ARGUMENTS}</tool_call>", HOLIDAY, ""),
    "qwen3-coder": (
        "<tool_call>\n<function=a.b>\n<parameter=t>\nl1\nl2\n</parameter>\n<parameter=n>\n5\n</parameter>\n"
        "<parameter=v>1.10</parameter>\n</function>\n</tool_call>",
        [("a.b", {"t": "l1\nl2", "n": 5, "v": "1.10"})],
        "",
    ),
    "qwen3-coder, tags missing": ("<function=a>\n<parameter=x>\n1\n</function>\n</tool_call>", A, ""),
    "glm": (
        "<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>y</arg_key>\n<arg_value>z</arg_value>"
        "\n</tool_call>",
        [("a", {"x": 1, "y": "z"})],
        "",
    ),
    "glm without arguments": ("<tool_call>b</tool_call>", [("b", {})], ""),
    "hunyuan": (f"<tool_calls>[{OBJECT}]</tool_calls>", A, ""),
    "minimax m1": (f"<tool_calls>\n{OBJECT}\n{OBJECT_B}\n</tool_calls>", A_AND_B, ""),
    "nemotron": (f"<TOOLCALL>[{OBJECT}]</TOOLCALL>", A, ""),
    "mistral list": (f"[TOOL_CALLS] [{OBJECT}, {OBJECT_B}]", A_AND_B, ""),
    "mistral names": ('[TOOL_CALLS]a{"x": 1}[TOOL_CALLS]b{}', A_AND_B, ""),
    "mistral args": (f"Hm[TOOL_CALLS]calendar.resolve_holiday[ARGS]{HOLIDAY_ARGUMENTS}", HOLIDAY, "Hm"),
    "llama python_tag": (
        '<|python_tag|>{"name": "a", "parameters": {"x": 1}}; ' + OBJECT_B + "<|eom_id|>",
        A_AND_B,
        "",
    ),
    "llama built-in": ('<|python_tag|>brave_search.call(query="q")', [("brave_search", {"query": "q"})], ""),
    "llama function": (f"<function=calendar.resolve_holiday>{HOLIDAY_ARGUMENTS}</function>", HOLIDAY, ""),
    "llama function, bracket missing": ('<function=a{"x": 1}</function>', A, ""),
    "deepseek v3": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n{"x": 1}\n```'
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>b\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        "<｜end▁of▁sentence｜>",
        A_AND_B,
        "",
    ),
    "deepseek v3.1": (
        f"Hm<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>calendar.resolve_holiday<｜tool▁sep｜>{HOLIDAY_ARGUMENTS}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        HOLIDAY,
        "Hm",
    ),
    "deepseek r1, one begin": (
        '<｜tool▁calls▁begin｜>function<｜tool▁sep｜>a\n```json\n{"x": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        A,
        "",
    ),
    "deepseek v3.2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="a">\n'
        '<｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="y" string="true">1</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [("a", {"x": 1, "y": "1"})],
        "",
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.calendar.resolve_holiday:0"
        f"<|tool_call_argument_begin|>{HOLIDAY_ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
        HOLIDAY,
        "",
    ),
    "granite": (f"<|tool_call|>[{OBJECT}]", A, ""),
    "granite 20b": (f"<function_call> {OBJECT} <function_call> {OBJECT_B}", A_AND_B, ""),
    "phi": (f"<|tool_call|>[{OBJECT}]<|/tool_call|>", A, ""),
    "phi functools": (f"functools[{OBJECT}]", A, ""),
    "lfm": ("<|tool_call_start|>[a(x=1), b()]<|tool_call_end|>Hm", A_AND_B, "Hm"),
    "olmo": ("<function_calls>\na(x=1)\nb()\n</function_calls>", A_AND_B, ""),
    "internlm": (f"<|action_start|><|plugin|>\n{OBJECT}<|action_end|>", A, ""),
    "command r7b": ('<|START_ACTION|>[{"tool_name": "a", "parameters": {"x": 1}}]<|END_ACTION|>', A, ""),
    "anthropic": (
        '<function_calls>\n<invoke name="a">\n<parameter name="x">1</parameter>\n</invoke>\n'
        '<invoke name="b">\n</invoke>\n</function_calls>',
        A_AND_B,
        "",
    ),
    "minimax m2": (
        '<minimax:tool_call><invoke name="a"><parameter name="x">1</parameter></invoke></minimax:tool_call>',
        A,
        "",
    ),
    "after reasoning": (f"<think>{OBJECT_B}</think><tool_call>{OBJECT}</tool_call>", A, f"<think>{OBJECT_B}</think>"),
    "after an open bracket": (f'see [ {{ f( {{"tool_calls": [{OBJECT}]}}', A, "see [ { f("),
    "after many brackets": ("[" * 2_000 + f'{{"tool_calls": [{OBJECT}]}}', A, "[" * 2_000),
}

# Each is a call when its name is known, and text when it is not.
BARE: dict[str, Row] = {
    "object": (OBJECT, A, ""),
    "in prose": (f"I look: {OBJECT}\nWait.", A, "I look: \nWait."),
    "list": (f"[{OBJECT}, {OBJECT_B}]", A_AND_B, ""),
    "two objects": (f"{OBJECT}\n{OBJECT_B}", A_AND_B, ""),
    "json fence": (f"Ok\n```json\n{OBJECT}\n```\nWait.", A, "Ok\n\nWait."),
    "json fence on one line": (f"```json {OBJECT}```", A, ""),
    "fence without a tag": (f"```\n{OBJECT}\n```", A, ""),
    "tilde fence": (f"~~~\n{OBJECT}\n~~~", A, ""),
    "backticks around it all": (f"`{OBJECT}`", A, ""),
    "tool and args": ('{"tool": "a", "args": {"x": 1}}', A, ""),
    "function": ('{"function": "a", "arguments": {"x": 1}}', A, ""),
    "parameters": ('{"type": "function", "name": "a", "parameters": {"x": 1}}', A, ""),
    "input": ('{"type": "tool_use", "id": "t1", "name": "a", "input": {"x": 1}}', A, ""),
    "action": ('{"action": "a", "action_input": {"x": 1}}', A, ""),
    "wrapped": ('{"function_call": {"name": "a", "arguments": "{\\"x\\": 1}"}}', A, ""),
    "tool_uses": ('{"tool_uses": [{"recipient_name": "functions.a", "parameters": {"x": 1}}]}', A, ""),
    "arguments null": ('{"name": "b", "arguments": null}', [("b", {})], ""),
    "pythonic": (
        '[a(x=1), c.d(e="f", g=[true, None, -2.5], h={"i": 1})]',
        [("a", {"x": 1}), ("c.d", {"e": "f", "g": [True, None, -2.5], "h": {"i": 1}})],
        "",
    ),
    "trailing commas": ('{"name": "a", "arguments": {"x": 1,},}', A, ""),
    "missing comma": ('{"name": "a" "arguments": {"x": 1}}', A, ""),
    "single quotes": (
        "{'name': 'a', 'arguments': {'x': 'it\\'s', 'y': 'it's'}}",
        [("a", {"x": "it's", "y": "it's"})],
        "",
    ),
    "comments and bare keys": ('{\n  // the call\n  name: "a", # here\n  arguments: {x: 1} /* end */\n}', A, ""),
    "python literals": ('{"name": "a", "arguments": {"x": None, "y": True}}', [("a", {"x": None, "y": True})], ""),
    "raw newline": ('{"name": "a", "arguments": {"x": "l1\nl2"}}', [("a", {"x": "l1\nl2"})], ""),
    "invalid escape": ('{"name": "a", "arguments": {"x": "C:\\dir"}}', [("a", {"x": "C:\\dir"})], ""),
    "inner quotes": ('{"name": "a", "arguments": {"x": "he said "hi" to"}}', [("a", {"x": 'he said "hi" to'})], ""),
    "typographic quotes": ("{“name”: “a”, “arguments”: {“x”: 1}}", A, ""),
    "bracket missing inside": ('{"name": "a", "arguments": {"x": [1, 2}}', [("a", {"x": [1, 2]})], ""),
    "brace missing, prose after": ('{"name": "a", "arguments": {"x": 1}\n\nThat is all.', A, "That is all."),
    "cut in a string": ('{"name": "a", "arguments": {"x": "hel', [("a", {"x": "hel"})], ""),
    "cut after a number": ('{"name": "a", "arguments": {"x": 1', A, ""),
    "cut before a value": ('{"name": "a", "arguments": {"x": 1, "y":', A, ""),
    "cut in a fence": ('```json\n{"name": "a", "arguments": {"x": 1\n```\nOk', A, "Ok"),
    "out of range": (
        '{"name": "a", "arguments": {"x": 1e999, "y": [-1e400, Infinity]}}',
        [("a", {"x": math.inf, "y": [-math.inf, math.inf]})],
        "",
    ),
    "damaged, out of range": (
        "{name: 'a', arguments: {x: -Infinity, y: 1e999,}}",
        [("a", {"x": -math.inf, "y": math.inf})],
        "",
    ),
}


def read(text: str, tools: list[str] | None) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    calls, prose = split_tool_calls(text, tools)
    return [(call["name"], call["arguments"]) for call in calls], prose


def rows(table: dict[str, Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("text", "calls", "prose"), list(table.values()), ids=list(table))


@pytest.mark.parametrize("tools", [None, ["other"]], ids=["no names known", "name not known"])
@rows(TRUSTED)
def test_a_tag_or_envelope_is_a_call_whatever_its_name(
    text: str, calls: list[tuple[str, dict[str, Any]]], prose: str, tools: list[str] | None
) -> None:
    assert read(text, tools) == (calls, prose)


@rows(BARE)
def test_a_bare_value_is_a_call_when_its_name_is_known(
    text: str, calls: list[tuple[str, dict[str, Any]]], prose: str
) -> None:
    assert read(text, ["a", "b", "c.d"]) == (calls, prose)


@rows(BARE)
def test_a_bare_value_is_a_call_when_no_names_are_known(
    text: str, calls: list[tuple[str, dict[str, Any]]], prose: str
) -> None:
    assert read(text, None) == (calls, prose)


@rows(BARE)
def test_a_bare_value_is_text_when_its_name_is_not_known(
    text: str, calls: list[tuple[str, dict[str, Any]]], prose: str
) -> None:
    assert read(text, ["other"]) == ([], text.strip())
