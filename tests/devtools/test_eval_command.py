"""`graph-agent eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.agents import asks
from tests.support.cli import run_cli

TOOLS = '''
from pathlib import Path


def pay(amount: int) -> str:
    """Pay."""
    with Path("paid").open("a") as file:
        file.write(f"{amount}\\n")
    return "paid"
'''
AGENT = 'name: payer\nmodel: openai:gpt-4o-mini\ntools: ["my_tools:pay"]\napprove: pay\n'
PAYS = [asks(("a", "pay", {"amount": 5})), "You paid 5."]


def folder_of(folder: Path, cases: str) -> Path:
    (folder / "agent.yaml").write_text(AGENT)
    (folder / "my_tools.py").write_text(TOOLS)
    (folder / "cases.yaml").write_text(f"agent: agent.yaml\ncases:\n{cases}")
    return folder


def outcome(folder: Path, *options: str, script: list[str]) -> tuple[int, Any]:
    done = run_cli(folder, "eval", "cases.yaml", "--json", "-n", "1", *options, script=script)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_case_passes_when_each_check_passes_and_runs_once(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        """
  - name: pays
    input: Pay 5.
    approvals: {pay: {edit: {amount: 4}}}
    expect:
      calls: [{name: pay, arguments: {amount: {$schema: {maximum: 4}}}, status: success}]
      answer: {contains: ou paid, regex: "\\\\d", equals: You paid 5.}
      status: COMPLETED
      stop_reason: completed
      limits: {steps: 1, seconds: 60}
""",
    )

    first = outcome(folder, script=PAYS)
    second = outcome(folder, script=PAYS)

    found = [(status, made["passed"], made["trials"][0]["answer"]) for status, made in (first, second)]
    assert (found, (folder / "paid").read_text()) == ([(0, 1, "You paid 5.")] * 2, "4\n")


def test_each_failed_check_is_reported_and_the_exit_status_is_1(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        """
  - name: rejected
    input: Pay 5.
    approvals: {"*": {reject: Too late.}}
    expect:
      calls: [{name: pay, status: success}]
      answer: {equals: Paid., json_schema: {type: object}, python: "my_checks:is_short"}
      limits: {tokens: 0, cost: 1}
  - name: undecided
    input: Pay 6.
""",
    )
    (folder / "my_checks.py").write_text("def is_short(result):\n    assert len(result.answer) < 5, 'too long'\n")

    status, made = outcome(folder, script=PAYS * 2)

    failures = [failure for trial in made["trials"] for failure in trial["failures"]]
    assert (status, [failure["check"] for failure in failures]) == (
        1,
        [
            "calls",
            "limits.tokens",
            "limits.cost",
            "answer.equals",
            "answer.json_schema",
            "answer.python",
            "run",
        ],
    )
    assert (failures[0]["message"], failures[5]["message"]) == (
        'wave 1: pay $.status: expected "success", got "denied"',
        "my_checks:is_short: too long",
    )


def test_a_pattern_that_takes_too_long_fails_its_case_and_no_other(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        """
  - {name: slow, input: Hi, expect: {answer: {regex: "^(a|aa)+$"}}}
  - {name: fast, input: Hi}
""",
    )

    status, made = outcome(folder, script=["a" * 200 + "b"] * 2)

    (failure,) = made["trials"][0]["failures"]
    assert (status, failure["message"].partition("… ")[2], made["trials"][1]["failures"]) == (
        1,
        "took over a second",
        [],
    )


def test_an_invalid_case_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "\n  - name: a\n    input: Hi\n    expect:\n      calls: [{nam: pay}]\n")

    done = run_cli(folder, "eval", "cases.yaml")

    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "error: Cases cases.yaml, line 7: the field 'cases.0.expect.calls.calls.0.call.name' is missing.",
            "Cases cases.yaml, line 7: unknown field 'cases.0.expect.calls.calls.0.call.nam'; "
            "known: arguments, match, name, status. Did you mean 'name'?",
        ],
    )


def test_two_agents_are_compared_on_the_same_cases(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "\n  - name: pays\n    input: Pay 5.\n    expect: {calls: [pay]}\n")
    (folder / "agent.yaml").write_text(AGENT.replace("approve: pay\n", ""))

    status, made = outcome(folder, "--repeat", "2", "--vs", "approve=pay", script=[*PAYS, *PAYS])

    compared = made["comparison"]
    assert (status, [(each["agent"], each["pass_hat"]) for each in made["agents"]]) == (
        1,
        [("agent.yaml", [1.0, 1.0]), ("approve=pay", [0.0, 0.0])],
    )
    assert (compared["differences"]["passed"]["value"], compared["only_first_passed"], compared["diverges"]) == (
        -1.0,
        1,
        {"pays": {"wave": 1, "call": "pay", "path": "$", "expected": {"pay": {"amount": 5}}, "actual": "no call"}},
    )


def test_the_outcome_is_written_as_junit_xml(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        """
  - {name: "paid \\x1b[2J", input: Pay 5., approvals: {pay: approve}}
  - {name: short, input: Pay 5., approvals: {pay: approve}, expect: {answer: {equals: "<b>"}}}
  - {name: undecided, input: Pay 5.}
""",
    )

    outcome(folder, "--junit", "junit.xml", script=PAYS * 3)

    (suite,) = ElementTree.parse(folder / "junit.xml").getroot()
    assert [suite.get(name) for name in ("name", "tests", "failures", "errors")] == ["agent.yaml", "3", "1", "1"]
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("paid \\x1b[2J", ["system-out"]),
        ("short", ["failure", "system-out"]),
        ("undecided", ["error", "system-out"]),
    ]


@pytest.mark.parametrize("options", ["--junit no/such.xml", "--html no/such.xml", "--export graph-agent:no/such.xml"])
def test_a_report_that_cannot_be_written_is_one_line_of_error(options: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "  - {name: greets, input: hi}\n")

    done = run_cli(folder, "eval", "cases.yaml", *options.split(), script=["Hello."])

    assert (done.returncode, done.stderr) == (2, "error: no/such.xml: No such file or directory.\n")


def test_a_script_begins_anew_for_each_run(tmp_path: Path) -> None:
    cases = "".join(
        f"""
  - name: case {number}
    input: Pay 5.
    approvals: {{pay: approve}}
    expect: {{calls: [pay], answer: {{equals: You paid 5.}}}}
"""
        for number in range(3)
    )
    folder = folder_of(tmp_path, cases)
    done = run_cli(folder, "eval", "cases.yaml", "--json", "--repeat", "2", "-n", "6", script=PAYS)

    assert (done.returncode, json.loads(done.stdout)["agents"][0]["passed"]) == (0, 6), done.stdout + done.stderr


def test_a_script_goes_on_after_the_replies_of_an_interrupted_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "\n  - {name: pays, input: Pay 5., approvals: {pay: approve}}\n")
    # The process ends in the call, whose reply is stored.
    (folder / "my_tools.py").write_text("import os\n" + TOOLS.replace("    with", "    os._exit(3)\n    with"))
    killed = run_cli(folder, "eval", "cases.yaml", "--json", script=PAYS)
    # Of another size, because Python compares size and second of a module with its compiled form.
    (folder / "my_tools.py").write_text(TOOLS)
    _, made = outcome(folder, script=PAYS)

    assert (killed.returncode, made["trials"][0]["answer"]) == (3, "You paid 5.")


def test_a_trial_finds_no_facts_of_another_trial_or_of_its_own_earlier_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "\n  - {name: one, input: [I have a cat., Any pet]}\n")
    (folder / "agent.yaml").write_text("name: butler\nmodel: openai:gpt-4o-mini\nmemory: true\n")
    script = [asks(("a", "manage_memory", {"content": "Has a cat."})), "Kept.", "Your cat."]

    found = []
    for options in ((), ("--fresh",)):
        _, made = outcome(folder, "--repeat", "2", *options, script=script)
        for trial in made["trials"]:
            done = run_cli(folder, "events", trial["session_id"], "--json", "--db", "sqlite:///.graph_agent_eval.db")
            events = [json.loads(line) for line in done.stdout.splitlines()]
            kept = [event["status"] for event in events if event["type"] == "tool_result"]
            found.append((kept, [len(event["facts"]) for event in events if event["type"] == "recall"]))

    assert found == [(["success"], [1])] * 4


def test_a_judge_without_a_key_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    case = """
  - {name: judged, input: Hi, expect: {answer: {judge: {rubric: Polite., model: "MODEL"}}}}
"""
    found = []
    for model, variable in (("openai:gpt-4o", "OPENAI_API_KEY"), ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY")):
        folder = folder_of(tmp_path, case.replace("MODEL", model))
        (folder / "agent.yaml").write_text('name: greeter\nmodel: "my_model:make"\n')
        (folder / "my_model.py").write_text(
            "from graph_agent import ScriptedChatModel\n\ndef make():\n    return ScriptedChatModel(['Hello.'])\n"
        )
        done = run_cli(folder, "eval", "cases.yaml", script=None, given="", **{variable: ""})
        start = (
            f"error: The judge of the case 'judged': model='{model}': The model '{model}' needs a key: set the "
            f"environment variable {variable}"
        )
        sessions = run_cli(folder, "sessions", "--db", "sqlite:///.graph_agent_eval.db").stdout
        found.append((done.returncode, done.stderr[: len(start)] == start, sessions))

    assert found == [(2, True, "")] * 2


def test_a_judge_that_gives_no_score_fails_its_trial_and_is_asked_again(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        """
  - {name: judged, input: Hi, expect: {answer: {judge: {rubric: Polite., model: "my_judge:make"}}}}
  - {name: other, input: Hi, expect: {answer: {contains: Hello}}}
""",
    )
    (folder / "agent.yaml").write_text('name: greeter\nmodel: "my_model:make"\n')
    module = (
        "from graph_agent import ScriptedChatModel\n\ndef make():\n    return ScriptedChatModel([{!r}], cycle=True)\n"
    )
    (folder / "my_model.py").write_text(module.format("Hello."))
    found = []
    for reply in ("Very polite.", '{"score": 1, "reason": "It is polite, and short."}'):
        (folder / "my_judge.py").write_text(module.format(reply))
        done = run_cli(folder, "eval", "cases.yaml", "--json")
        trials = json.loads(done.stdout)["trials"]
        found.append([(trial["case"], failure["check"]) for trial in trials for failure in trial["failures"]])

    assert found == [[("judged", "answer.judge")], []]
