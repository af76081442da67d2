"""Draws the calls of the current wave, with names, durations and results, as lines or as a table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graph_agent._internal.text import printable, text_of
from graph_agent.state.events import NOT_RUN, SUCCESSES

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
    """The tool or the delegate."""
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
        """Call id → call, in the order planned."""

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
        """Return the calls, and begin a new wave.

        Args:
            keep_running: Whether to return only the calls with a result, and to keep the others.
        """
        running = {id_: call for id_, call in self.calls.items() if keep_running and not call.has_result}
        taken = [call for id_, call in self.calls.items() if id_ not in running]
        self.calls = running
        return taken

    def restart(self) -> None:
        """Measure the durations of the running calls from now on: a person has answered."""
        for call in self.calls.values():
            call.planned_at, call.started = datetime.now(UTC), time.monotonic()


def draw_calls(calls: list[ShownCall], width: int) -> RenderableType:
    """Return the rows of a wave: one line for a single call, a table for parallel calls.

    Args:
        calls: The calls; not empty.
    """
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
