"""Text of others, made fit for a terminal and a log: its control characters are shown as escapes."""

from __future__ import annotations

import re

# C0 and C1 controls (ESC, CSI, NEL), line and paragraph separators, bidirectional overrides, lone surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LAYOUT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return one line of text, in which each control character is an escape such as `\n` or `\x1b`."""
    return text if text.isprintable() else _CONTROLS.sub(_escape, text)


def printable_lines(text: str) -> str:
    """As `printable`, for a text of several lines: line feeds and tabs stay, and CR LF becomes a line feed."""
    return text if text.isprintable() else _LAYOUT.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
