"""Opens the line editor: history, several lines, and an external editor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import AnyFormattedText, FormattedText
from prompt_toolkit.history import DummyHistory, FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output

HISTORY_VARIABLE = "GRAPH_AGENT_HISTORY"
"""Environment variable with the path of the history file; if it is set and empty, the history is kept in memory."""


def history_path() -> Path | None:
    """Return the path of the file with earlier inputs; None to keep them in memory only.

    The path is the value of `GRAPH_AGENT_HISTORY`, or None if the variable is empty. If it is not set, the path is
    `graph-agent/history` in `$XDG_STATE_HOME`, or in `~/.local/state` if `XDG_STATE_HOME` is no absolute path. Raises
    `RuntimeError` if the home folder is needed and unknown.
    """
    given = os.environ.get(HISTORY_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    state = os.environ.get("XDG_STATE_HOME") or ""
    # The XDG specification ignores relative paths.
    folder = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return folder / "graph-agent" / "history"


def open_history() -> History:
    """Return the history of earlier inputs, from the file that `history_path` names.

    The file and its folders are created if needed, for this user only. If there is no path, or the file cannot be
    written, the history is kept in memory.
    """
    try:
        path = history_path()
        if path is None:
            return InMemoryHistory()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        # A file that cannot be written would fail at the first input only.
        with path.open("ab"):
            return FileHistory(path)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return InMemoryHistory()


def terminal_output() -> Output:
    """Return the terminal that prompt_toolkit writes to: the one behind standard output, or else behind standard error.

    Requests for the cursor position are switched off, because their answers could be read as typed keys.
    """
    output = create_output(always_prefer_tty=True)
    if isinstance(output, Vt100_Output):
        # The terminal's answers to requests for the cursor position could arrive as keys of the next input.
        output.enable_cpr = False
    return output


class LineEditor:
    """Reads inputs of one or several lines from a terminal.

    Enter ends the input; Alt-Enter, or a backslash at the end of a line, starts a new line. Ctrl-X Ctrl-E opens the
    input in `$VISUAL` or `$EDITOR`.

    Args:
        history: The earlier inputs, for the arrow keys; None to keep none.
        on_interrupt: Called for the key Ctrl-C with the typed text, in place of raising `KeyboardInterrupt` from
            `read`; returns whether to clear the text. None to raise.
        on_signal: Called for SIGINT; returns False to raise `KeyboardInterrupt` from `read`. None to raise.
        read_from: Source of keys; None for the terminal.
        write_to: The screen; None for the terminal.
    """

    def __init__(
        self,
        history: History | None = None,
        on_interrupt: Callable[[str], bool] | None = None,
        on_signal: Callable[[], bool] | None = None,
        *,
        read_from: Input | None = None,
        write_to: Output | None = None,
    ) -> None:
        keys = KeyBindings()
        keys.add("enter")(_enter)
        keys.add("escape", "enter")(_new_line)
        if on_interrupt is not None:

            @keys.add("c-c")
            def interrupt(event: KeyPressEvent) -> None:
                """Handle Ctrl-C: call `on_interrupt` with the typed text, and clear the text if it returns True."""
                if on_interrupt(event.current_buffer.text):
                    event.current_buffer.reset()

        if on_signal is not None:

            @keys.add("<sigint>")
            def signalled(event: KeyPressEvent) -> None:
                """Call `on_signal`, and raise `KeyboardInterrupt` from `read` if it returns False."""
                if not on_signal():
                    event.app.exit(exception=KeyboardInterrupt)

        self.session: PromptSession[str] = PromptSession(
            history=history or DummyHistory(),
            key_bindings=keys,
            multiline=True,
            prompt_continuation="… ",
            enable_open_in_editor=True,
            tempfile_suffix=".yaml",
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
            input=read_from,
            output=write_to or terminal_output(),
        )

    async def read(self, label: AnyFormattedText, *, default: str = "", handle_signal: bool = True) -> str:
        """Read one input, which may be empty, and return it without its last line feed.

        Raises `EOFError` for Ctrl-D in an empty input, and `KeyboardInterrupt` for Ctrl-C or SIGINT that no callback
        handles.

        Args:
            label: The prompt; a text is drawn in cyan. A function is called at each redraw.
            default: Editable text that the input begins with.
            handle_signal: Handle SIGINT while reading; False leaves it to the handler of the process.
        """
        # A space without a colour would be a movement of the cursor.
        shown: AnyFormattedText = FormattedText([("ansicyan", label)]) if isinstance(label, str) else label
        return await self.session.prompt_async(shown, default=default, handle_sigint=handle_signal)


def _enter(event: KeyPressEvent) -> None:
    """End the input.

    If the cursor is at the end of the input, behind a backslash, replace the backslash by a line feed instead.
    """
    buffer = event.current_buffer
    if buffer.document.current_line_before_cursor.endswith("\\") and buffer.document.is_cursor_at_the_end:
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    else:
        buffer.validate_and_handle()


def _new_line(event: KeyPressEvent) -> None:
    """Insert a line feed at the cursor."""
    event.current_buffer.insert_text("\n")
