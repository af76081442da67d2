"""Shows a run on plain streams, or on a terminal with a live region."""

from __future__ import annotations

import io
import os
import time
from contextlib import suppress
from typing import Protocol

from prompt_toolkit.formatted_text import ANSI
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from graph_agent._internal.text import printable_lines
from graph_agent.cli.steps import ShownCall, draw_calls
from graph_agent.cli.terminal import Terminal, log_stream


class Screen(Protocol):
    """The output of a run."""

    out: Terminal
    err: Terminal
    is_live: bool
    """Whether calls are shown while they run, and with their durations when they end; otherwise when they start."""

    def stream(self, text: str) -> None:
        """Print a piece of an unfinished paragraph."""
        ...

    def end_stream(self) -> None:
        """End the line of the streamed text, if there is one."""
        ...

    def show_running(self, calls: list[ShownCall]) -> None:
        """Show the calls of the current wave until the next change; nothing if there are none."""
        ...

    def show_finished(self, calls: list[ShownCall]) -> None:
        """Print the calls of a wave that has ended."""
        ...


class PlainScreen:
    """Standard output and standard error, for programs and files."""

    is_live = False

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self.out, self.err = out, err

    def stream(self, text: str) -> None:
        """Behaves like `Screen.stream`."""
        self.out.print(text, end="")

    def end_stream(self) -> None:
        """Behaves like `Screen.end_stream`."""
        if log_stream.unfinished:
            self.out.print()

    def show_running(self, calls: list[ShownCall]) -> None:
        """Show nothing: the calls were printed when they started."""

    def show_finished(self, calls: list[ShownCall]) -> None:
        """Show nothing: the calls were printed when they started."""


class LiveScreen(PlainScreen):
    """A terminal, whose last lines show the running calls."""

    is_live = True

    def __init__(self, out: Terminal, err: Terminal) -> None:
        super().__init__(out, err)
        self._calls: list[ShownCall] = []
        self._live: Live | None = None

    def show_running(self, calls: list[ShownCall]) -> None:
        """Behaves like `Screen.show_running`."""
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
        """Behaves like `Screen.show_finished`."""
        if calls:
            self.out.draw(draw_calls(calls, self.out.console.width))

    def _renderable(self) -> RenderableType:
        return draw_calls(self._calls, self.out.console.width) if self._calls else ""


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
        """Behaves like `Screen.stream`."""
        lines, line_feed, rest = (self._unfinished + text).rpartition("\n")
        if line_feed:
            self.out.print(lines)
        self._unfinished = rest

    def end_stream(self) -> None:
        """Behaves like `Screen.end_stream`."""
        if self._unfinished:
            self.out.print(self._unfinished)
            self._unfinished = ""

    def show_running(self, calls: list[ShownCall]) -> None:
        """Behaves like `Screen.show_running`."""
        if calls:
            self.end_stream()
        self._calls = calls

    def show_finished(self, calls: list[ShownCall]) -> None:
        """Behaves like `Screen.show_finished`."""
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
