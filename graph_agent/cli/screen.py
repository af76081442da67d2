"""Where a run is shown: plain streams, or a terminal with a live region."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from rich.console import RenderableType
from rich.live import Live

from graph_agent.cli.steps import ShownCall, draw_calls
from graph_agent.cli.terminal import Terminal


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
        """Show the calls of the current wave until the next change; empty for none."""
        ...

    def show_finished(self, calls: list[ShownCall]) -> None:
        """Print the calls of a wave that has ended."""
        ...


class PlainScreen:
    """Standard output and standard error, for programs and files."""

    is_live = False

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self.out, self.err = out, err
        self._unfinished = False

    def stream(self, text: str) -> None:
        """As `Screen.stream`."""
        self.out.print(text, end="")
        self._unfinished = True

    def end_stream(self) -> None:
        """As `Screen.end_stream`."""
        if self._unfinished:
            self.out.print()
            self._unfinished = False

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
        """As `Screen.show_running`."""
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
        """As `Screen.show_finished`."""
        if calls:
            self.out.draw(draw_calls(calls, self.out.console.width))

    def _renderable(self) -> RenderableType:
        return draw_calls(self._calls, self.out.console.width) if self._calls else ""
