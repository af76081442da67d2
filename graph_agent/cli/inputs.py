"""Runs inputs of a session to their end, and answers the questions on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from graph_agent.cli.agent_thread import STOPPED, Interrupts
from graph_agent.cli.dialog import WAITING, Ask
from graph_agent.cli.questions import Question, questions_of, signed
from graph_agent.cli.terminal import Terminal
from graph_agent.errors import InputError
from graph_agent.session.results import Done, Part, RunResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from graph_agent.session.session import Session

_CONTEXT = {"on_failure": "answer"}
"""Failures are printed from their events."""


class Report(Protocol):
    """Output of the parts of a run."""

    def question(self, text: str) -> None:
        """Print a user's message."""
        ...

    def warn(self, warnings: Sequence[str]) -> None:
        """Print the warnings that the agent has for each input."""
        ...

    def take(self, part: Part) -> None:
        """Print one part."""
        ...

    def resume(self) -> None:
        """Begin the rest of a run whose questions were answered."""
        ...

    def close(self) -> None:
        """Complete the output of a run that has ended or was left."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How an input ended."""

    status: int
    """The exit status: 0, 1 for a failure or an abort, `WAITING` or `STOPPED`."""
    questions: Sequence[Question] = ()
    """The open questions of a session that waits."""


async def run_input(
    session: Session, text: str, report: Report, ask: Ask, interrupts: Interrupts, err: Terminal
) -> Ended:
    """Run one input and its follow-ups; ask until no question is open.

    Args:
        err: The output of answers that were refused.
    """
    return await _to_end(session, session.stream(text, context=_CONTEXT), report, ask, interrupts, err)


async def resume_session(
    session: Session, answers: dict[str, Any] | None, report: Report, ask: Ask, interrupts: Interrupts, err: Terminal
) -> Ended:
    """Resume a session with answers to its open questions; arguments as for `run_input`.

    Args:
        answers: Interrupt id → answer; None to continue a run that a crash interrupted.

    Raises:
        InputError: If there is nothing to resume, or the answers do not fit.
    """
    given = None if answers is None else signed(answers)
    return await _to_end(session, session.stream_resume(given, context=_CONTEXT), report, ask, interrupts, err)


async def _to_end(
    session: Session, parts: AsyncGenerator[Part], report: Report, ask: Ask, interrupts: Interrupts, err: Terminal
) -> Ended:
    status, result = await _show(session, parts, report, interrupts)
    while result is not None and result.interrupts and status != STOPPED:
        questions = questions_of(result.interrupts)
        answers = await ask(questions)
        if answers is None:
            return Ended(WAITING, questions)
        report.resume()
        try:
            parts = session.stream_resume(signed(answers), context=_CONTEXT)
            status, result = await _show(session, parts, report, interrupts)
        except InputError as error:
            # The session still waits, and the next answer may fit.
            err.print(str(error), style="red")
    return Ended(status)


async def _show(
    session: Session, parts: AsyncGenerator[Part], report: Report, interrupts: Interrupts
) -> tuple[int, RunResult | None]:
    status, result = 0, None
    try:
        with interrupts.aborting(session):
            async for part in parts:
                report.take(part)
                if isinstance(part, Done):
                    result = part.result
                    if interrupts.count:
                        return STOPPED, result
                    status = max(status, int(result.status in ("FAILED", "ABORTED")))
    finally:
        report.close()
    return status, result
