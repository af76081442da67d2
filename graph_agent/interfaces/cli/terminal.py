"""Writes terminal output of the commands; untrusted text cannot control the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console, RenderableType

from graph_agent.base._internal.text import printable, printable_lines


class Terminal:
    """Prints text literally: without rich's markup and emoji codes, and with control characters as escapes."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False, stderr=stderr)
        """The console; text that is printed on it directly must be safe."""

    @property
    def is_terminal(self) -> bool:
        """Whether a person sees the output."""
        return self.console.is_terminal

    def print(self, text: str = "", *, style: str | None = None, end: str = "\n") -> None:
        """Print a text."""
        shown = printable_lines(text)
        if self.console.stderr:
            log_stream.end_line()
        if self.is_terminal:
            self.console.print(shown, style=style, end=end)
        else:
            # rich would replace tabs by spaces.
            self.console.file.write(shown + end)
            self.console.file.flush()
        if not self.console.stderr and shown + end:
            log_stream.set_unfinished(not (shown + end).endswith("\n"))

    def line(self, text: str, *, style: str | None = None) -> None:
        """Print a text as one line, with line feeds and tabs as escapes too."""
        self.print(printable(text), style=style)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str], right: Sequence[str] = ()
    ) -> None:
        """Print rows of text below a heading; `styles` are those of the second column, `right` are right-aligned."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold", justify="right" if column in right else "left")
        for row, style in zip(rows, styles, strict=True):
            cells = [Text(printable(cell)) for cell in row]
            cells[1].stylize(style)
            table.add_row(*cells)
        self.draw(table)

    def draw(self, renderable: RenderableType) -> None:
        """Print a renderable of rich, such as a table; its texts must be safe."""
        self.console.print(renderable, soft_wrap=False)


class LogStream:
    """Standard error for log records, which are written only between the lines of standard output.

    While a line of standard output is unfinished and both streams are the same terminal, file or pipe, records wait for
    the end of the line.
    """

    def __init__(self) -> None:
        self.unfinished = False
        """Whether the last line of standard output is unfinished."""
        self._waiting: list[str] = []

    def write(self, text: str) -> int:
        """Write a record, or keep it until the line of standard output ends."""
        if self.unfinished and _is_one_device():
            self._waiting.append(text)
        else:
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush standard error."""
        sys.stderr.flush()

    def end_line(self) -> None:
        """End the unfinished line of standard output, if both streams are the same device."""
        if self.unfinished and _is_one_device():
            sys.stdout.write("\n")
            sys.stdout.flush()
            self.set_unfinished(False)

    def set_unfinished(self, unfinished: bool) -> None:
        """Record whether the last line of standard output is unfinished; if not, write the records that wait."""
        self.unfinished = unfinished
        if not unfinished and self._waiting:
            sys.stdout.flush()
            waiting, self._waiting = self._waiting, []
            sys.stderr.write("".join(waiting))
            sys.stderr.flush()


log_stream = LogStream()


def escape_unencodable() -> None:
    """Print characters that the encoding of a stream does not have as escapes, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # replaced by a program that embeds the command line
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper has it


def _is_one_device() -> bool:
    try:
        one, other = (os.fstat(stream.fileno()) for stream in (sys.stdout, sys.stderr))
    except (OSError, ValueError):
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
