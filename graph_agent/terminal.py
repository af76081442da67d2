"""The terminal of the commands, on which text of others has no effect beyond being read."""

from __future__ import annotations

from rich.console import Console

from graph_agent.printable import printable, printable_lines


class Terminal:
    """Prints text as it is: without rich's markup and emoji codes, its control characters shown as escapes.

    Args:
        stderr: Whether this is standard error; otherwise standard output.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        self._console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False, stderr=stderr)

    def print(self, text: str = "", *, style: str | None = None, end: str = "\n") -> None:
        """Print a text.

        Args:
            text: Any text; its line feeds and tabs stay.
            style: One of rich's, e.g. `dim`.
            end: What comes behind it.
        """
        self._console.print(printable_lines(text), style=style, end=end)

    def line(self, text: str, *, style: str | None = None) -> None:
        """Print a text as one line, whose line feeds and tabs are escapes too.

        Args:
            text: Any text.
            style: As for `print`.
        """
        self._console.print(printable(text), style=style)

    def input(self, prompt: str) -> str:
        """Read one line behind a prompt in bold.

        Raises:
            EOFError: At the end of standard input.
        """
        self._console.print(prompt, style="bold", end="")
        return input()
