"""Answers to the open questions of a session: from a person at the terminal, or from options of the command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from graph_agent._internal.printable import printable
from graph_agent.approvals.text import parse_answer
from graph_agent.cli.dialog import Dialog
from graph_agent.cli.questions import Decision, Question, describe, parse_decision
from graph_agent.cli.terminal import Terminal
from graph_agent.errors import InputError
from graph_agent.persistence.urls import MEMORY

WAITING = 4
"""Exit status of a command whose session waits for an answer."""


class Ask(Protocol):
    """Source of answers."""

    async def __call__(self, questions: Sequence[Question]) -> dict[str, Any] | None:
        """Return interrupt id → answer; None to leave the session waiting."""
        ...


class AskTerminal:
    """Asks at the terminal.

    Args:
        err: The output of the questions.
        always: Titles of the calls that are approved without a question.
    """

    def __init__(self, err: Terminal, always: set[str] | None = None) -> None:
        self._err = err
        self._always = always if always is not None else set()

    async def __call__(self, questions: Sequence[Question]) -> dict[str, Any] | None:
        """As `Ask`; None if the person leaves with Ctrl-C or Ctrl-D."""
        # Imported here: commands without a terminal need no editor.
        from graph_agent.cli.editor import LineEditor

        dialog = Dialog(questions, self._always)
        editor = LineEditor()
        while (answers := dialog.answers) is None:
            show_question(self._err, dialog)
            try:
                dialog.submit(await editor.read(dialog.label, default=dialog.default, handle_signal=False))
            except (EOFError, KeyboardInterrupt):
                return None
        return answers


async def approve_all(questions: Sequence[Question]) -> dict[str, Any] | None:
    """Return approvals of all calls; None if a question is no approval, or a call does not allow it."""
    if not all(question.actions for question in questions):
        return None
    if not all("approve" in action.allowed for question in questions for action in question.actions):
        return None
    return {each.id: each.answer([{"type": "approve"} for _ in each.actions]) for each in questions}


async def leave_waiting(questions: Sequence[Question]) -> dict[str, Any] | None:
    """Return None: without a terminal, the session is left waiting."""
    return None


@dataclass(frozen=True, slots=True)
class GivenAnswers:
    """The answers that options of `graph-agent resume` give."""

    approve_all: bool = False
    reject_all: bool = False
    message: str = ""
    """The reason of `reject_all`; empty for none."""
    decisions: Sequence[str] = field(default=())
    """One for each call, in order, as for `parse_decision`."""
    answers: Sequence[str] = field(default=())
    """One for each question that is no approval, in order."""

    @property
    def is_empty(self) -> bool:
        """Whether no option is given."""
        return not (self.approve_all or self.reject_all or self.decisions or self.answers)

    def resolve(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return interrupt id → answer.

        Raises:
            InputError: If the options do not fit the open questions; the message lists them.
        """
        if self.approve_all + self.reject_all + bool(self.decisions) > 1:
            raise InputError("Give one of --approve-all, --reject-all and --decision.")
        calls = [action for question in questions for action in question.actions]
        others = [question for question in questions if not question.actions]
        given = self._texts(len(calls))
        if len(given) != len(calls) or len(self.answers) != len(others):
            raise InputError(
                f"The options have {len(given)} decisions and {len(self.answers)} answers for {len(calls)} calls and "
                f"{len(others)} questions; give one --decision for each call and one --answer for each question, in "
                f"this order: {'; '.join(line for question in questions for line in describe(question))}"
            )
        decisions = [parse_decision(text, action) for text, action in zip(given, calls, strict=True)]
        return _by_id(questions, decisions, self.answers)

    def _texts(self, calls: int) -> Sequence[str]:
        if self.approve_all:
            return ["approve"] * calls
        if self.reject_all:
            return [f"reject:{self.message}" if self.message else "reject"] * calls
        return self.decisions


def _by_id(questions: Sequence[Question], decisions: Sequence[Decision], answers: Sequence[str]) -> dict[str, Any]:
    remaining, texts = iter(decisions), iter(answers)
    return {
        question.id: question.answer([next(remaining) for _ in question.actions])
        if question.actions
        else parse_answer(next(texts))
        for question in questions
    }


def show_question(err: Terminal, dialog: Dialog) -> None:
    """Print why the last input was refused, and the question if it is a new one."""
    if dialog.error:
        err.print(dialog.error, style="red")
    elif dialog.text:
        err.print(f"\n{dialog.text}", style="yellow")


def show_how_to_go_on(
    err: Terminal, session_id: str, questions: Sequence[Question], options: Sequence[str], db: str
) -> None:
    """Print the open questions of a session, and the command that answers them.

    Args:
        err: The output.
        session_id: The session.
        questions: Its open questions.
        options: Options of the command that select the agent and its database.
        db: The URL of the database.
    """
    err.print(f"Session {printable(session_id)} waits for an answer:", style="yellow")
    for number, line in enumerate((line for question in questions for line in describe(question)), 1):
        err.line(f"  {number}. {line}", style="yellow")
    if db == MEMORY:
        err.print("Its database ends with this process, so nothing can answer it.", style="dim")
        return
    answer = "--approve-all" if all(question.actions for question in questions) else "--answer TEXT"
    command = shlex.join(["graph-agent", "resume", session_id, *options])
    err.line(f"Go on with: {command} [{answer}]", style="dim")
