"""Switches off the echo of typed keys before a conversation imports anything that loads slowly."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import Any

_ENDINGS = ("SIGHUP", "SIGQUIT", "SIGTERM")
"""Names of the signals that end the process without its exit handlers."""
_before: list[Any] = []
"""The terminal's attributes before `hide_typed_keys` changed them; empty if they are unchanged."""


def hide_typed_keys() -> None:
    """Stop the terminal's echo of typed keys, until `show_typed_keys` is called or the process ends or is suspended.

    Typed keys stay in the terminal's buffer, and the next reader displays them. Handlers for SIGHUP, SIGQUIT, SIGTERM
    and SIGTSTP and an exit handler restore the echo. Does nothing if standard input is not a terminal, the process is
    in the background, or the echo is stopped already.
    """
    if (terminal := _own_terminal()) is None or _before:
        return
    import termios

    attributes = termios.tcgetattr(terminal)
    _before.extend(attributes)
    # The handlers come first: a signal in between must find them.
    for name in _ENDINGS:
        _handle(getattr(signal, name), _end)
    _handle(signal.SIGTSTP, _suspend)
    atexit.register(show_typed_keys)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def show_typed_keys() -> None:
    """Undo `hide_typed_keys`. Does nothing if the echo was not stopped, or the process is in the background."""
    if _before and (terminal := _own_terminal()) is not None:
        import termios

        termios.tcsetattr(terminal, termios.TCSANOW, _before)
        _before.clear()


def discard_typed_keys() -> None:
    """Drop the keys that were typed and not read yet, so that they cannot answer a question that was not displayed yet.

    Does nothing if standard input is not a terminal, or the process is in the background.
    """
    if (terminal := _own_terminal()) is not None:
        import termios

        termios.tcflush(terminal, termios.TCIFLUSH)


def _own_terminal() -> int | None:
    """Return the file descriptor of standard input if it is a terminal with this process in its foreground, else
    None.
    """
    try:
        number = sys.stdin.fileno()
        # The system stops a background process that changes the terminal.
        return number if os.tcgetpgrp(number) == os.getpgrp() else None
    except (AttributeError, OSError, ValueError):  # AttributeError: Windows
        return None


def _handle(number: int, handler: Any) -> None:
    """Set the handler of the signal `number`, unless it has a handler or is ignored already."""
    # A signal that is ignored, as after `nohup`, stays ignored.
    if signal.getsignal(number) == signal.SIG_DFL:
        signal.signal(number, handler)


def _show_cursor() -> None:
    """Show the terminal's cursor, which the live display of a run hides; errors of writing are ignored."""
    if (terminal := _own_terminal()) is not None:
        with suppress(OSError):
            os.write(terminal, b"\x1b[?25h")


def _end(number: int, _: object) -> None:
    """Signal handler: restore the cursor and the echo, and end the process by the signal's default action."""
    _show_cursor()
    show_typed_keys()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _suspend(number: int, _: object) -> None:
    """Signal handler for Ctrl-Z: restore the cursor and the echo, and suspend the process.

    When the process continues, the handler is set again, and the echo is stopped again if it was stopped before and the
    process is in the foreground.
    """
    import termios

    before, terminal = [*_before], _own_terminal()
    hidden = termios.tcgetattr(terminal) if terminal is not None and before else None
    _show_cursor()
    show_typed_keys()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    # The process continues here.
    signal.signal(number, _suspend)
    if hidden is not None and (terminal := _own_terminal()) is not None:
        _before.extend(before)
        termios.tcsetattr(terminal, termios.TCSANOW, hidden)
