"""Asks questions without a line editor: given questions, lines of a pipe, and resumed sessions."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from graph_agent.agent_file.factory import open_agent
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.base.database_urls import MEMORY
from graph_agent.base.errors import InputError
from graph_agent.interfaces.cli.agent_thread import STOPPED, Interrupts
from graph_agent.interfaces.cli.dialog import (
    WAITING,
    AskPerson,
    GivenAnswers,
    Question,
    approve_all,
    ask_at_terminal,
    leave_waiting,
    questions_of,
    show_how_to_go_on,
    signed,
    user_name,
)
from graph_agent.interfaces.cli.options import no_session
from graph_agent.interfaces.cli.report import JsonReport, RunReport, TextReport
from graph_agent.interfaces.cli.screen import LiveScreen, PlainScreen
from graph_agent.interfaces.cli.terminal import Terminal
from graph_agent.interfaces.cli.typed_keys import show_typed_keys
from graph_agent.session.results import Done, Part, RunResult, open_interrupts
from graph_agent.session.session import Session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from graph_agent.agent_file.spec import AgentSpec


RUN_CONTEXT = {"on_failure": "answer"}
"""Context of each run: failures become answers, which are printed, in place of exceptions."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that all commands that run an agent share."""

    spec: AgentSpec
    """The agent file."""
    session_id: str | None
    """The session to start or continue; None for a new one."""
    today: date | None
    """The agent's current date; None for the real one."""
    db: str | None
    """URL of another database than the agent file's; None for the file's."""
    as_json: bool
    """Whether to print JSON lines in place of text."""
    approve_all: bool
    """Whether every call is approved without a question."""
    reasoning: bool
    """Whether to print the model's reasoning."""
    options: Sequence[str]
    """Command-line options that select the same agent and database, for the command that is printed to continue a
    session.
    """

    @property
    def address(self) -> str:
        """The URL of the database of the sessions."""
        return self.db or self.spec.db


def new_session_id() -> str:
    """Return a random id of 12 hexadecimal digits for a new session."""
    return uuid.uuid4().hex[:12]


class InputRunner:
    """Runs inputs of sessions, prints each run, and asks a reviewer if a run waits for an answer.

    Args:
        settings: The agent, and how to print.
        interrupts: The handler of Ctrl-C, which aborts the session that runs.
    """

    def __init__(self, settings: Settings, interrupts: Interrupts) -> None:
        self._settings = settings
        self._interrupts = interrupts
        self.out, self.err = Terminal(), Terminal(stderr=True)
        self._screen = (LiveScreen if self.out.is_terminal else PlainScreen)(self.out, self.err)
        # A question needs keys to answer it and a place to show it.
        has_person = sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())
        ask = partial(ask_at_terminal, self.err) if has_person and not settings.as_json else leave_waiting
        self.ask: AskPerson = approve_all if settings.approve_all else ask
        """Answers open questions: approves all with `--approve-all`, asks at the terminal if there is one, or leaves
        them open.
        """

    async def run(self, session: Session, text: str, *, show: bool, warnings: Sequence[str]) -> int:
        """Run one input and the messages that are queued behind it; return the exit status.

        Open questions of the run are answered by `ask`; an answer that the session refuses is asked for again. The
        status is 0; 1 if a run failed or was aborted; 4 if a question stays open; 130 after Ctrl-C. An exception of the
        session is raised.

        Args:
            session: The session of the input.
            text: The input.
            show: Whether to print the input before its run.
            warnings: Warnings of the agent, which are printed before the run.
        """
        report = self._report(session)
        if show:
            report.question(text)
        report.warn(warnings)
        parts = session.stream(text, context=RUN_CONTEXT, reasoning=self._settings.reasoning)
        return await self._to_end(session, parts, report)

    async def resume(self, session: Session, questions: Sequence[Question], given: GivenAnswers) -> int:
        """Answer a session's open questions, or continue it after a crash; return the exit status (see `run`).

        If `ask` leaves the questions open, the command that answers them is printed, and the status is 4.

        Args:
            session: The session.
            questions: The open questions; empty after a crash.
            given: Answers from the command line; if it is empty, `ask` answers.

        Raises:
            InputError: There is nothing to resume, or the given answers do not fit.
        """
        answers: dict[str, Any] | None = None
        if questions:
            chosen = await self.ask(questions) if given.is_empty else given.resolve(questions)
            if chosen is None:
                return self._leave(session, questions)
            answers = signed(chosen)
        report = self._report(session)
        return await self._to_end(session, self._stream_resume(session, answers), report)

    def _stream_resume(self, session: Session, answers: dict[str, Any] | None) -> AsyncGenerator[Part]:
        """Return the stream of a resumed run; `answers` is interrupt id → answer, or None after a crash."""
        return session.stream_resume(answers, context=RUN_CONTEXT, reasoning=self._settings.reasoning)

    async def _to_end(self, session: Session, parts: AsyncGenerator[Part], report: RunReport) -> int:
        """Print a run, ask the questions that it ends with, and resume it until none is open; return the exit status
        (see `run`).

        An answer that the session refuses (`InputError`) is printed, and the questions are asked again. After Ctrl-C no
        question is asked. If `ask` leaves the questions open, the command that answers them is printed. Any exception
        of the first run, and any but `InputError` of a later one, is raised.

        Args:
            session: The session of the run.
            parts: The stream of the run.
            report: Prints the parts.
        """
        status, result = await self._show(session, parts, report)
        while result is not None and result.interrupts and status != STOPPED:
            questions = questions_of(result.interrupts)
            answers = await self.ask(questions)
            if answers is None:
                return self._leave(session, questions)
            report.resume()
            try:
                parts = self._stream_resume(session, signed(answers))
                status, result = await self._show(session, parts, report)
            except InputError as error:
                # The session still waits, and the next answer may fit.
                self.err.print(str(error), style="red")
        return status

    async def _show(
        self, session: Session, parts: AsyncGenerator[Part], report: RunReport
    ) -> tuple[int, RunResult | None]:
        """Print the parts of a run; return the exit status and the result of the newest input, None if none has ended.

        The status is `STOPPED` after Ctrl-C, which aborts the session; 1 if an input of the run has failed or was
        aborted; otherwise 0. The report is closed in any case. Exceptions of the run are raised.
        """
        status, result = 0, None
        try:
            with self._interrupts.aborting(session):
                async for part in parts:
                    report.take(part)
                    if isinstance(part, Done):
                        result = part.result
                        # The run has ended because of Ctrl-C, whatever status it reports.
                        if self._interrupts.count:
                            return STOPPED, result
                        status = max(status, int(result.status in ("FAILED", "ABORTED")))
        finally:
            report.close()
        return status, result

    def _report(self, session: Session) -> RunReport:
        """Return the printer of a run: JSON lines, or text.

        Before text, a line that names the session is printed if standard error is a terminal.
        """
        if self._settings.as_json:
            return JsonReport(session.id)
        if self.err.is_terminal:
            self.err.line(f"session {session.id}", style="dim")
        return TextReport(self._screen, folds_reasoning=False)

    def _leave(self, session: Session, questions: Sequence[Question]) -> int:
        """Print the open questions and the command that answers them later, and return the exit status 4."""
        show_how_to_go_on(self.err, session.id, questions, self._settings.options, self._settings.address)
        return WAITING


async def ask_questions(settings: Settings, questions: Sequence[tuple[str, bool]]) -> int:
    """Open the agent, ask the questions one after the other, and return the largest exit status (see
    `InputRunner.run`).

    The first run that waits for an answer or is stopped by Ctrl-C is the last one. At the end, the option that
    continues the session is printed if the session is stored and the questions came from standard input, or Ctrl-C
    stopped the run; never with `--json`.

    Args:
        settings: The agent, and how to print.
        questions: Pairs of a question and whether to print it. Each runs in a new session, unless the settings name
            one. If empty, each non-blank line of standard input is a question of one session.
    """
    status, started = 0, bool(settings.session_id)
    with Interrupts.handled() as interrupts:
        runner = InputRunner(settings, interrupts)
        session_id = settings.session_id or new_session_id()
        async with open_agent(settings.spec, today=settings.today, db=settings.db, caller=user_name()) as graph:
            session = Session(graph, session_id)
            try:
                async for question, show in _questions(questions, runner.err):
                    if questions and settings.session_id is None and started:
                        session = Session(graph, session_id := new_session_id())
                    started = True
                    ended = await runner.run(session, question, show=show, warnings=graph.input_warnings)
                    status = max(status, ended)
                    # The next question would follow an input that is not finished.
                    if ended in (STOPPED, WAITING):
                        break
            except asyncio.CancelledError:
                status = STOPPED
                runner.out.print()
            resumable = started and settings.address != MEMORY
            if resumable and not settings.as_json and (not questions or status == STOPPED):
                runner.err.line(f"Go on with this conversation: --session {session_id}", style="dim")
    return status


async def resume_one(settings: Settings, given: GivenAnswers) -> int:
    """Open the agent, and resume the session that the settings name; return the exit status (see `InputRunner.run`).

    Ctrl-C before a run begins gives the status 130.

    Raises:
        InputError: There is no such session, nothing to resume, or the given answers do not fit.
    """
    assert settings.session_id is not None
    with Interrupts.handled() as interrupts:
        async with open_agent(settings.spec, today=settings.today, db=settings.db, caller=user_name()) as graph:
            session = Session(graph, settings.session_id)
            try:
                state = await graph.aget_state({"configurable": {"thread_id": session.id}})
                if not state.values and not state.tasks:
                    raise no_session(session.id, settings.address)
                questions = questions_of(open_interrupts(state))
                return await InputRunner(settings, interrupts).resume(session, questions, given)
            except asyncio.CancelledError:
                return STOPPED


async def _questions(questions: Sequence[tuple[str, bool]], err: Terminal) -> AsyncIterator[tuple[str, bool]]:
    """Yield each question with whether to print it.

    If `questions` is empty, yield each non-blank line of standard input until its end, without white space around it
    and not to be printed. If standard input is a terminal, a prompt is printed on `err` before each line.
    """
    for question in questions:
        yield question
    # Only without questions on the command line are lines of standard input asked.
    while not questions:
        if sys.stdin.isatty():  # the output is no terminal: else this is a conversation
            show_typed_keys()
            err.print("\n> ", style="bold", end="")
        if not (line := await call_in_thread(sys.stdin.readline)):
            break
        if line.strip():
            yield line.strip(), False
