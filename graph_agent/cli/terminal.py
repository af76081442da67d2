"""Terminal output of the commands; untrusted text cannot control the terminal."""

from __future__ import annotations

from rich.console import Console

from graph_agent._internal.printable import printable, printable_lines


class Terminal:
    """Prints text literally: without rich's markup and emoji codes, and with control characters as escapes.

    Args:
        stderr: Whether this is standard error; otherwise standard output.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        self._console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False, stderr=stderr)

    def print(self, text: str = "", *, style: str | None = None, end: str = "\n") -> None:
        """Print a text.

        Args:
            text: Any text; its line feeds and tabs are kept.
            style: A style of rich, e.g. `dim`.
            end: Text printed after it.
        """
        self._console.print(printable_lines(text), style=style, end=end)

    def line(self, text: str, *, style: str | None = None) -> None:
        """Print a text as one line, with line feeds and tabs as escapes too.

        Args:
            text: Any text.
            style: As for `print`.
        """
        self._console.print(printable(text), style=style)

    def input(self, prompt: str) -> str:
        """Print a prompt in bold, and read one line.

        Raises:
            EOFError: At the end of standard input.
        """
        self._console.print(prompt, style="bold", end="")
        return input()
