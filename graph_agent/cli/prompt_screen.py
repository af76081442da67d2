"""The screen of a conversation: output above the input line, and a live region that belongs to the prompt."""

from __future__ import annotations

import io
import os
import time

from prompt_toolkit.formatted_text import ANSI
from rich.console import Console, RenderableType
from rich.text import Text

from graph_agent._internal.printable import printable_lines
from graph_agent.cli.steps import ShownCall, draw_calls
from graph_agent.cli.terminal import Terminal

_ROWS = 12
"""Maximum rows of the live region."""
_LABEL = "\x1b[36m> \x1b[0m"
"""The label of the input line, in a colour for the same reason as in `LineEditor.read`."""


class PromptScreen:
    """A terminal whose input line stays open while a run prints above it.

    Only whole lines are printed above; the unfinished line of an answer and the running calls are in the prompt.
    """

    is_live = True

    def __init__(self) -> None:
        self.out, self.err = Terminal(), Terminal(stderr=True)
        self._unfinished = ""
        self._calls: list[ShownCall] = []
        self._since: float | None = None

    def set_busy(self, busy: bool) -> None:
        """Show, or stop showing, that a run is under way."""
        self._since = time.monotonic() if busy else None

    def stream(self, text: str) -> None:
        """As `Screen.stream`."""
        lines, line_feed, rest = (self._unfinished + text).rpartition("\n")
        if line_feed:
            self.out.print(lines)
        self._unfinished = rest

    def end_stream(self) -> None:
        """As `Screen.end_stream`."""
        if self._unfinished:
            self.out.print(self._unfinished)
            self._unfinished = ""

    def show_running(self, calls: list[ShownCall]) -> None:
        """As `Screen.show_running`."""
        if calls:
            self.end_stream()
        self._calls = calls

    def show_finished(self, calls: list[ShownCall]) -> None:
        """As `Screen.show_finished`."""
        if calls:
            self.out.draw(draw_calls(calls, self.out.console.width))

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
