"""Shows a run and the calls of its current wave on plain streams, or on a terminal with a live region."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from prompt_toolkit.formatted_text import ANSI
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from graph_agent.base._internal.text import printable, printable_lines, text_of
from graph_agent.core.state.events import NOT_RUN, SUCCESSES
from graph_agent.interfaces.cli.terminal import Terminal, log_stream

_SIGNS = {
    "running": ("…", ""),
    "success": ("✓", "green"),
    "answered": ("✓", "green"),
    "error": ("✗", "red"),
    "denied": ("✗", "red"),
    "invalid": ("✗", "red"),
    "unknown": ("?", "yellow"),
}
_SKIPPED = ("-", "dim")
_REASON_LENGTH = 60
"""Maximum characters of a failed call's reason in its row."""


@dataclass(slots=True)
class ShownCall:
    """One call of a wave."""

    id: str
    action: Literal["tool_call", "delegate"]
    target: str
    step: int
    planned_at: datetime
    """Time of its `tool_call` or `delegation_request` event."""
    status: str = "running"
    duration_s: float | None = None
    """Seconds from its start event to its result; None while it runs."""
    has_result: bool = False
    """Whether the event of its result has been shown."""
    reason: str = ""
    """The beginning of its error; empty if it succeeded."""
    started: float = field(default_factory=time.monotonic)
    """Time on the monotonic clock at which it was shown first."""


class Wave:
    """The calls of one wave, from their events."""

    def __init__(self) -> None:
        self.calls: dict[str, ShownCall] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in an event; events that concern no call are ignored."""
        match event["type"]:
            case "tool_call":
                self._start(event, "tool_call", event["name"])
            case "delegation_request":
                self._start(event, "delegate", event["target"])
            case "tool_result" | "delegation_response" if event["id"] in self.calls:
                call = self.calls[event["id"]]
                call.status, call.has_result = event["status"], True
                call.duration_s = (datetime.fromisoformat(event["ts"]) - call.planned_at).total_seconds()
                if call.status not in SUCCESSES:
                    call.reason = " ".join(text_of(event["content"])[: 4 * _REASON_LENGTH].split())[:_REASON_LENGTH]

    def finish(self, id_: str, status: str) -> None:
        """Show the status of a call whose result is there, and whose event waits for those of earlier calls."""
        if (call := self.calls.get(id_)) is not None and call.duration_s is None:
            call.status, call.duration_s = status, time.monotonic() - call.started

    def _start(self, event: Mapping[str, Any], action: Literal["tool_call", "delegate"], target: str) -> None:
        at = datetime.fromisoformat(event["ts"])
        self.calls[event["id"]] = ShownCall(event["id"], action, target, event["step"], at)

    @property
    def is_finished(self) -> bool:
        """Whether there are calls, and each has its result."""
        return bool(self.calls) and all(call.has_result for call in self.calls.values())

    def take(self, *, keep_running: bool) -> list[ShownCall]:
        """Return the calls, and begin a new wave; with `keep_running`, keep those without a result."""
        running = {id_: call for id_, call in self.calls.items() if keep_running and not call.has_result}
        taken = [call for id_, call in self.calls.items() if id_ not in running]
        self.calls = running
        return taken

    def restart(self) -> None:
        """Measure the durations of the running calls from now on: a person has answered."""
        for call in self.calls.values():
            call.planned_at, call.started = datetime.now(UTC), time.monotonic()


def draw_calls(calls: list[ShownCall], width: int) -> RenderableType:
    """Return the rows of a wave: one line for a single call, a table for parallel calls."""
    if len(calls) == 1:
        line = Text("  ").append(f"step {calls[0].step}: {calls[0].action} {printable(calls[0].target)}", "dim")
        line.append("  ").append(_duration(calls[0]), "dim").append(" ").append(_sign(calls[0]))
        return _with_reason(line, calls[0])
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False, width=max(20, width - 4))
    table.add_column(ratio=1, overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(width=1)
    for call in calls:
        name = _with_reason(Text(f"    {call.action} {printable(call.target)}", "dim"), call)
        table.add_row(name, Text(_duration(call), "dim"), _sign(call))
    heading = Text(f"  step {calls[0].step}: {len(calls)} calls in parallel", "dim")
    return Group(heading, table)


def _with_reason(line: Text, call: ShownCall) -> Text:
    return line.append(f"  {printable(call.reason)}", "red") if call.reason else line


def _duration(call: ShownCall) -> str:
    if call.status in NOT_RUN:
        return "not run"
    seconds = time.monotonic() - call.started if call.duration_s is None else call.duration_s
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _sign(call: ShownCall) -> Text:
    sign, style = _SIGNS.get(call.status, _SKIPPED)
    return Text(sign, style)


class PlainScreen:
    """The output of a run: standard output and standard error, for programs and files."""

    is_live = False
    """Whether calls are shown while they run, and with their durations when they end; otherwise when they start."""

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self.out, self.err = out, err

    def stream(self, text: str) -> None:
        """Print a piece of an unfinished paragraph."""
        self.out.print(text, end="")

    def end_stream(self) -> None:
        """End the line of the streamed text, if there is one."""
        if log_stream.unfinished:
            self.out.print()

    def show_running(self, calls: list[ShownCall]) -> None:
        """Show the calls of the current wave until the next change, if live; nothing if there are none."""

    def show_finished(self, calls: list[ShownCall]) -> None:
        """Print the calls of a wave that has ended, if live."""


class LiveScreen(PlainScreen):
    """A terminal, whose last lines show the running calls."""

    is_live = True

    def __init__(self, out: Terminal, err: Terminal) -> None:
        super().__init__(out, err)
        self._calls: list[ShownCall] = []
        self._live: Live | None = None

    def show_running(self, calls: list[ShownCall]) -> None:
        """Behaves like `PlainScreen.show_running`."""
        self._calls = calls
        if calls and self._live is None:
            self.end_stream()
            self._live = Live(
                console=self.out.console, get_renderable=self._renderable, refresh_per_second=8, transient=True
            )
            self._live.start()
        elif not calls and self._live is not None:
            live, self._live = self._live, None
            with suppress(BrokenPipeError):
                live.stop()

    def show_finished(self, calls: list[ShownCall]) -> None:
        """Behaves like `PlainScreen.show_finished`."""
        if calls:
            self.out.draw(draw_calls(calls, self.out.console.width))

    def _renderable(self) -> RenderableType:
        return draw_calls(self._calls, self.out.console.width) if self._calls else ""


_ROWS = 12
"""Maximum rows of the live region."""
_LABEL = "\x1b[36m> \x1b[0m"
"""The label of the input line, in a colour for the same reason as in `LineEditor.read`."""


class PromptScreen(LiveScreen):
    """A terminal whose input line stays open while a run prints above it.

    Only whole lines are printed above; the unfinished line of an answer and the running calls are in the prompt.
    """

    def __init__(self) -> None:
        super().__init__(Terminal(), Terminal(stderr=True))
        self._unfinished = ""
        self._since: float | None = None

    def set_busy(self, busy: bool) -> None:
        """Show, or stop showing, that a run is under way."""
        self._since = time.monotonic() if busy else None

    def stream(self, text: str) -> None:
        """Behaves like `PlainScreen.stream`."""
        lines, line_feed, rest = (self._unfinished + text).rpartition("\n")
        if line_feed:
            self.out.print(lines)
        self._unfinished = rest

    def end_stream(self) -> None:
        """Behaves like `PlainScreen.end_stream`."""
        if self._unfinished:
            self.out.print(self._unfinished)
            self._unfinished = ""

    def show_running(self, calls: list[ShownCall]) -> None:
        """Behaves like `PlainScreen.show_running`."""
        if calls:
            self.end_stream()
        self._calls = calls

    def prompt(self) -> ANSI:
        """Return the live region and the label of the input line."""
        return ANSI(f"{self._live_region()}{_LABEL}")

    def _live_region(self) -> str:
        if self._since is None:
            return "\n"
        parts: list[RenderableType] = []
        width = self.out.console.width
        if self._unfinished:
            parts.append(Text(printable_lines(self._unfinished)))
        if self._calls:
            parts.append(draw_calls(self._calls, width))
        parts.append(Text(f"  working {time.monotonic() - self._since:.0f} s - Ctrl-C stops, /help", "dim"))
        return "".join(f"{line}\n" for line in _render(parts, width)[-_ROWS:])


def _render(parts: list[RenderableType], width: int) -> list[str]:
    buffer = io.StringIO()
    no_color = bool(os.environ.get("NO_COLOR"))
    console = Console(file=buffer, width=width, force_terminal=True, no_color=no_color, highlight=False)
    for part in parts:
        console.print(part)
    return buffer.getvalue().splitlines()
