"""Prints the parts of a run, which `Session.stream` yields, as text or as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base._internal.text import text_of
from graph_agent.base.origins import origins_text
from graph_agent.interfaces.cli.screen import PlainScreen, Wave
from graph_agent.session import results

if TYPE_CHECKING:
    from graph_agent.base.history.events import Event

_FOLDED_CHARS = 60
"""Maximum characters that are printed of reasoning that is folded to one line."""
_WITHIN_REASONING = (results.Reasoning, results.Progress, results.DelegatePart, results.DelegateProgress)
"""Parts that do not end the reasoning of a reply.

Parts of delegates are among them, because they arrive at any time.
"""
_FORMAT = 1
"""Version of the JSON objects. It is increased by a change that breaks programs that read them."""


class RunReport:
    """Prints a run, and the runs of the messages that were queued behind it. This base class prints nothing."""

    def question(self, text: str) -> None:
        """Do nothing; a subclass prints a message of the user, before its run."""

    def warn(self, warnings: Sequence[str]) -> None:
        """Do nothing; a subclass prints the warnings that the agent has for every input, before a run."""

    def take(self, part: results.Part) -> None:
        """Do nothing; a subclass prints one part of the run."""

    def resume(self) -> None:
        """Do nothing; a subclass prepares for the rest of a run whose questions were answered."""

    def close(self) -> None:
        """Do nothing; a subclass completes the output of a run that has ended or was interrupted."""


class TextReport(RunReport):
    """Prints a run as text: steps, the streamed answer, warnings and errors.

    Args:
        screen: Where to print.
        folds_reasoning: Whether to print only the beginning of the model's reasoning, on one line.
    """

    def __init__(self, screen: PlainScreen, *, folds_reasoning: bool = True) -> None:
        self._screen = screen
        self._folds_reasoning = folds_reasoning
        self._reasoning = ""
        """The model's reasoning that is not printed yet."""
        self.reasoning = ""
        """The newest reasoning that was printed, whole; empty before any."""
        self._printed = ""
        """The streamed text of the current answer."""
        self._answered = False
        """Whether an answer was printed. A later message of the user was then queued, and is printed."""
        self._wave = Wave()
        self._provided: list[str] = []
        """Lines about calls that the model's provider ran itself; they are printed after the streamed text."""
        self._warned: Sequence[str] = ()

    def question(self, text: str) -> None:
        """Print a message of the user in bold after an empty line, as `> TEXT`."""
        self._screen.out.print(f"\n> {text}", style="bold")

    def warn(self, warnings: Sequence[str]) -> None:
        """Print warnings in yellow on standard error.

        Warning events of the run with the same text are not printed again.
        """
        for warning in warnings:
            self._warning(warning)
        self._warned = warnings

    def take(self, part: results.Part) -> None:
        """Print one part of the run, or update the live region with it.

        Streamed text is printed as it arrives, except text that reports a failure; the error's event prints that.
        Reasoning is collected, and printed once a part of another kind follows. At the end of the run, the error text
        of the model's provider is printed if the run's error does not contain it. Parts that have nothing to print are
        ignored.
        """
        if isinstance(part, results.Reasoning):
            self._reasoning += part.text
        elif self._reasoning and not isinstance(part, _WITHIN_REASONING):
            self._end_reasoning()
        match part:
            # A live screen displays the calls themselves.
            case results.Progress() if not self._screen.is_live:
                self._screen.out.line(f"  step {part.step}: {part.action} {part.target}", style="dim")
            case results.DelegatePart(part=results.Progress() as step):
                self._screen.out.line(f"    {part.target}: {step.action} {step.target}", style="dim")
            case results.Token() if not part.reports_failure:
                self._screen.stream(part.text)
                self._printed += part.text
            case results.PlanText():
                self._end_text()
                self._end_provided()
            # The event of the call has shown the start.
            case results.CallState() if part.status != "started":
                self._wave.finish(part.id, part.status)
                if self._wave.calls:
                    self._screen.show_running([*self._wave.calls.values()])
            case results.EventAdded(event):
                self._event(event)
            case results.Done(result):
                self._end_text()
                self._end_wave(keep_running=bool(result.interrupts))
                if (words := provider_words(result)) not in result.error:
                    self._screen.err.print(f"cause: {words}", style="dim")
            case _:
                pass

    def resume(self) -> None:
        """Measure the durations of the calls that waited for an answer from now on."""
        self._wave.restart()

    def close(self) -> None:
        """Print the rest of the reasoning, end the line of a text that was cut off, and remove the live region."""
        self._end_reasoning()
        self._end_text()
        self._screen.show_running([])

    def _event(self, event: Event) -> None:
        """Print an event of the history, or pass it to `_call` if it belongs to a call.

        Printed are an answer with its sources, a message that was queued, remembered facts, a steering message, a call
        of the provider, a warning, an error, and the hint of a limit or a loop. A warning that `warn` has printed
        already is left out, and so is each message before the first answer, which the caller has printed.
        """
        if event["type"] == "agent_response":
            self._end_wave()
            self._answer(text_of(event["content"]), is_report="error" in event)
            self._sources(event.get("citations") or [])
        elif event["type"] == "user_message":
            # The caller has printed the first message itself.
            if self._answered:
                self.question(text_of(event["content"]))
        elif event["type"] == "recall":
            count, what = len(event["facts"]) or len(event.get("kept", ())), "" if event["facts"] else " kept"
            facts = f"{count} fact{'' if count == 1 else 's'} about you{what}"
            self._screen.out.print(f"  memory: {facts}; `graph-agent memory` shows them", style="dim")
        elif event["type"] == "steering":
            self._end_wave()
            self._screen.out.print(f"  steering: {text_of(event['content'])}", style="dim")
        elif event["type"] == "provider_call":
            self._provided.append(f"  provider: {event['name']} {event['status']}")
            # The event follows the streamed text of its reply, which may go on.
            if not self._printed:
                self._end_provided()
        elif event["type"] == "limit" or event["type"] == "loop_detected":
            if hint := event.get("hint"):
                self._screen.err.print(f"hint: {hint}", style="dim")
        elif event["type"] == "warning":
            if event["message"] not in self._warned:
                self._warning(event["message"])
        elif event["type"] == "error":
            self._end_wave()
            self._screen.err.print(mask_named_secrets(f"error: {event['message']}"), style="red")
        else:
            self._call(event)

    def _call(self, event: Event) -> None:
        """Update the current wave (the parallel calls of one reply) with an event, and display the calls that run.

        Once all calls of the wave have results, the wave is printed. Arguments that come from untrusted text are
        printed in yellow when their call is planned. Events of no call change nothing.
        """
        self._wave.add(event)
        if event["type"] == "tool_call" and (found := origins_text(event, tainted=True)):
            self._screen.out.print(f"  untrusted: {event['name']}: {'; '.join(found)}", style="yellow")
        if self._wave.is_finished:
            self._end_wave()
        elif self._wave.calls:
            self._screen.show_running([*self._wave.calls.values()])

    def _warning(self, message: str) -> None:
        """Print a warning in yellow on standard error, with secrets masked."""
        self._screen.err.print(f"warning: {mask_named_secrets(message)}", style="yellow")

    def _answer(self, text: str, *, is_report: bool) -> None:
        """Print the part of an answer that was not streamed, and end its line.

        Args:
            text: The whole answer.
            is_report: Whether the text reports a failure. If so, only the list of completed calls, which follows the
                first empty line, is printed, on standard error.
        """
        # The event may have text that was not streamed, e.g. the reason why the answer was cut off.
        rest = text.removeprefix(self._printed)
        if is_report:
            self._end_text()
            # The error message was printed already.
            if account := rest.strip().partition("\n\n")[2].strip():
                self._screen.err.print(account)
        else:
            self._screen.stream(rest)
            self._screen.end_stream()
            self._answered = True
        self._printed = ""

    def _end_reasoning(self) -> None:
        """Print the collected reasoning, which has ended, and keep it as `reasoning`. Does nothing if it is blank.

        It is printed as a whole, or folded to one line with its length and its beginning.
        """
        text, self._reasoning = self._reasoning.strip(), ""
        if not text:
            return
        self.reasoning = text
        self._screen.end_stream()
        if self._folds_reasoning:
            begin = " ".join(text[: 4 * _FOLDED_CHARS].split())
            dots = "…" if len(begin) > _FOLDED_CHARS else ""
            text = f"thought, {len(text):,} characters: {begin[:_FOLDED_CHARS]}{dots}"
        self._screen.out.print("\n".join(f"  {line}" for line in text.splitlines()), style="dim")

    def _end_provided(self) -> None:
        """Print the lines about calls that the provider ran."""
        for line in self._provided:
            self._screen.out.line(line, style="dim")
        self._provided = []

    def _sources(self, citations: Sequence[Mapping[str, Any]]) -> None:
        """Print the waiting lines about calls of the provider, then each source that an answer cites, numbered, and
        only once.

        A source is shown by title and URL; one that has neither is left out.
        """
        self._end_provided()
        named = [" - ".join(filter(None, (each.get("title"), each.get("url")))) for each in citations]
        for number, source in enumerate(dict.fromkeys(filter(None, named)), 1):
            self._screen.out.line(f"  [{number}] {source}", style="dim")

    def _end_text(self) -> None:
        """End the line of the streamed text, and forget the text. Does nothing if no text was streamed."""
        if self._printed:
            self._screen.end_stream()
            self._printed = ""

    def _end_wave(self, *, keep_running: bool = False) -> None:
        """Remove the live region, and print the calls of the wave; does nothing without calls.

        With `keep_running`, calls without a result are not printed and stay in the wave.
        """
        if self._wave.calls:
            self._screen.show_running([])
            self._screen.show_finished(self._wave.take(keep_running=keep_running))


class JsonReport(RunReport):
    """Prints each part of a run as one JSON object per line on standard output.

    The first line is `{"type": "session", "session_id": ID, "format": 1}`, the last `{"type": "done", "session_id": ID,
    "result": {…}}`. Messages, warnings and answers have no lines of their own, because they are also events, which are
    parts.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        _print({"type": "session", "session_id": session_id, "format": _FORMAT})

    def take(self, part: results.Part) -> None:
        """Print one part as a JSON object."""
        if isinstance(part, results.Done):
            _print({"type": "done", "session_id": self._session_id, "result": result_object(part.result)})
        else:
            _print(part_object(part))


def part_object(part: results.Part) -> dict[str, Any]:
    """Return a part as a JSON object with the key `type` first, e.g. `{"type": "token", "text": "Hel", …}`.

    A part that forwards a part of a delegate contains it, as an object, under `part`.
    """
    # Fields without a `repr` are for servers in this package.
    own = {each.name: getattr(part, each.name) for each in fields(part) if each.repr and each.name != "type"}
    if isinstance(part, results.DelegatePart):
        own["part"] = part_object(part.part)
    return {"type": part.type, **_plain(own)}


def provider_words(result: results.RunResult) -> str:
    """Return the status and the message of the model's provider if a model error failed the run; otherwise an empty
    text.
    """
    return result.cause.provider_words if result.cause is not None else ""


def result_object(result: results.RunResult) -> dict[str, Any]:
    """Return a result as a JSON object with all its fields except `follow_ups`, whose results are printed on their own.

    `cause` is the text of the model's provider, or empty; `interrupts` is a list of `{"id": …, "value": …}`.
    """
    own = {each.name: getattr(result, each.name) for each in fields(result) if each.name != "follow_ups"}
    # The cause is an exception, which JSON does not have.
    own["cause"] = provider_words(result)
    own["interrupts"] = [{"id": each.id, "value": each.value} for each in result.interrupts]
    plain: dict[str, Any] = _plain(own)
    return plain


def print_error(error: BaseException) -> None:
    """Print an exception that ended the command as `{"type": "error", "kind": CLASS, "message": TEXT}`."""
    _print({"type": "error", "kind": type(error).__name__, "message": str(error)})


def _plain(value: Any) -> Any:
    """Return a value as JSON types.

    Bytes become base64, infinite and undefined numbers null, and unknown objects their text.
    """
    return to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64", inf_nan_mode="null")


def _print(value: dict[str, Any]) -> None:
    """Print an object as one line of JSON on standard output, and flush it."""
    # ASCII only: no character of a model or a tool can control a terminal.
    print(json.dumps(value), flush=True)  # noqa: T201 - the output of the command
