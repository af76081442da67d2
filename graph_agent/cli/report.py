"""Prints the parts of a run as text: steps, answer, warnings and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent._internal.redaction import mask_named_secrets
from graph_agent._internal.text import text_of
from graph_agent.cli.screen import Screen
from graph_agent.cli.steps import Wave
from graph_agent.session.results import CallState, DelegatePart, Done, EventAdded, Part, PlanText, Progress, Token

if TYPE_CHECKING:
    from graph_agent.events.types import Event


class TextReport:
    """Prints one run and its follow-ups.

    Args:
        screen: The output.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._printed = ""
        """The streamed text of the current answer."""
        self._answered = False
        self._failed = ""
        """The message of the newest error."""
        self._wave = Wave()

    def question(self, text: str) -> None:
        """Print a user's message, before its run."""
        self._screen.out.print(f"\n> {text}", style="bold")

    def take(self, part: Part) -> None:
        """Print one part."""
        match part:
            case Progress():
                self._step(part)
            case DelegatePart(part=Progress() as step):
                self._screen.out.line(f"    {part.target}: {step.action} {step.target}", style="dim")
            case Token() if not part.reports_failure:
                self._screen.stream(part.text)
                self._printed += part.text
            case PlanText():
                self._end_text()
            case CallState() if part.status != "started":
                self._wave.finish(part.id, part.status)
                if self._wave.calls:
                    self._screen.show_running([*self._wave.calls.values()])
            case EventAdded(event):
                self._event(event)
            case Done(result):
                self._end_text()
                self._end_wave(keep_running=bool(result.interrupts))
            case _:
                pass

    def resume(self) -> None:
        """Begin the rest of a run whose questions were answered."""
        self._wave.restart()

    def close(self) -> None:
        """End the line of a text that was cut off, and the live region."""
        self._end_text()
        self._screen.show_running([])

    def _step(self, step: Progress) -> None:
        if not self._screen.is_live:
            self._screen.out.line(f"  step {step.step}: {step.action} {step.target}", style="dim")

    def _event(self, event: Event) -> None:
        if event["type"] == "agent_response":
            self._end_wave()
            self._answer(text_of(event["content"]), is_report="error" in event)
        elif event["type"] == "user_message":
            if self._answered:
                self.question(text_of(event["content"]))
        elif event["type"] == "steering":
            self._end_wave()
            self._screen.out.print(f"  steering: {text_of(event['content'])}", style="dim")
        elif event["type"] == "warning":
            self._screen.err.print(f"warning: {mask_named_secrets(event['message'])}", style="yellow")
        elif event["type"] == "error":
            self._failed = event["message"]
            self._end_wave()
            self._screen.err.print(mask_named_secrets(f"error: {event['message']}"), style="red")
        else:
            self._call(event)

    def _call(self, event: Event) -> None:
        self._wave.add(event)
        if self._wave.is_finished:
            self._end_wave()
        elif self._wave.calls:
            self._screen.show_running([*self._wave.calls.values()])

    def _answer(self, text: str, *, is_report: bool) -> None:
        # The event may have text that was not streamed, e.g. the reason why the answer was cut off.
        rest = text.removeprefix(self._printed)
        if is_report:
            self._end_text()
            # The error message was printed already.
            if account := rest.rpartition(self._failed)[2].strip():
                self._screen.err.print(account)
        else:
            self._screen.stream(rest)
            self._screen.end_stream()
            self._answered = True
        self._printed = ""

    def _end_text(self) -> None:
        if self._printed:
            self._screen.end_stream()
            self._printed = ""

    def _end_wave(self, *, keep_running: bool = False) -> None:
        if self._wave.calls:
            self._screen.show_running([])
            self._screen.show_finished(self._wave.take(keep_running=keep_running))
