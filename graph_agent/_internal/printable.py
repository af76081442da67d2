"""Escaping of control characters in untrusted text, for terminals and logs."""

from __future__ import annotations

import re

# C0 and C1 controls (ESC, CSI, NEL), line and paragraph separators, bidirectional overrides, lone surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LAYOUT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return the text as one line, with each control character as an escape such as `\n` or `\x1b`."""
    return text if text.isprintable() else _CONTROLS.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Like `printable`, but keep line feeds and tabs, and replace CR LF by a line feed."""
    return text if text.isprintable() else _LAYOUT.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
