"""Properties of the call parser for any text: total, faithful, bounded."""

from __future__ import annotations

import json
import subprocess
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.calls import canonical_arguments, fingerprint, parse_tool_calls, split_tool_calls
from tests.support.warm_process import warm_python
from tests.support.written_calls import ARGUMENTS, TAGGED, work_of

# Fragments with a meaning to the parser, so that texts made of them reach deep into it.
PIECES = [
    *"{}[]\"':,\\`~<>()=#/*-.1a \n\x00\ud800“”",
    *("```", "```json\n", "```python\n", "```tool_call\n", "```delegate\n", "~~~", "//", "/*", "*/", "\\u12", '\\"'),
    *('{"name":', '"a"', '"arguments":', '{"x":1}', '{"name":"a","arguments":{}}', '{"tool_calls":[', "'x'", "true"),
    *("<tool_call>", "</tool_call>", "<function=a>", "</function>", "<parameter=x>", "</parameter>", "<think>"),
    *("</think>", '<invoke name="a">', "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "functools[", "a(x=1)", "[a("),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    *("<|tool_call_begin|>", "functions.a:0", "<|tool_call_argument_begin|>", "<|tool_call|>", "<tool_response>"),
    *("<arg_key>x</arg_key>", "<arg_value>", "</arg_value>", '{"agent":"a","task":"b"}', "x = ", "<|action_start|>"),
]
SOUP = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
TOOLS = st.none() | st.just(["a", "b"])

CALLS = st.lists(st.tuples(st.text(min_size=1), ARGUMENTS), min_size=1, max_size=4)
# Prose that opens nothing by itself: fences and tags of its own may well swallow what follows them.
PROSE = st.text(st.characters(exclude_characters="`~<[{◁", exclude_categories=["Cs"]))
TAG_NAME = st.from_regex(r"[a-z_][a-z0-9_]{0,8}(\.[a-z_]{1,8})?", fullmatch=True)


def read(text: str, tools: list[str] | None = None) -> list[tuple[str, dict[str, Any]]]:
    return [(call["name"], call["arguments"]) for call in parse_tool_calls(text, tools)]


@given(st.text(st.characters()) | SOUP, TOOLS)
def test_parsing_never_raises_and_returns_complete_calls(text: str, tools: list[str] | None) -> None:
    calls, prose = split_tool_calls(text, tools)

    whole = [set(call) == {"id", "name", "arguments"} and type(call["arguments"]) is dict for call in calls]
    assert (whole, len({call["id"] for call in calls}), prose) == ([True] * len(calls), len(calls), prose.strip())


# The interpreter's limits: recursion in its JSON reader and its parser, digits of an integer.
DEEP = {
    "brackets": "[" * 100_000,
    "closed brackets": '[{"name":' + "[" * 50_000 + "]" * 50_000 + "}]",
    "objects": '{"name":' * 100_000,
    "arguments": '<tool_call>{"name": "a", "arguments": ' + "[" * 100_000,
    "arguments as text": '{"name": "a", "arguments": "' + '{\\"a\\":' * 10_000 + '"}',
    "parameter": "<function=a><parameter=x>" + "[" * 100_000,
    "parentheses": "[a(x=" + "(" * 10_000 + ")" * 10_000 + ")]",
    "attributes": "[a" + ".b" * 40_000 + "(x=1)]",
    "sum": "[a(x=1" + "+1" * 40_000 + ")]",
    "negations": "[a(x=" + "-" * 40_000 + "1)]",
    "digits": '{"name": "a", "arguments": {"x": ' + "9" * 10_000 + "}}",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", list(DEEP.values()), ids=list(DEEP))
def test_interpreter_limits_do_not_raise(text: str) -> None:
    names = {call["name"] for call in parse_tool_calls(text, ["a"])}

    assert names <= {"a"}


@given(st.text(st.characters()) | SOUP, TOOLS)
def test_parsing_is_the_first_half_of_splitting(text: str, tools: list[str] | None) -> None:
    assert read(text, tools) == [(call["name"], call["arguments"]) for call in split_tool_calls(text, tools)[0]]


@given(PROSE, CALLS, PROSE, st.none() | st.just(["other"]), st.booleans())
def test_the_unified_format_round_trips(
    before: str, calls: list[tuple[str, dict[str, Any]]], after: str, tools: list[str] | None, fenced: bool
) -> None:
    envelope = json.dumps({"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]})
    text = f"{before}\n```json\n{envelope}\n```\n{after}" if fenced else f"{before}{envelope}{after}"

    assert read(text, tools) == calls


@given(st.sampled_from(TAGGED), TAG_NAME, ARGUMENTS, PROSE, PROSE)
def test_a_tagged_call_is_parsed_and_removed_from_the_prose(
    form: str, name: str, arguments: dict[str, Any], before: str, after: str
) -> None:
    written = json.dumps(arguments, ensure_ascii=False)
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    text = f"{before}\n" + form.format(name=name, arguments=written, call=call) + f"\n{after}"

    calls, prose = split_tool_calls(text)

    assert ([(c["name"], c["arguments"]) for c in calls], read(prose)) == ([(name, arguments)], [])


@given(ARGUMENTS)
def test_canonical_arguments_are_read_back_to_themselves(arguments: dict[str, Any]) -> None:
    once = canonical_arguments(arguments)

    assert canonical_arguments(json.loads(once)) == once == canonical_arguments(once)


@given(st.text(min_size=1), ARGUMENTS)
def test_equal_calls_have_equal_fingerprints(name: str, arguments: dict[str, Any]) -> None:
    backwards = dict(reversed(arguments.items()))

    assert fingerprint({"id": "1", "name": name, "arguments": arguments}) == fingerprint(
        {"id": "2", "name": name, "arguments": backwards}
    )


ADVERSARIAL = [
    *(
        "{",
        "[",
        '"',
        "\\",
        "{ ",
        '{"',
        "{'",
        "{/*",
        "{//",
        "[{",
        "[[1,",
        "}",
        '{"a":',
        '{"name":',
        '{"name',
        "[f(",
        "[f(x=1",
    ),
    *("```", "``` ", "```json\n{", "```python\n", "```tool_call\n", "~~~\n", "<think>", "x<think>", "</think>", "`{"),
    *("<tool_call>", "<tool_call>{", '<tool_call>{"name":"a"', "<tool_call>f(", "<function=a>", "[TOOL_CALLS]a{"),
    *("<function=a><parameter=x>", "<tool_call>a<arg_key>x</arg_key><arg_value>", '<invoke name="a">', "functools["),
    *('{"name":"a","arguments":', '{"name":"a","arguments":{}', '{"name":"a",}', "{'name':'a'", '{"name": "x" "'),
    *(
        '{"tool_calls":[',
        '{"tool_calls":"[',
        '{"name":"a","arguments":"{',
        '{"name":"a","arguments":{"x":"\\"',
        "name{}",
    ),
    *("<｜tool▁call▁begin｜>", "{“name”:", "[a(x=1)]", " ", "\n"),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("unit", ADVERSARIAL)
def test_work_grows_no_faster_than_the_text(unit: str) -> None:
    short, long = (work_of(unit * (size // len(unit))) for size in (5_000, 20_000))

    # The constant is the floor that every text may use, however short.
    assert long <= 4.5 * short + 150_000


def test_no_text_hangs_the_parser() -> None:
    """Work that counting misses, such as a backtracking pattern, would take hours here, not the allowed seconds."""
    script = """
        import json, sys
        from graph_agent.calls import parse_tool_calls
        for unit in json.load(sys.stdin):
            parse_tool_calls(unit * (50_000 // len(unit)), ["a"])
        print("done")
    """

    done = subprocess.run(
        [warm_python(), "-c", textwrap.dedent(script)],
        input=json.dumps(ADVERSARIAL),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("done\n", "")
