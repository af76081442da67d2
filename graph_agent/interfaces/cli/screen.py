"""Shows a run and its current tool calls and delegations on plain streams, or on a terminal with a live region.

A *wave* is the calls that one reply of the model has planned, which run in parallel. The *live region* is the last
lines of the terminal, redrawn while calls run. A *delegate* is another agent that receives a task.
"""

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
from graph_agent.base.history.events import NOT_RUN, SUCCESSES
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

_ROWS = 12
"""Maximum rows of the live region."""
_LABEL = "\x1b[36m> \x1b[0m"
"""The label of the input line. It has a colour for the same reason as the label in `LineEditor.read`."""


@dataclass(slots=True)
class ShownCall:
    """One tool call or delegation of a wave, with the values that its row on the screen displays."""

    id: str
    action: Literal["tool_call", "delegate"]
    target: str
    """The name of the tool or the delegate."""
    step: int
    """Number of the plan that the call belongs to, from 1 in each input."""
    planned_at: datetime
    """Time of the event that planned the call."""
    status: str = "running"
    """`running`, or the status of the call's result, e.g. `success`, `error` or `denied`."""
    duration_s: float | None = None
    """Seconds from the planning of the call to its result; None while it runs."""
    has_result: bool = False
    """Whether the event of the call's result was received."""
    reason: str = ""
    """The beginning of the call's error, on one line; empty while the call runs or if it succeeded."""
    started: float = field(default_factory=time.monotonic)
    """Time on the monotonic clock at which the call was first displayed."""


class Wave:
    """The calls of the current wave, collected from the events of a run."""

    def __init__(self) -> None:
        self.calls: dict[str, ShownCall] = {}
        """Call id → call, in the order of planning."""

    def add(self, event: Mapping[str, Any]) -> None:
        """Add a planned call, or record the result of a known one. Every other event is ignored.

        Args:
            event: An event of the history. `tool_call` and `delegation_request` plan a call, `tool_result` and
                `delegation_response` are its result.
        """
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
                    # Cut before it is split: an output may have megabytes.
                    call.reason = " ".join(text_of(event["content"])[: 4 * _REASON_LENGTH].split())[:_REASON_LENGTH]

    def finish(self, id_: str, status: str) -> None:
        """Record that a call ended with a status, before the event of its result is stored.

        Unknown and ended calls are ignored.

        Events of results are stored in the order of the calls, so a fast call would otherwise appear to run until the
        slower ones end.
        """
        if (call := self.calls.get(id_)) is not None and call.duration_s is None:
            call.status, call.duration_s = status, time.monotonic() - call.started

    def _start(self, event: Mapping[str, Any], action: Literal["tool_call", "delegate"], target: str) -> None:
        """Add a call that an event plans; a call with the same id is replaced."""
        at = datetime.fromisoformat(event["ts"])
        self.calls[event["id"]] = ShownCall(event["id"], action, target, event["step"], at)

    @property
    def is_finished(self) -> bool:
        """Whether the wave has calls and each has its result."""
        return bool(self.calls) and all(call.has_result for call in self.calls.values())

    def take(self, *, keep_running: bool) -> list[ShownCall]:
        """Remove the calls from the wave and return them, in the order of planning.

        Args:
            keep_running: Whether calls without a result stay in the wave and are not returned.
        """
        # A run that waits for a person continues the wave later.
        running = {id_: call for id_, call in self.calls.items() if keep_running and not call.has_result}
        taken = [call for id_, call in self.calls.items() if id_ not in running]
        self.calls = running
        return taken

    def restart(self) -> None:
        """Measure the durations of all calls from now on, to leave out the time in which a person was asked."""
        for call in self.calls.values():
            call.planned_at, call.started = datetime.now(UTC), time.monotonic()


def draw_calls(calls: list[ShownCall], width: int) -> RenderableType:
    """Return the drawing of a wave: one line for a single call; a heading and one row per call for several.

    Each call has its duration and a sign for its state, and a failed one the reason.

    Args:
        calls: The calls, in the order of planning; at least one.
        width: Columns of the terminal.
    """
    if len(calls) == 1:
        line = Text("  ").append(f"step {calls[0].step}: {calls[0].action} {printable(calls[0].target)}", "dim")
        line.append("  ").append(_duration(calls[0]), "dim").append(" ").append(_sign(calls[0]))
        return _with_reason(line, calls[0])
    # Narrower than the terminal: a row as wide as it would wrap.
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
    """Append the error of a failed call to a line, in place, and return the line."""
    return line.append(f"  {printable(call.reason)}", "red") if call.reason else line


def _duration(call: ShownCall) -> str:
    """Return how long a call took, or has run so far, e.g. `1.5 s`, or from 100 s on `2.0 min`.

    Returns `not run` for a call that was denied or refused.
    """
    # A call that was denied has no duration of its own.
    if call.status in NOT_RUN:
        return "not run"
    seconds = time.monotonic() - call.started if call.duration_s is None else call.duration_s
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _sign(call: ShownCall) -> Text:
    """Return the one-character mark of a call's status, e.g. a green check mark; `-` for a status without a mark of its
    own.
    """
    sign, style = _SIGNS.get(call.status, _SKIPPED)
    return Text(sign, style)


class PlainScreen:
    """Prints a run to standard output and standard error, for programs and files. Running calls are not displayed."""

    is_live = False
    """Whether running calls are displayed and redrawn. If False, `TextReport` prints a line when each call starts."""

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self.out, self.err = out, err

    def stream(self, text: str) -> None:
        """Print a piece of text without ending its line."""
        self.out.print(text, end="")

    def end_stream(self) -> None:
        """End the line of the streamed text; does nothing if no line is unfinished."""
        if log_stream.unfinished:
            self.out.print()

    def show_running(self, calls: list[ShownCall]) -> None:
        """Do nothing; a live screen displays these running calls until the next call of the method."""

    def show_finished(self, calls: list[ShownCall]) -> None:
        """Do nothing; a live screen prints the rows of these ended calls."""


class LiveScreen(PlainScreen):
    """Prints a run to a terminal, and displays the running calls with their durations on the terminal's last lines (the
    live region).
    """

    is_live = True

    def __init__(self, out: Terminal, err: Terminal) -> None:
        super().__init__(out, err)
        self._calls: list[ShownCall] = []
        self._live: Live | None = None

    def show_running(self, calls: list[ShownCall]) -> None:
        """Display the calls in the live region, redrawn eight times a second; an empty list removes the region.

        Before the region appears, an unfinished line of streamed text is ended.
        """
        self._calls = calls
        if calls and self._live is None:
            self.end_stream()
            self._live = Live(
                console=self.out.console, get_renderable=self._renderable, refresh_per_second=8, transient=True
            )
            self._live.start()
        elif not calls and self._live is not None:
            live, self._live = self._live, None
            # The reader of the output may have ended, such as `head`.
            with suppress(BrokenPipeError):
                live.stop()

    def show_finished(self, calls: list[ShownCall]) -> None:
        """Print the rows of ended calls above the live region, where they stay; does nothing for an empty list."""
        if calls:
            self.out.draw(draw_calls(calls, self.out.console.width))

    def _renderable(self) -> RenderableType:
        """Return the current drawing of the live region."""
        return draw_calls(self._calls, self.out.console.width) if self._calls else ""


class PromptScreen(LiveScreen):
    """Prints a run above the terminal's input line, which stays open.

    Only whole lines are printed above it. The unfinished line of an answer and the running calls are part of the
    prompt, which the line editor redraws.
    """

    def __init__(self) -> None:
        super().__init__(Terminal(), Terminal(stderr=True))
        self._unfinished = ""
        self._since: float | None = None

    def set_busy(self, busy: bool) -> None:
        """Start or stop displaying `working N s`; starting begins at 0 s."""
        self._since = time.monotonic() if busy else None

    def stream(self, text: str) -> None:
        """Print the complete lines of the streamed text. The rest is kept and displayed in the prompt."""
        lines, line_feed, rest = (self._unfinished + text).rpartition("\n")
        if line_feed:
            self.out.print(lines)
        self._unfinished = rest

    def end_stream(self) -> None:
        """Print the kept rest of the streamed text as a line; does nothing if there is none."""
        if self._unfinished:
            self.out.print(self._unfinished)
            self._unfinished = ""

    def show_running(self, calls: list[ShownCall]) -> None:
        """Set the calls that the prompt displays from now on; none for an empty list.

        If there are calls, the unfinished line of streamed text is printed first.
        """
        if calls:
            self.end_stream()
        self._calls = calls

    def prompt(self) -> ANSI:
        """Return the prompt: the live region and the label of the input line, with ANSI colour codes."""
        return ANSI(f"{self._live_region()}{_LABEL}")

    def _live_region(self) -> str:
        """Return the live region as text, the last 12 lines (`_ROWS`) of it, each with a line feed.

        While no run is under way, it is a single line feed, so that the prompt keeps its height.
        """
        if self._since is None:
            # The prompt keeps its height, so that the input line does not jump.
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
    """Return drawings as lines of at most `width` columns, with ANSI codes; without colours if `NO_COLOR` is set."""
    buffer = io.StringIO()
    no_color = bool(os.environ.get("NO_COLOR"))
    console = Console(file=buffer, width=width, force_terminal=True, no_color=no_color, highlight=False)
    for part in parts:
        console.print(part)
    return buffer.getvalue().splitlines()
