"""Detection of the first possible call in streamed text."""

from __future__ import annotations

import re

from graph_agent.calls.fences import code_language
from graph_agent.calls.tags import TAG

_CANDIDATE = re.compile(r"[{\[<◁]|`+|~{2,}|~\Z|\bf(?:u(?:n(?:c(?:t(?:o(?:o(?:ls?)?)?)?)?)?)?)?\Z|\bfunctools\[")
_BRACE = re.compile(r"\{\s*+(?:[\"'“A-Za-z_/#}]|(?P<open>\Z))")
_BRACKET = re.compile(r"\[(?:TOOL_CALLS\]|\s*+(?:[{\"'\[]|[^\W\d][\w.]*+\s*+\(|(?P<open>(?:[^\W\d][\w.]*+)?\s*+\Z)))")
_FENCE = re.compile(r"(?P<marks>`{3,}|~{3,})[ \t]*+(?P<language>[A-Za-z][\w.+#-]*+)?(?P<open>\Z)?")
_FUNCTION = re.compile(r"<(?:[a-z]{1,16}:|｜DSML｜)?(?:function|invoke)[= ]")
_OPEN_TAG = re.compile(r"[<◁](?:[|｜A-Za-z][^>\n]*+)?+\Z")
_LONGEST_TAG = 80
"""Maximum characters of a tag; a longer unclosed one is text."""
_LONGEST_OPENING = 200
"""Characters by which a leading call is recognized."""


class CallOpening:
    """Finds the length of a growing text before its first possible call.

    Text that looks like the start of a call counts as one, because the rest may complete it. Markdown links, other
    tags, inline code and blocks of program code do not count.
    """

    def __init__(self) -> None:
        self._at = 0
        """Index up to which the text holds no call."""
        self._code: re.Pattern[str] | None = None
        """Pattern that closes the open block of program code; None outside a block."""

    def before(self, text: str) -> int:
        """Return the index up to which `text` holds no call, independent of later text.

        Args:
            text: The text so far; it starts with the text of the previous call.
        """
        while True:
            if self._code is not None:
                if (closing := self._code.search(text, self._at)) is None:
                    self._at = max(self._at, text.rfind("\n") + 1)
                    return len(text)
                self._code, self._at = None, closing.end()
            if (candidate := _CANDIDATE.search(text, self._at)) is None:
                return len(text)
            after = self._past(text, candidate)
            if after is None:
                self._at = candidate.start()
                return self._at
            self._at = after

    def _past(self, text: str, candidate: re.Match[str]) -> int | None:
        """Return the index to continue from after a candidate; None if it may be a call."""
        start, first = candidate.start(), candidate[0][0]
        if first in "{[":
            return None if (_BRACE if first == "{" else _BRACKET).match(text, start) else start + 1
        if first == "f":
            return None
        if first in "`~":
            return self._past_fence(text, candidate)
        return None if _may_be_tag(text[start : start + _LONGEST_TAG]) else start + 1

    def _past_fence(self, text: str, candidate: re.Match[str]) -> int | None:
        fence = _FENCE.match(text, candidate.start())
        if fence is None:
            # A run at the end may still become a fence.
            return None if candidate.end() == len(text) else candidate.end()
        if fence["open"] is not None or not code_language(fence["language"] or ""):
            return None
        self._code = re.compile(rf"^[ \t>]*+{fence['marks']}", re.MULTILINE)
        return fence.end()


def may_begin_with_call(text: str) -> bool:
    """Whether a text, or the text that it may become, begins with a call."""
    return CallOpening().before(text.lstrip()[:_LONGEST_OPENING]) == 0


def _may_be_tag(text: str) -> bool:
    if TAG.match(text) or _FUNCTION.match(text):
        return True
    return len(text) < _LONGEST_TAG and _OPEN_TAG.match(text) is not None
