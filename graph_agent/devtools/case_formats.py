"""Reads and writes cases in the formats of pydantic-evals and of LangSmith's datasets.

Fields of a case that such a format does not have are in the case's metadata, under the key `graph_agent`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from graph_agent.base._internal.text import json_line
from graph_agent.base._internal.yaml_files import parse_yaml
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.devtools.cases import Case, CaseFile, ExpectedAnswer, dump_cases, load_cases, parse_cases
from graph_agent.devtools.cases import read_case_file as read_case_text

CaseFormat = Literal["graph-agent", "pydantic-evals", "langsmith"]
"""Name of a format."""
OWN_KEY = "graph_agent"
"""Key of the metadata for what another format does not have."""
_INPUT_KEYS = ("input", "question", "query", "prompt", "text")
"""Keys of another format under which the user's text may stand."""
_OUTPUT_KEYS = ("answer", "output", "expected_output", "completion", "text")
"""Keys of another format under which the answer may stand."""


def read_cases(path: str | Path) -> CaseFile:
    """Read a file of cases; its format is found by its suffix and its content.

    A file `.jsonl` is LangSmith's, YAML whose cases have the key `inputs` is that of pydantic-evals, and any other is
    this package's own.

    Raises:
        ConfigError: If the file is missing or invalid, or has an evaluator without a counterpart.
    """
    path = Path(path)
    where = f"Cases {path}"
    # By the suffix, as a single line of JSON is also valid YAML.
    if path.suffix == ".jsonl":
        return parse_cases({"cases": _from_langsmith(read_case_text(path), where)}, where)
    text = read_case_text(path)
    content = parse_yaml(text, where)
    cases = content.get("cases") if isinstance(content, dict) else None
    # This package's own format calls the key `input`; every other difference would be optional.
    if isinstance(cases, list) and any(isinstance(case, dict) and "inputs" in case for case in cases):
        return parse_cases({"cases": _from_pydantic_evals(content, where)}, where)
    return load_cases(path)


def write_cases(file: CaseFile, format_: CaseFormat) -> str:
    """Return the text of a file of cases: JSON, one object a line, for LangSmith, otherwise YAML.

    What another format than `graph-agent` cannot express is in the metadata of each case under `OWN_KEY`, except the
    file's `agent`, which is lost.
    """
    if format_ == "langsmith":
        return "".join(json_line(json.dumps(_to_langsmith(case), ensure_ascii=False)) + "\n" for case in file.cases)
    if format_ == "pydantic-evals":
        content = {"cases": [_to_pydantic_evals(case) for case in file.cases]}
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    return dump_cases(file)


def _from_langsmith(text: str, where: str) -> list[dict[str, Any]]:
    """Convert examples, one JSON object a line, to the content of cases.

    The name is in the metadata, or is the example's `name`, `id` or number. Metadata that is no object has the key
    `metadata`. Outputs that are not empty become the expected answer. Raises `ConfigError` with the line if an example
    is invalid; `where` is the name of the file.
    """
    cases: list[dict[str, Any]] = []
    # Not `splitlines`, which also splits at U+2028; JSON permits that in a string.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            example = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}, line {number}: it is no JSON: {error}.") from None
        if not isinstance(example, dict) or "inputs" not in example:
            raise ConfigError(f'{where}, line {number}: expected {{"inputs": …, "outputs": …, "metadata": …}}.')
        given = example.get("metadata") or {}
        metadata = dict(given) if isinstance(given, dict) else {"metadata": given}
        name = metadata.pop("name", None) or example.get("name") or example.get("id") or f"example {number}"
        case = {"name": str(name), "input": _input_of(example["inputs"])}
        if example.get("outputs"):
            case["expect"] = {"answer": {"equals": _output_of(example["outputs"])}}
        cases.append(_with_own(case, metadata))
    return cases


def _to_langsmith(case: Case) -> dict[str, Any]:
    """Return a case as an example: `{"inputs": …, "outputs": …, "metadata": …}`.

    `outputs` are present only with an expected answer. A single text is `{"input": TEXT}`; content blocks and several
    turns are `{"messages": […]}`. The metadata has the name of the case, and its further fields under `OWN_KEY`.
    """
    turns = case.turns
    is_text = len(turns) == 1 and isinstance(turns[0], str)
    inputs = {"input": turns[0]} if is_text else {"messages": [{"role": "user", "content": turn} for turn in turns]}
    own, equals = _own(case)
    metadata = {"name": case.name, **case.metadata, **({OWN_KEY: own} if own else {})}
    outputs = {"outputs": {"answer": equals} if isinstance(equals, str) else equals} if equals is not None else {}
    return {"inputs": inputs, **outputs, "metadata": metadata}


def _from_pydantic_evals(content: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Convert the content of a file of pydantic-evals to cases in this package's form.

    The evaluators of the file apply to each case, before its own. If the file has none at all, an expected output is
    compared exactly. A case without a name is `Case <number>`; metadata that is no object has the key `metadata`.
    Raises `ConfigError` for a case that is no object, and for an evaluator without a counterpart; `where` begins the
    error's text.
    """
    cases: list[dict[str, Any]] = []
    if wrong := [each for each in content["cases"] if not isinstance(each, dict)]:
        raise ConfigError(f"{where}: {wrong[0]!r} is no case; write e.g. {{name: …, inputs: …}}.")
    shared = content.get("evaluators") or []
    is_checked = bool(shared) or any(case.get("evaluators") for case in content["cases"])
    for number, given in enumerate(content["cases"], 1):
        case: dict[str, Any] = {"name": given.get("name") or f"Case {number}", "input": _input_of(given.get("inputs"))}
        metadata = dict(given["metadata"]) if isinstance(given.get("metadata"), dict) else {}
        if given.get("metadata") and not metadata:
            metadata = {"metadata": given["metadata"]}
        expected = given.get("expected_output")
        evaluators = [*shared, *(given.get("evaluators") or [])]
        # Without any evaluator, an expected output would be lost.
        if not is_checked and expected is not None:
            evaluators = ["EqualsExpected"]
        answer: dict[str, Any] = {"contains": []}
        limits: dict[str, Any] = {}
        for evaluator in evaluators:
            name, values = _evaluator(evaluator)
            if name not in _EVALUATORS:
                raise ConfigError(
                    f"{where}: the evaluator {name!r} of {case['name']!r} has no counterpart; "
                    f"{did_you_mean(name, _EVALUATORS)} Write it as a function, in 'answer.python'."
                )
            _add_check(name, values, expected, answer, limits)
        case["expect"] = {"answer": answer, "limits": limits}
        cases.append(_with_own(case, metadata))
    return cases


def _to_pydantic_evals(case: Case) -> dict[str, Any]:
    """Return a case in the form of pydantic-evals.

    Checks with a counterpart become evaluators; without any, `evaluators` is absent. All fields that this format does
    not have are kept in the metadata under `OWN_KEY`.
    """
    own, equals = _own(case)
    metadata = {**case.metadata, **({OWN_KEY: own} if own else {})}
    found: dict[str, Any] = {"name": case.name, "inputs": case.input}
    if metadata:
        found["metadata"] = metadata
    evaluators: list[Any] = []
    if equals is not None:
        found["expected_output"] = equals
        evaluators.append("EqualsExpected")
    answer = case.expect.answer or ExpectedAnswer()
    evaluators += [{"Contains": text} for text in answer.texts]
    if answer.judge is not None:
        model = {"model": answer.judge.model} if isinstance(answer.judge.model, str) else {}
        evaluators.append({"LLMJudge": {"rubric": answer.judge.rubric, **model}})
    if case.expect.limits.seconds is not None:
        evaluators.append({"MaxDuration": case.expect.limits.seconds})
    return {**found, "evaluators": evaluators} if evaluators else found


def _own(case: Case) -> tuple[dict[str, Any], Any]:
    """Return the fields that other formats do not have, as JSON, and the expected answer, which they have.

    The fields are empty if the case has nothing but an expected answer; the answer is None if there is none.
    """
    fields = {"session", "called", "approvals", "context", "state", "expect"}
    own = case.model_dump(mode="json", exclude_defaults=True, include=fields)
    equals = case.expect.answer.equals if case.expect.answer is not None else None
    is_plain = set(own) <= {"expect"} and own.get("expect", {}) in ({}, {"answer": {"equals": equals}})
    return {} if is_plain else own, equals


def _with_own(case: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a case with `metadata`, and with the fields that `metadata` has under `OWN_KEY`, which replace those of
    the case.

    The key is removed from `metadata` in place; a value under it that is no object is dropped.
    """
    own = metadata.pop(OWN_KEY, None)
    return {**case, "metadata": metadata, **(own if isinstance(own, dict) else {})}


def _input_of(inputs: Any) -> Any:
    """Return the user's turn or turns in the inputs of another format; as JSON text if they have no known form.

    Known are a text, a list, `{"messages": […]}` (the content of the user's messages; a list of them unless there is
    one), the first text under one of `_INPUT_KEYS`, and a single text under any key.
    """
    if isinstance(inputs, str | list):
        return inputs
    if isinstance(inputs, Mapping):
        messages = inputs.get("messages")
        if isinstance(messages, list):
            users = [
                each
                for each in messages
                if isinstance(each, Mapping) and (each.get("role") or each.get("type")) in ("user", "human")
            ]
            contents = [each.get("content", "") for each in users]
            return contents[0] if len(contents) == 1 else contents
        known = [inputs[key] for key in _INPUT_KEYS if isinstance(inputs.get(key), str)]
        if known or (len(inputs) == 1 and isinstance(next(iter(inputs.values())), str)):
            return known[0] if known else next(iter(inputs.values()))
    return json.dumps(inputs, ensure_ascii=False)


def _output_of(outputs: Any) -> Any:
    """Return the answer in the outputs of an example; the outputs themselves if they have no known form.

    Known are `{"messages": […]}` (the last one) and a single key of `_OUTPUT_KEYS`.
    """
    if not isinstance(outputs, Mapping):
        return outputs
    messages = outputs.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        return messages[-1].get("content", "")
    if len(outputs) == 1 and next(iter(outputs)) in _OUTPUT_KEYS:
        return next(iter(outputs.values()))
    return dict(outputs)


def _evaluator(given: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name of an evaluator and its arguments, which are empty without any.

    The forms are `NAME`, `{NAME: ARGUMENTS}` and `{"name": NAME, "arguments": ARGUMENTS}`. A single argument without a
    name, or the first one of a list, has the key `""`. Any other form is returned as text in place of the name.
    """
    if isinstance(given, Mapping) and set(given) == {"name", "arguments"}:
        given = {given["name"]: given["arguments"]}
    if not isinstance(given, Mapping) or len(given) != 1:
        return str(given), {}
    ((name, values),) = given.items()
    if values is None:
        return str(name), {}
    if isinstance(values, Mapping):
        return str(name), values
    return str(name), {"": values[0] if isinstance(values, list | tuple) and values else values}


_EVALUATORS = ("EqualsExpected", "Equals", "Contains", "MaxDuration", "LLMJudge", "IsInstance")
_TYPES = {"dict": "object", "list": "array", "int": "integer", "float": "number", "bool": "boolean"}
"""Name of a Python type → type of a JSON schema."""


def _add_check(
    name: str, values: Mapping[str, Any], expected: Any, answer: dict[str, Any], limits: dict[str, Any]
) -> None:
    """Add the counterpart of an evaluator to the checks of a case; an evaluator that cannot fail adds nothing.

    `EqualsExpected` without an expected output is one. A check replaces the one that an evaluator of the same kind has
    added before, except that each `Contains` adds a text; one that ignores case becomes the pattern, and so replaces.

    Args:
        name: The evaluator, one of `_EVALUATORS`.
        values: Its arguments; one without a name has the key `""`.
        expected: The expected output of the case; None without one.
        answer: The checks of the answer, which are changed.
        limits: The limits of the run, which are changed.
    """
    match name:
        case "EqualsExpected" if expected is not None:
            answer["equals"] = expected
        case "Equals":
            answer["equals"] = values.get("value", values.get(""))
        case "Contains":
            text = str(values.get("value", values.get("")))
            if values.get("case_sensitive", True):
                answer["contains"].append(text)
            else:
                answer["regex"] = f"(?i){re.escape(text)}"
        case "MaxDuration":
            limits["seconds"] = values.get("seconds", values.get(""))
        case "LLMJudge":
            rubric = str(values.get("rubric", values.get("")))
            if values.get("include_expected_output") and expected is not None:
                rubric = f"{rubric}\n\nThe expected answer: {expected}"
            model = {"model": values["model"]} if isinstance(values.get("model"), str) else {}
            answer["judge"] = {"rubric": rubric, **model}
        case "IsInstance":
            type_name = str(values.get("type_name", values.get("")))
            if type_name != "str":  # an answer is always text
                answer["json_schema"] = {"type": _TYPES.get(type_name, "object")}
