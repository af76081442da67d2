"""Text that is not a call, and the id, canonical arguments and fingerprint of each call."""

from __future__ import annotations

from typing import Any

import pytest

from graph_agent.calls import Call, canonical_arguments, fingerprint, new_call_id, parse_tool_calls, split_tool_calls

OBJECT = '{"name": "search", "arguments": {"q": "x"}}'
ENVELOPE = f'{{"tool_calls": [{OBJECT}]}}'

NO_CALL: dict[str, str] = {
    "nothing": "",
    "prose": "No more actions.",
    "python block": f"```python\ntool_calls = [{OBJECT}]\n[search(q=1)]\n{ENVELOPE}\n```",
    "python block, cut": f"Like so:\n```python\nrun({OBJECT})",
    "bash block": f"```bash\ncurl -d '{ENVELOPE}' localhost\n```",
    "code on one line": f"```js run({OBJECT})```",
    "assignment": f"payload = {OBJECT}",
    "argument of a function": f"You write json.dumps({OBJECT}) for that.",
    "inline code": f"A call looks like `{OBJECT}` here.",
    "package.json": '{"name": "search", "version": "1.0.0", "scripts": {"test": "x"}, "dependencies": {}}',
    "json schema": '{"$schema": "x", "name": "search", "type": "object", "properties": {"q": {"type": "string"}}}',
    "tool definition": '{"name": "search", "description": "Searches.", "parameters": {"q": "string"}}',
    "openai tool definition": '{"type": "function", "function": {"name": "search", "description": "Searches.",'
    ' "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}',
    "undescribed definition": '{"name": "search", "parameters": {"type": "object", "properties": {"q": {}}}}',
    "record of a call": '{"name": "search", "arguments": {"q": "x"}, "result": "found"}',
    "call inside data": f'{{"example": {OBJECT}}}',
    "call inside a list of data": f"[1, {OBJECT}]",
    "call inside data that was cut": f'{{"examples": [{OBJECT}, ',
    "data": '{"rooms": [{"name": "Blue", "price": 10}], "nights": 2}',
    "number": "42",
    "list of text": '["search", "echo"]',
    "markdown": "- [ ] search (q)\n- [x] [search](http://x)\n",
    "empty object": "{}",
    "empty list": "[]",
    "reasoning": f"<think>I could call {ENVELOPE}.</think>Done.",
    "reasoning, cut": f"<think>\nI could call {ENVELOPE}.",
    "reasoning opened in the prompt": f"I could call {ENVELOPE}.</think>Done.",
    "mistral reasoning": f"[THINK]{ENVELOPE}[/THINK]Done.",
    "made-up tool answer": f"<tool_response>{OBJECT}</tool_response>",
    "word about a tag": "The tag <tool_call> opens a call, and </tool_call> closes it.",
    "word about a function tag": "Models write <function=search> for that.",
    "llama code interpreter": "<|python_tag|>import os\nprint(os.name)",
    "tag with data": '<tool_call>{"q": 1}</tool_call>',
    "envelope with data": '{"tool_calls": 3}',
    "react answer": '{"action": "Final Answer", "action_input": "It rains."}',
}


@pytest.mark.parametrize("tools", [None, ["search", "echo"]], ids=["no names known", "name known"])
@pytest.mark.parametrize("text", list(NO_CALL.values()), ids=list(NO_CALL))
def test_prose_without_a_call_has_no_calls(text: str, tools: list[str] | None) -> None:
    assert split_tool_calls(text, tools) == ([], text.strip())


@pytest.mark.parametrize(
    ("text", "known", "unknown"),
    [
        ('{"name": "search"}', ["search"], []),
        ('{"name": "search", "arguments": "x"}', ["search"], []),
        ('{"name": "search", "priority": 1, "arguments": {}}', ["search"], []),
        ('{"agent": "researcher", "task": "x"}', ["delegate_to_researcher"], []),
        ("I use [search(q=1)] for it.", ["search"], []),
        (f'[{OBJECT}, {{"name": "gone", "arguments": {{}}}}]', ["search"], ["search", "gone"]),
        ("[search(q=1), gone()]", ["search"], ["search", "gone"]),
        ('{"name": "functions.search", "arguments": {}}', ["search"], ["functions.search"]),
        ('{"name": "John Smith", "arguments": {}}', [], []),
        ('{"tool_calls": [{"name": " search "}]}', ["search"], [" search "]),
    ],
)
def test_known_names_decide_what_is_ambiguous(text: str, known: list[str], unknown: list[str]) -> None:
    with_names = parse_tool_calls(text, ["search", "delegate_to_researcher"])
    without = parse_tool_calls(text)

    assert ([call["name"] for call in with_names], [call["name"] for call in without]) == (known, unknown)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"x": 1}', {"x": 1}),
        ('"{\\"x\\": 1}"', {"x": 1}),
        ('"{\\"x\\": 1,}"', {"x": 1}),
        ('""', {}),
        ("null", {}),
        ('"weather"', {"input": "weather"}),
        ("[1]", {"input": [1]}),
        ("3", {"input": 3}),
    ],
)
def test_arguments_are_always_an_object(arguments: str, expected: dict[str, Any]) -> None:
    calls = parse_tool_calls(f'{{"tool_calls": [{{"id": "1", "name": "a", "arguments": {arguments}}}]}}')

    assert calls == [{"id": "1", "name": "a", "arguments": expected}]


def test_valid_ids_are_kept() -> None:
    ids = ['"x"', '"x"', '""', "7", '"y"']
    text = ", ".join(f'{{"id": {call_id}, "name": "a", "arguments": {{}}}}' for call_id in ids)

    got = [call["id"] for call in parse_tool_calls(f'{{"tool_calls": [{text}]}}')]

    made = [call_id for call_id in got if call_id.startswith("call_")]
    assert (got[0], got[4], len(made), len(set(got))) == ("x", "y", 3, 5)


@pytest.mark.parametrize(
    ("text", "call_id"),
    [
        ("<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}<|tool_call_end|>", "functions.a:0"),
        ("[TOOL_CALLS]a[CALL_ID]abcdefghi[ARGS]{}", "abcdefghi"),
        ('[TOOL_CALLS][{"name": "a", "arguments": {}, "id": "abcdefghi"}]', "abcdefghi"),
    ],
    ids=["kimi", "mistral", "mistral list"],
)
def test_ids_of_the_published_forms(text: str, call_id: str) -> None:
    assert parse_tool_calls(text) == [{"id": call_id, "name": "a", "arguments": {}}]


def test_new_call_ids_are_unique() -> None:
    ids = {new_call_id() for _ in range(1000)}

    assert (len(ids), all(call_id.startswith("call_") and len(call_id) >= 24 for call_id in ids)) == (1000, True)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": [0.0, 2]}, {"a": [-0.0, 2.0]}, True),
        ({"q": " x\n"}, {"q": "x"}, True),
        ({"a": (1, 2)}, {"a": [1, 2]}, True),
        ('{"b": 2.0, "a": 1}', {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"q": "x y"}, {"q": "xy"}, False),
        ({"a": None}, {}, False),
        ({"a": float("nan")}, {"a": float("inf")}, False),
        ({"a": 10**5000}, {"a": 10**5000 + 1}, False),
    ],
)
def test_canonical_arguments(one: dict[str, Any] | str, other: dict[str, Any] | str, equal: bool) -> None:
    assert (canonical_arguments(one) == canonical_arguments(other)) is equal


def test_canonical_arguments_accept_non_json_values() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}

    assert (canonical_arguments({"a": {1: "\ud800"}, "b": object}), canonical_arguments(deep)[:10]) == (
        '{"a":{"1":"\\ud800"},"b":"<class \'object\'>"}',
        '{"a":{"a":',
    )


def test_fingerprint_is_of_name_and_arguments_alone() -> None:
    one: Call = {"id": "1", "name": "search", "arguments": {"q": "x", "n": 1}}
    same: Call = {"id": "2", "name": "search", "arguments": {"n": 1.0, "q": "x "}, "needs": ["1"]}
    other: Call = {"id": "1", "name": "echo", "arguments": {"q": "x", "n": 1}}

    assert (fingerprint(one) == fingerprint(same), fingerprint(one) == fingerprint(other)) == (True, False)
