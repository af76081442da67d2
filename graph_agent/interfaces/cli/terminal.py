"""Writes terminal output of the commands; untrusted text cannot control the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console, RenderableType

from graph_agent.base._internal.text import printable, printable_lines


class Terminal:
    """Prints text literally: codes of rich such as `[red]` and `:smile:` have no effect, and control characters become
    escapes.

    Args:
        stderr: Print to standard error in place of standard output.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        self.console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False, stderr=stderr)
        """The console of rich.

        Text that is printed on it directly is not escaped, so it must not contain control characters of a model or a
        tool.
        """

    @property
    def is_terminal(self) -> bool:
        """Whether the stream is a terminal, and neither a file nor a pipe."""
        return self.console.is_terminal

    def print(self, text: str = "", *, style: str | None = None, end: str = "\n") -> None:
        """Print a text, which may have several lines. Control characters except line feeds and tabs become escapes.

        Before a text on standard error, an unfinished line of standard output is ended if both are the same device. A
        text on standard output that does not end with a line feed delays log records until its line ends (see
        `TerminalLogStream`).

        Args:
            style: A style of rich, e.g. `red`; ignored unless the stream is a terminal.
            end: What follows the text; empty to continue the line later.
        """
        shown = printable_lines(text)
        # Otherwise the text would continue the unfinished line.
        if self.console.stderr:
            log_stream.end_line()
        if self.is_terminal:
            self.console.print(shown, style=style, end=end)
        else:
            # rich would replace tabs by spaces.
            self.console.file.write(shown + end)
            # A program that reads the pipe must receive each step when it happens.
            self.console.file.flush()
        if not self.console.stderr and shown + end:
            log_stream.set_unfinished(not (shown + end).endswith("\n"))

    def line(self, text: str, *, style: str | None = None) -> None:
        """Print a text as exactly one line, in which line feeds and tabs become escapes, too; `style` is as for
        `print`.
        """
        self.print(printable(text), style=style)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str], right: Sequence[str] = ()
    ) -> None:
        """Print a table without borders, with a bold heading. Long cells are folded; control characters become escapes.

        Args:
            columns: The names of the columns, at least two.
            rows: The rows, each with one cell for each column.
            styles: One style of rich for each row, which is applied to the row's second cell; an empty text for no
                style.
            right: The names of the columns that are aligned to the right.
        """
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
        """Print a renderable of rich, such as a table.

        Its texts are not escaped, so they must not contain control characters of a model or a tool.
        """
        # rich must know the width: with soft wrapping, a table is as wide as its content.
        self.console.print(renderable, soft_wrap=False)


class TerminalLogStream:
    """A stream to standard error for log records, which must not appear in the middle of a line of standard output.

    While a line of standard output is unfinished and both streams are the same terminal, file or pipe, records are kept
    in memory. They are written when the line ends.
    """

    def __init__(self) -> None:
        self.unfinished = False
        """Whether the last text on standard output ended without a line feed."""
        self._waiting: list[str] = []

    def write(self, text: str) -> int:
        """Write a log record to standard error, and return the number of characters.

        The record is kept in memory instead while standard output has an unfinished line and both streams are the same
        terminal, file or pipe; it is written when the line ends.
        """
        if self.unfinished and _is_one_device():
            self._waiting.append(text)
        else:
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush standard error."""
        sys.stderr.flush()

    def end_line(self) -> None:
        """End an unfinished line of standard output with a line feed, and write the kept records.

        Does nothing if no line is unfinished, or if the two streams are not the same terminal, file or pipe.
        """
        if self.unfinished and _is_one_device():
            sys.stdout.write("\n")
            sys.stdout.flush()
            self.set_unfinished(False)

    def set_unfinished(self, unfinished: bool) -> None:
        """Record whether the last line of standard output is unfinished. If it is finished, write the kept records."""
        self.unfinished = unfinished
        if not unfinished and self._waiting:
            sys.stdout.flush()
            waiting, self._waiting = self._waiting, []
            sys.stderr.write("".join(waiting))
            sys.stderr.flush()


log_stream = TerminalLogStream()
"""The stream of the log records of this process, shared with every `Terminal`."""


def escape_unencodable() -> None:
    """Make both output streams write characters that their encoding lacks as escapes, in place of raising
    `UnicodeEncodeError`.

    A stream that was replaced by an object without `reconfigure` is left unchanged.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # replaced by a program that embeds the command line
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper has it


def _is_one_device() -> bool:
    """Return whether standard output and standard error are the same terminal, file or pipe.

    Returns False if one of them has no file descriptor.
    """
    try:
        one, other = (os.fstat(stream.fileno()) for stream in (sys.stdout, sys.stderr))
    except (OSError, ValueError):
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
