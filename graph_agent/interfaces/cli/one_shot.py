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
    Ask,
    GivenAnswers,
    Question,
    approve_all,
    ask_at_terminal,
    leave_waiting,
    questions_of,
    show_how_to_go_on,
    signed,
)
from graph_agent.interfaces.cli.options import no_session
from graph_agent.interfaces.cli.report import JsonReport, Report, TextReport
from graph_agent.interfaces.cli.screen import LiveScreen, PlainScreen
from graph_agent.interfaces.cli.terminal import Terminal
from graph_agent.interfaces.cli.typed_keys import show_typed_keys
from graph_agent.session.results import Done, Part, RunResult, open_interrupts
from graph_agent.session.session import Session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from graph_agent.agent_file.spec import AgentSpec


RUN_CONTEXT = {"on_failure": "answer"}
"""Failures are printed from their events."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the commands that run an agent have in common."""

    spec: AgentSpec
    session_id: str | None
    """The session to start or continue; None for a new one."""
    today: date | None
    """The agent's current date; None for the real one."""
    db: str | None
    as_json: bool
    approve_all: bool
    """Whether every call is approved without a question."""
    options: Sequence[str]
    """Options of another command that select the same agent and database."""

    @property
    def address(self) -> str:
        """The URL of the database."""
        return self.db or self.spec.db


def new_session_id() -> str:
    """Return the id of a new session."""
    return uuid.uuid4().hex[:12]


class Runner:
    """Runs inputs of sessions, each reported on the output that the settings select."""

    def __init__(self, settings: Settings, interrupts: Interrupts) -> None:
        self._settings = settings
        self._interrupts = interrupts
        self.out, self.err = Terminal(), Terminal(stderr=True)
        self._screen = (LiveScreen if self.out.is_terminal else PlainScreen)(self.out, self.err)
        has_person = sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())
        ask = partial(ask_at_terminal, self.err) if has_person and not settings.as_json else leave_waiting
        self.ask: Ask = approve_all if settings.approve_all else ask

    async def run(self, session: Session, text: str, *, show: bool, warnings: Sequence[str]) -> int:
        """Run one input, with the agent's warnings at each; return the exit status."""
        report = self._report(session)
        if show:
            report.question(text)
        report.warn(warnings)
        return await self._to_end(session, session.stream(text, context=RUN_CONTEXT), report)

    async def resume(self, session: Session, questions: Sequence[Question], given: GivenAnswers) -> int:
        """Answer a session's questions, or continue it after a crash; return the exit status.

        Raises `InputError` if there is nothing to resume, or the answers do not fit.
        """
        answers: dict[str, Any] | None = None
        if questions:
            chosen = await self.ask(questions) if given.is_empty else given.resolve(questions)
            if chosen is None:
                return self._leave(session, questions)
            answers = signed(chosen)
        report = self._report(session)
        return await self._to_end(session, session.stream_resume(answers, context=RUN_CONTEXT), report)

    async def _to_end(self, session: Session, parts: AsyncGenerator[Part], report: Report) -> int:
        """Run an input, its follow-ups and its questions to the end; print refused answers."""
        status, result = await self._show(session, parts, report)
        while result is not None and result.interrupts and status != STOPPED:
            questions = questions_of(result.interrupts)
            answers = await self.ask(questions)
            if answers is None:
                return self._leave(session, questions)
            report.resume()
            try:
                parts = session.stream_resume(signed(answers), context=RUN_CONTEXT)
                status, result = await self._show(session, parts, report)
            except InputError as error:
                # The session still waits, and the next answer may fit.
                self.err.print(str(error), style="red")
        return status

    async def _show(
        self, session: Session, parts: AsyncGenerator[Part], report: Report
    ) -> tuple[int, RunResult | None]:
        status, result = 0, None
        try:
            with self._interrupts.aborting(session):
                async for part in parts:
                    report.take(part)
                    if isinstance(part, Done):
                        result = part.result
                        if self._interrupts.count:
                            return STOPPED, result
                        status = max(status, int(result.status in ("FAILED", "ABORTED")))
        finally:
            report.close()
        return status, result

    def _report(self, session: Session) -> Report:
        if self._settings.as_json:
            return JsonReport(session.id)
        if self.err.is_terminal:
            self.err.line(f"session {session.id}", style="dim")
        return TextReport(self._screen)

    def _leave(self, session: Session, questions: Sequence[Question]) -> int:
        show_how_to_go_on(self.err, session.id, questions, self._settings.options, self._settings.address)
        return WAITING


async def ask_questions(settings: Settings, questions: Sequence[tuple[str, bool]]) -> int:
    """Ask an agent; return the exit status.

    Each question is in a session of its own unless one is named, and has whether to print it; without any, the lines of
    standard input are asked in one session.
    """
    status, started = 0, bool(settings.session_id)
    with Interrupts.handled() as interrupts:
        runner = Runner(settings, interrupts)
        session_id = settings.session_id or new_session_id()
        async with open_agent(settings.spec, today=settings.today, db=settings.db) as graph:
            session = Session(graph, session_id)
            try:
                async for question, show in _questions(questions, runner.err):
                    if questions and settings.session_id is None and started:
                        session = Session(graph, session_id := new_session_id())
                    started = True
                    ended = await runner.run(session, question, show=show, warnings=graph.input_warnings)
                    status = max(status, ended)
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
    """Resume the session of the settings; return the exit status. `InputError` without one, and as `Runner.resume`."""
    assert settings.session_id is not None
    with Interrupts.handled() as interrupts:
        async with open_agent(settings.spec, today=settings.today, db=settings.db) as graph:
            session = Session(graph, settings.session_id)
            try:
                state = await graph.aget_state({"configurable": {"thread_id": session.id}})
                if not state.values and not state.tasks:
                    raise no_session(session.id, settings.address)
                questions = questions_of(open_interrupts(state))
                return await Runner(settings, interrupts).resume(session, questions, given)
            except asyncio.CancelledError:
                return STOPPED


async def _questions(questions: Sequence[tuple[str, bool]], err: Terminal) -> AsyncIterator[tuple[str, bool]]:
    for question in questions:
        yield question
    while not questions:
        if sys.stdin.isatty():  # the output is no terminal: else this is a conversation
            show_typed_keys()
            err.print("\n> ", style="bold", end="")
        if not (line := await call_in_thread(sys.stdin.readline)):
            break
        if line.strip():
            yield line.strip(), False
