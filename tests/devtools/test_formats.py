"""Cases in the formats of other packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graph_agent.devtools.cases import parse_cases
from graph_agent.errors import ConfigError
from graph_agent.evaluation import read_cases, write_cases

FULL = {
    "cases": [
        {"name": "plain", "input": "Hi", "expect": {"answer": {"equals": "Hello"}}, "metadata": {"level": 1}},
        {
            "name": "full",
            "input": ["One", [{"type": "text", "text": "Two"}]],
            "approvals": {"pay": {"edit": {"amount": 1}}},
            "context": {"max_steps": 2},
            "expect": {
                "calls": {"calls": [["a", {"name": "b", "arguments": {"x": {"$any": True}}}], "c"], "order": "exact"},
                "answer": {"contains": ["x"], "judge": {"rubric": "Polite.", "model": "openai:gpt-4o"}},
                "limits": {"seconds": 3, "steps": 2},
            },
        },
    ]
}


@pytest.mark.parametrize(
    ("format_", "name"),
    [("graph-agent", "cases.yaml"), ("pydantic-evals", "cases.yaml"), ("langsmith", "cases.jsonl")],
)
def test_cases_are_the_same_after_a_round_trip_through_each_format(tmp_path: Path, format_: Any, name: str) -> None:
    cases = parse_cases(FULL, "Cases")
    (tmp_path / name).write_text(write_cases(cases, format_), encoding="utf-8")

    assert read_cases(tmp_path / name) == cases


def test_a_case_of_langsmith_is_one_line_whatever_its_text(tmp_path: Path) -> None:
    cases = parse_cases({"cases": [{"name": "odd", "input": "a\u2028b\u2029c\x85d"}]}, "Cases")
    written = write_cases(cases, "langsmith")
    raw = tmp_path / "raw.jsonl"
    raw.write_text(json.dumps(json.loads(written), ensure_ascii=False), encoding="utf-8")

    assert (len(written.splitlines()), read_cases(raw)) == (1, cases)


def test_a_dataset_of_pydantic_evals_is_read_and_a_written_one_is_loaded_by_the_package(tmp_path: Path) -> None:
    evals: Any = pytest.importorskip("pydantic_evals")
    from pydantic_evals.evaluators import Contains, EqualsExpected, MaxDuration

    dataset = evals.Dataset[dict[str, str], str, Any](
        name="capitals",
        cases=[
            evals.Case(name="France", inputs={"question": "Capital of France?"}, expected_output="Paris"),
            evals.Case(inputs={"question": "Of Norway?"}, metadata={"level": 2}, evaluators=(Contains("Oslo"),)),
        ],
        evaluators=[EqualsExpected(), MaxDuration(5.0)],
    )
    dataset.to_file(tmp_path / "theirs.yaml", schema_path=None)

    ours = read_cases(tmp_path / "theirs.yaml")
    (tmp_path / "ours.yaml").write_text(write_cases(ours, "pydantic-evals"))
    loaded = evals.Dataset[str, str, Any].from_file(tmp_path / "ours.yaml")

    expectations = [(case.name, case.input, case.expect.answer, case.expect.limits.seconds) for case in ours.cases]
    found = [(name, given, answer and (answer.equals, answer.texts), s) for name, given, answer, s in expectations]
    assert found == [
        ("France", "Capital of France?", ("Paris", []), 5.0),
        ("Case 2", "Of Norway?", (None, ["Oslo"]), 5.0),
    ]
    assert [(case.name, case.inputs, case.expected_output) for case in loaded.cases] == [
        ("France", "Capital of France?", "Paris"),
        ("Case 2", "Of Norway?", None),
    ]


@pytest.mark.parametrize(
    ("inputs", "outputs", "given", "expected"),
    [
        ({"question": "Who?", "context": "x"}, {"answer": "Ada"}, "Who?", "Ada"),
        ({"any": "Who?"}, {"a": 1, "b": 2}, "Who?", {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, None, '{"a": 1, "b": 2}', None),
        (
            {
                "messages": [
                    {"role": "user", "content": "Who?"},
                    {"type": "ai", "content": "?"},
                    {"role": "human", "content": "You"},
                ]
            },
            {"messages": [{"role": "assistant", "content": "Ada"}]},
            ["Who?", "You"],
            "Ada",
        ),
    ],
)
def test_an_example_of_langsmith_is_read(tmp_path: Path, inputs: Any, outputs: Any, given: Any, expected: Any) -> None:
    example = {"id": "e1", "inputs": inputs, "outputs": outputs, "metadata": {"split": "test"}}
    (tmp_path / "a.jsonl").write_text(json.dumps(example) + "\n\n")

    (case,) = read_cases(tmp_path / "a.jsonl").cases

    answer = case.expect.answer
    assert (case.name, case.input, answer and answer.equals, case.metadata) == (
        "e1",
        given,
        expected,
        {"split": "test"},
    )


@pytest.mark.parametrize("given", ["HasMatchingSpan", "{Contains: a, LLMJudge: b}", "{}"])
def test_an_evaluator_without_a_counterpart_is_refused(tmp_path: Path, given: str) -> None:
    (tmp_path / "a.yaml").write_text(f"cases: [{{name: a, inputs: Hi, evaluators: [{given}]}}]")

    with pytest.raises(ConfigError, match=r"the evaluator .* of 'a' has no counterpart"):
        read_cases(tmp_path / "a.yaml")


def test_a_case_of_pydantic_evals_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("cases: [{name: a, inputs: Hi}, Hello]")

    with pytest.raises(ConfigError, match="'Hello' is no case"):
        read_cases(tmp_path / "a.yaml")


def test_metadata_of_langsmith_that_is_no_object_is_kept_under_a_key(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"name": "a", "inputs": "Hi", "metadata": ["x"]}')

    assert read_cases(tmp_path / "a.jsonl").cases[0].metadata == {"metadata": ["x"]}


@pytest.mark.parametrize("pattern", ["a{99999999999999999999}", "(" * 3000 + ")" * 3000])
@pytest.mark.parametrize("of_call", [True, False])
def test_a_pattern_that_cannot_be_parsed_is_refused(pattern: str, of_call: bool) -> None:
    call = {"name": "search", "arguments": {"text": {"$matches": pattern}}}
    expect: dict[str, Any] = {"calls": [call]} if of_call else {"answer": {"regex": pattern}}

    with pytest.raises(ConfigError, match=r"^Cases: cases\.0\.expect\."):
        parse_cases({"cases": [{"name": "a", "input": "Hi", "expect": expect}]}, "Cases")
