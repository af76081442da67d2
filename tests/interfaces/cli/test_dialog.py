"""The questions of a session, and the dialog that answers them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.types import Interrupt

from graph_agent.base.approvals.requests import DECISIONS
from graph_agent.errors import InputError
from graph_agent.interfaces.cli.dialog import Dialog, GivenAnswers, Question, approve_all, questions_of, signed

APPROVE = {"type": "approve"}
ALWAYS = {"type": "approve", "always": True}


def approval(*calls: tuple[str, dict[str, Any]], allowed: tuple[str, ...] = ("approve", "edit", "reject")) -> Question:
    """One interrupt in the shape of LangChain's `HITLRequest`."""
    requests = [{"name": name, "args": args} for name, args in calls]
    reviews = [{"action_name": name, "allowed_decisions": [*allowed]} for name, _ in calls]
    [question] = questions_of([Interrupt({"action_requests": requests, "review_configs": reviews}, "a" * 32)])
    return question


def answer(dialog: Dialog, *inputs: str) -> list[str]:
    """Submit inputs; return the refusals."""
    refusals = []
    for given in inputs:
        dialog.submit(given)
        refusals.append(dialog.error)
    return [refusal for refusal in refusals if refusal]


@pytest.mark.parametrize(
    ("inputs", "decisions"),
    [
        (["y", "yes"], [APPROVE, APPROVE]),
        (["n", "", "y"], [{"type": "reject"}, APPROVE]),
        (["n", "too risky", "y"], [{"type": "reject", "message": "too risky"}, APPROVE]),
        (
            ["e", "{path: b.txt, size: 2}", "y"],
            [{"type": "edit", "edited_action": {"name": "write", "args": {"path": "b.txt", "size": 2}}}, APPROVE],
        ),
        (["A", "a"], [ALWAYS, ALWAYS]),
    ],
    ids=["yes", "no", "no with a reason", "edit as YAML", "always"],
)
def test_a_dialog_collects_a_decision_for_each_call(inputs: list[str], decisions: list[Any]) -> None:
    dialog = Dialog([approval(("write", {"path": "a.txt"}), ("delete", {}))])

    refusals = answer(dialog, *inputs)

    assert (refusals, dialog.answers) == ([], {"a" * 32: {"decisions": decisions}})


def test_a_dialog_shows_a_description_that_mentions_the_arguments_and_goes_on() -> None:
    default = "Tool execution requires approval\n\nTool: write\nArgs: {'path': 'a.txt'}"
    shown = []
    for description in (default, f"{default}\nAn equal call was made before."):
        request = {"name": "write", "args": {"path": "a.txt"}, "description": description}
        review = {"action_name": "write", "allowed_decisions": ["approve"]}
        value = {"action_requests": [request], "review_configs": [review]}
        text = Dialog(questions_of([Interrupt(value, "a" * 32)])).text
        shown.append("An equal call was made before." in text)

    assert shown == [False, True]


def test_a_dialog_shows_invisible_characters_as_escapes_and_edits_them_as_json() -> None:
    arguments = {"path": "a\u202eb\u200bc\U000e0041", "body": "x" * 50_000}
    dialog = Dialog([approval(("wri\u2066te", arguments))])
    lines = dialog.text.splitlines()
    dialog.submit("e")

    assert (lines[1:3], lines[3].endswith(arguments["body"]), dialog.default.isascii(), json.loads(dialog.default)) == (
        [r"  wri\u2066te", r"    path: a\u202eb\u200bc\U000e0041"],
        True,
        True,
        arguments,
    )


def test_always_decides_the_later_calls_of_the_same_tool_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    dialog = Dialog([approval(("write", {"n": 1}), ("delete", {}), ("write", {"n": 2}))])

    answer(dialog, "always", "y")

    by_rule = {"type": "approve", "decided_by": "always (ada)"}
    assert dialog.answers == {"a" * 32: {"decisions": [ALWAYS, APPROVE, by_rule]}}


@pytest.mark.parametrize("mark", [{"uncertain": [False, True]}, {"origins": [{}, {}], "tainted": [[], ["n"]]}])
def test_always_does_not_decide_a_call_that_a_person_must_know_more_about(mark: dict[str, Any]) -> None:
    value = {**approval(("write", {"n": 1}), ("write", {"n": 2})).value, **mark}
    dialog = Dialog(questions_of([Interrupt(value, "a" * 32)]))

    answer(dialog, "always")
    asked = dialog.text.splitlines()[0]
    answer(dialog, "y")

    assert (asked, dialog.answers) == (
        "Approve this call? (2 of 2)",
        {"a" * 32: {"decisions": [ALWAYS, APPROVE]}},
    )


@pytest.mark.parametrize(
    ("inputs", "refusal"),
    [
        (["perhaps"], "'perhaps' is none of the choices: [y]es, [n]o, [e]dit, [a]lways."),
        (["e", "[1]"], 'The arguments must be an object, such as {"path": "a.txt"}; got [1].'),
        (["e", "{1: 2}"], 'The arguments must be an object, such as {"path": "a.txt"}; got {1: 2}.'),
        (["r"], "The call write does not allow 'respond'; allowed: approve, edit, reject."),
    ],
)
def test_an_input_that_does_not_fit_keeps_the_question_open(inputs: list[str], refusal: str) -> None:
    dialog = Dialog([approval(("write", {"path": "a.txt"}))])

    refusals = answer(dialog, *inputs)

    assert (refusals, dialog.answers) == ([refusal], None)


def test_refused_arguments_can_be_corrected() -> None:
    dialog = Dialog([approval(("write", {}))])

    answer(dialog, "e", "{oops")

    assert (dialog.default, dialog.answers) == ("{oops", None)


def test_leaving_the_text_of_a_choice_returns_to_the_choices() -> None:
    dialog = Dialog([approval(("write", {}))])
    keys = dialog.label

    answer(dialog, "e")
    hint, returns = dialog.label, [dialog.go_back(), dialog.go_back()]

    assert (hint.splitlines()[-1], "Enter submits, Ctrl-C goes back" in hint) == ("arguments: ", True)
    assert (returns, dialog.label, dialog.accepts, dialog.answers) == ([True, False], keys, "choice", None)


def test_the_question_shows_name_arguments_and_choices() -> None:
    dialog = Dialog([approval(("write", {"path": "a.txt", "lines": [1, 2]}), allowed=("approve", "reject", "respond"))])

    assert (dialog.text, dialog.label) == (
        "Approve this call?\n  write\n    path: a.txt\n    lines:\n    - 1\n    - 2",
        "[y]es, [n]o, [r]espond, [a]lways: ",
    )


@pytest.mark.parametrize(
    ("given", "answered"), [("blue", "blue"), ('{"colour": "blue"}', {"colour": "blue"}), ("7", "7"), ("[x", "[x")]
)
def test_a_question_that_is_no_approval_takes_text_or_json(given: str, answered: object) -> None:
    dialog = Dialog(questions_of([Interrupt("Which colour?", "b" * 32)]))

    refusals = answer(dialog, " ", given)

    assert (refusals, dialog.answers) == (["An answer is needed."], {"b" * 32: answered})


def test_a_question_for_a_single_call_is_answered_with_one_decision() -> None:
    value = {"type": "tool_approval", "tool_call_id": "1", "name": "write", "args": {}, "description": ""}
    dialog = Dialog(questions_of([Interrupt(value, "c" * 32)]))

    answer(dialog, "y")

    assert dialog.answers == {"c" * 32: APPROVE}


def test_several_interrupts_are_answered_by_their_ids() -> None:
    asked = [approval(("write", {})), *questions_of([Interrupt("Which colour?", "b" * 32)])]
    dialog = Dialog(asked)

    answer(dialog, "y", "blue")

    assert dialog.answers == {"a" * 32: {"decisions": [APPROVE]}, "b" * 32: "blue"}


def test_options_answer_calls_and_questions_in_order() -> None:
    asked = [approval(("write", {}), ("delete", {})), *questions_of([Interrupt("Which colour?", "b" * 32)])]
    given = GivenAnswers(decisions=["edit:{path: x}", "reject: no"], answers=["blue"])

    assert given.resolve(asked) == {
        "a" * 32: {
            "decisions": [
                {"type": "edit", "edited_action": {"name": "write", "args": {"path": "x"}}},
                {"type": "reject", "message": "no"},
            ]
        },
        "b" * 32: "blue",
    }


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (GivenAnswers(decisions=["approve"]), "The options have 1 decisions and 0 answers for 2 calls and 0 questions"),
        (GivenAnswers(approve_all=True, answers=["x"]), "2 decisions and 1 answers for 2 calls and 0 questions"),
        (GivenAnswers(approve_all=True, reject_all=True), "Give one of --approve-all, --reject-all and --decision."),
        (GivenAnswers(decisions=["yes", "yes"]), "The decision 'yes' has another form"),
        (GivenAnswers(decisions=["edit", "approve"]), "The decision 'edit' has another form"),
        (GivenAnswers(decisions=["respond:ok", "approve"]), "The call write does not allow 'respond'"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: GivenAnswers, complaint: str) -> None:
    with pytest.raises(InputError) as refused:
        given.resolve([approval(("write", {}), ("delete", {}))])

    assert complaint in str(refused.value)


async def test_approve_all_leaves_what_it_does_not_cover_open() -> None:
    call = approval(("write", {}), ("delete", {}))
    forbidden = approval(("write", {}), allowed=("reject",))
    question = questions_of([Interrupt("Which colour?", "b" * 32)])

    uncertain = questions_of([Interrupt({**call.value, "uncertain": [False, True]}, "a" * 32)])

    given = ([call], [forbidden], [call, *question], uncertain)
    answers = [await approve_all(questions) for questions in given]

    assert answers == [{"a" * 32: {"decisions": [APPROVE, APPROVE]}}, None, None, None]


def test_a_conversation_with_approve_all_asks_only_about_the_calls_that_it_does_not_cover() -> None:
    value = {**approval(("write", {}), ("pay", {}), ("write", {})).value, "uncertain": [False, True, False]}
    dialog = Dialog(questions_of([Interrupt(value, "a" * 32)]), approves=True)

    asked = dialog.text.splitlines()[:2]
    answer(dialog, "n", "")

    decisions = [APPROVE, {"type": "reject"}, APPROVE]
    assert (asked, dialog.answers) == (["Approve this call? (2 of 3)", "  pay"], {"a" * 32: {"decisions": decisions}})


def test_the_allowed_decisions_of_a_call_are_those_at_its_place() -> None:
    requests = [{"name": "write", "args": {}}, {"name": "write", "args": {}}, {"name": "delete", "args": {}}]
    reviews = [{"action_name": "write", "allowed_decisions": [each]} for each in ("approve", "reject")]
    [question] = questions_of([Interrupt({"action_requests": requests, "review_configs": reviews}, "a" * 32)])

    assert [action.allowed for action in question.actions] == [("approve",), ("reject",), DECISIONS]


def test_approvals_name_the_user_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")

    by_rule = {"type": "approve", "decided_by": "always (bob)"}
    assert signed({"a": {"decisions": [APPROVE, by_rule]}, "b": "blue", "c": APPROVE}) == {
        "a": {"decisions": [{**APPROVE, "decided_by": "ada"}, by_rule]},
        "b": "blue",
        "c": {**APPROVE, "decided_by": "ada"},
    }
