"""Replies that go on with a result or a turn which the model invents: where they end, and what of them is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_agent.calls import read_text_calls
from graph_agent.models.wire.parsing.turns import ProseEnd
from tests.support.written_calls import ARGUMENTS, TAGGED, work_of

RESULTS = [
    '<tool_result id="call_1" name="a" status="success">\n3\n</tool_result>',
    "<tool_result>3</tool_result>",
    "<tool_response>\n3\n</tool_response>",
    "<function_results>3</function_results>",
    "Observation: 3",
    "OBSERVATION: 3",
    "**Observation:** 3",
    "Tool result (a): 3",
    "Tool output: 3",
    "Function result: 3",
    "[TOOL_RESULTS][3][/TOOL_RESULTS]",
    "```tool_output\n3\n```",
    '{"role": "tool", "content": "3"}',
    '{"results": {"a": 3}}',
    "<|START_TOOL_RESULT|>3",
    "<|tool_response>response:a{value:3}<tool_response|>",
    "<｜tool▁outputs▁begin｜>3",
    "<|start|>functions.a to=assistant<|channel|>commentary<|message|>3<|end|>",
]
TOKENS = [
    "<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant",
    "<|im_start|>user\nAnd now?",
    "<end_of_turn>\n<start_of_turn>user\nAnd now?<end_of_turn>\n<start_of_turn>model",
    "<turn|>\n<|turn>user\nAnd now?",
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd now?",
    "<|eot|><|header_start|>user<|header_end|>\n\nAnd now?",
    "[INST] And now? [/INST]",
    "<|user|>\nAnd now?",
    "<｜User｜>And now?<｜Assistant｜>",
    "<|start_of_role|>user<|end_of_role|>And now?",
    "<|im_user|>user<|im_middle|>And now?",
]
SPEAKERS = ["User: And now?", "Human: And now?", "### User:\nAnd now?", "Question: And now?", "System: Go on."]
FORMS = [
    "[Notice from the agent framework, not from the user: go on.]",
    "While you were working, the user said: go on.",
]
MARKERS = [*RESULTS, *TOKENS, *SPEAKERS, *FORMS]
STRONG = [*RESULTS[:2], *TOKENS, *FORMS, RESULTS[10], *RESULTS[14:]]
NOTATIONS = [
    *TAGGED,
    "{call}",
    "```json\n{call}\n```",
    "<tool_call>\n<function={name}>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>{name}\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    '<function_calls>\n<invoke name="{name}">\n<parameter name="x">1</parameter>\n</invoke>\n</function_calls>',
    "<|tool_call_start|>[{name}(x=1)]<|tool_call_end|>",
    "[{name}(x=1)]",
]
# Prose that opens no fence, tag or bracket and names no turn; quotation marks included.
PROSE = st.text("abc xyz.,!?'\"()*-\n", max_size=40).map(lambda text: text.strip())


def written(notation: str, name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return notation.format(name=name, arguments=json.dumps(arguments, ensure_ascii=False), call=call)


@given(
    PROSE,
    st.lists(st.tuples(st.sampled_from(NOTATIONS), ARGUMENTS), min_size=1, max_size=2),
    st.lists(st.tuples(st.sampled_from(MARKERS), PROSE, st.sampled_from(NOTATIONS)), min_size=1, max_size=3),
)
def test_no_call_behind_an_invented_turn_is_read_and_each_before_it_is(
    prose: str, calls: list[tuple[str, dict[str, Any]]], inventions: list[tuple[str, str, str]]
) -> None:
    real = "\n".join([prose, *(written(notation, "a", arguments) for notation, arguments in calls)])
    invented = "\n".join(
        f"{marker}\n{more}\n{written(notation, 'b', {'x': 1})}" for marker, more, notation in inventions
    )

    read = read_text_calls(f"{real}\n{invented}", ["a", "b"])

    alone = read_text_calls(real, ["a", "b"])
    assert [(call["name"], call["arguments"]) for call in read.calls] == [
        (call["name"], call["arguments"]) for call in alone.calls
    ]
    assert (len(read.calls), read.prose, read.end is not None) == (len(calls), alone.prose, True)


@given(PROSE, st.sampled_from(STRONG), PROSE, st.sampled_from(NOTATIONS))
def test_prose_ends_at_a_token_or_a_form_of_the_framework(prose: str, marker: str, more: str, notation: str) -> None:
    text = f"{prose}\n{marker}\n{more}\n{written(notation, 'b', {'x': 1})}"

    read = read_text_calls(text, ["b"])

    assert (read.calls, read.prose) == ([], prose)


QUOTED = [
    *(f"It is written so:\n```\n{marker}\n```\nThat is all." for marker in MARKERS if "```" not in marker),
    *(f"~~~text\n{marker}\n{marker}\n~~~" for marker in MARKERS),
    *(f"```python\nprint('''\n{marker}\n''')\n```" for marker in MARKERS if "```" not in marker),
    *(f"The marker is `{marker.splitlines()[0]}`, on a line of its own." for marker in MARKERS if "`" not in marker),
    *(f"- {token.splitlines()[0]} begins a turn, and so on." for token in TOKENS),
    *(f'The form is "{marker}" there.' for marker in TOKENS if '"' not in marker),
    *(f"The form is “{marker}” there." for marker in TOKENS),
    *(f"In a log:\n{speaker}\nand so on." for speaker in SPEAKERS),
    "Observation: the sky is blue.\nResult: nothing rains.",
    "<b>User:</b> writes <s>old</s> text.\n[1] A note.\n[INSTRUCTIONS] Read on.",
]


@pytest.mark.parametrize("text", QUOTED)
def test_an_answer_that_quotes_a_marker_stays_whole(text: str) -> None:
    read = read_text_calls(text, ["a"])

    assert (read.calls, read.end, ProseEnd().end(text)) == ([], None, None)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "a", "arguments": {"x": "hi\\nUser: no"}}</tool_call>',
        '{"tool_calls": [{"name": "a", "arguments": {"x": "one\nObservation: two\n<|im_start|>user"}}]}',
        "<function=a><parameter=x>\n<|im_start|>user\nUser: hi\n</parameter></function>",
    ],
)
def test_a_marker_inside_an_argument_belongs_to_it(text: str) -> None:
    read = read_text_calls(text, ["a"])

    assert ([call["name"] for call in read.calls], read.end, read.prose) == (["a"], None, "")


@pytest.mark.parametrize("damaged", ['{"tool_calls": [{"name": "a", "arguments": {"x": 1}}]', '<tool_call>\n{"na'])
@pytest.mark.parametrize("marker", ["<tool_response>3</tool_response>", "Observation: 3", "<|im_start|>user"])
def test_no_call_is_read_behind_the_result_of_a_damaged_one(damaged: str, marker: str) -> None:
    read = read_text_calls(f'{damaged}\n{marker}\n{{"name": "b", "arguments": {{}}}}', ["a", "b"])

    assert ("b" not in [call["name"] for call in read.calls], read.end) == (True, len(damaged))


PIECES = [
    *'`~"“” \n.aW<[',
    "```",
    "User:",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_result ",
    "<think>",
    "</think>",
    "\n\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_a_growing_reply_shows_no_character_that_is_dropped_later(text: str) -> None:
    growing = ProseEnd()
    shown = [growing.before(text[:length]) for length in range(len(text) + 1)]

    end = ProseEnd().end(text)

    whole = len(text) if end is None else end
    # Only the ends of lines before a marker may come and go: a filter of an answer holds these back.
    assert all(not text[whole:at].strip() for at in shown)


@pytest.mark.sampled(5)
@pytest.mark.timeout(60)  # a quadratic search takes many minutes
@pytest.mark.parametrize(
    "unit",
    [
        *(f"\n{marker}" for marker in MARKERS),
        *(f'\n"{token}' for token in TOKENS),
        "\nUser",
        "\n<|im_",
        "\n        ",
        '" ',
    ],
)
@pytest.mark.parametrize("before", ["", '{"name": "a", "arguments": {}}\n```\n', '{"name": "a", "arguments": {"x": "'])
def test_the_search_for_turns_takes_linear_time(before: str, unit: str) -> None:
    short, long = (work_of(before + unit * (size // len(unit))) for size in (5_000, 20_000))

    assert long <= 4.5 * short + 150_000
