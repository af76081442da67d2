"""Filters an incomplete reply: shows neither the sentinel nor a call written as text.

The sentinel `No more actions.` is the planning reply of a model that makes no calls and gives no answer yet.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from graph_agent.base._internal.text import REASONING, after_reasoning
from graph_agent.models.wire.parsing.tags import FAMILY, FUNCTION_START, MARKUP, TAG, code_language
from graph_agent.models.wire.parsing.turns import TURN_MARK, ProseEnd, leading_length, without_leading

if TYPE_CHECKING:
    from graph_agent.models.stream_watch import Visibility

SENTINEL = "No more actions."

_WHOLE = re.compile(
    r"\W*no\s+(?:more|further)\s+actions?(?:\s+(?:(?:is|are)\s+)?(?:needed|required|necessary))?\W*", re.IGNORECASE
)
_FORMS = tuple(
    f"no {more} {actions}{verb} {needed}"
    for more in ("more", "further")
    for actions in ("action", "actions")
    for verb in ("", " is", " are")
    for needed in ("needed", "required", "necessary")
)
_SENTINEL_BEGIN = re.compile(r"[\W_]*(?:n(?:o(?:\s|\Z)|\Z)|\Z)", re.IGNORECASE)
"""Matches a line that is or may become the sentinel by its first letters; a cheap test before `_WHOLE`."""
_LONGEST = 80
"""Maximum characters of a line with the sentinel, including surrounding punctuation."""


_NOTICES = (
    "[Notice from the agent framework",
    "[A notice of the framework",
    "While you were working, the user said:",
    "Now provide your final response to the user",
    *(f"Reached {limit} (" for limit in ("maximum reasoning steps", "maximum model turns", "the token budget")),
)
"""Beginnings of this framework's notices, which a small model may repeat instead of answering."""
_RESULTS = ("<tool_result ", "<tool_result>", "<tool_response>")
_ECHO_BEGIN = {"", *(echoed[0] for echoed in (*_NOTICES, *_RESULTS))}
"""First characters of an echo, and the empty text; a cheap test that rejects most texts."""
_ECHO = re.compile(
    rf"\s*+(?:(?:{'|'.join(map(re.escape, _NOTICES))})(?>(?:[^\n]++|\n(?![ \t]*+\n))*)(?:\n[ \t]*+\n|\Z)"
    r"|<(?P<tag>tool_result|tool_response)[ >](?>(?:[^<]++|<(?!/(?P=tag)>))*)(?:</(?P=tag)>|\Z))"
)
_CANDIDATE = re.compile(
    r"[{\[<◁]|\](?=<\]m|<?\Z|<\]\Z)|`+|~{2,}|~\Z|\bf(?:u(?:n(?:c(?:t(?:o(?:o(?:ls?)?)?)?)?)?)?)?\Z|\bfunctools\["
)
_NOT_PLAIN = re.compile(r"[\n{\[\]<◁`~]|\bf(?:u(?:n(?:c(?:t(?:o(?:o(?:ls?)?)?)?)?)?)?)?\Z")
"""Matches a line end, or a character with which a `_CANDIDATE` may begin or end."""
_BRACE = re.compile(r"\{\s*+(?:[\"'“A-Za-z_/#}]|(?P<open>\Z))")
_BRACKET = re.compile(
    r"\[(?:TOOL_CALLS\]|unused11\]|\s*+(?:[{\"'\[]|[^\W\d][\w.]*+\s*+\(|(?P<open>(?:[^\W\d][\w.]*+)?\s*+\Z)))"
)
_FENCE = re.compile(r"(?P<marks>`{3,}|~{3,})[ \t]*+(?P<language>[A-Za-z][\w.+#-]*+)?(?P<open>\Z)?")
_OPEN_TAG = re.compile(r"[<◁](?>(?:[|｜A-Za-z][^>\n]*+)?)\Z")
_LONGEST_TAG = 80
"""Maximum characters of a tag; a longer run without `>` is text."""
_LONGEST_OPENING = 200
"""Characters at the beginning of a reply that decide whether it begins with a call."""


_UNUSUAL = ("<", "[", "◁", "act", *(notice.lower() for notice in _NOTICES))
"""Parts in lower case, of which each sentinel, echo, reasoning and header has one, and most answers have none."""


def is_sentinel(text: str) -> bool:
    """Whether a text is only the sentinel, `No more actions.` or a variant of it.

    Case, white space, quotes, other surrounding punctuation, and preceding reasoning in `<think>` are ignored.
    """
    return _WHOLE.fullmatch(after_reasoning(text).strip()[: _LONGEST + 1]) is not None


def is_blank(text: str) -> bool:
    """Whether a text has only white space, `<think>` reasoning and a header of the assistant's turn."""
    return not without_leading(after_reasoning(text))


def has_no_answer(text: str) -> bool:
    """Whether a text has no answer: it is blank, the sentinel (`No more actions.`), or only repeats notices and results
    of this package.
    """
    return is_blank(text[_echo_length(text) :]) or is_sentinel(text)


def _echo_length(text: str) -> int:
    """Return the length of copied notices and tool results at the beginning of a text; 0 if there are none."""
    at = 0
    while (echo := _ECHO.match(text, at)) is not None:
        at = echo.end()
    return at


def without_sentinel(text: str) -> str:
    """Remove sentinel lines (`No more actions.`), copied notices and white space around them from the beginning and end
    of a complete text.

    Returns an empty text if `has_no_answer(text)`. A text without any of these only loses its leading white space.
    """
    lower = text.lower()
    if not any(part in lower for part in _UNUSUAL):
        return text.lstrip()
    if has_no_answer(text):
        return ""
    # An additional line completes the last one.
    kept = text[visible_begin(f"{text}\n.") :]
    while (last := _last_line(kept)) and _WHOLE.fullmatch(kept[last:][: _LONGEST + 1]):
        kept = kept[:last].rstrip()
    return "" if is_sentinel(kept) else kept


def visible_begin(text: str) -> int | None:
    """Return the index at which the visible part of an incomplete reply begins; None while that is undecided.

    Undecided are a text that may still become the sentinel (`No more actions.`) or a copied notice, and `<think>`
    reasoning until text follows it. Leading white space, sentinel lines and copied notices are skipped. Once found, the
    index stays the same for longer texts.
    """
    echo = _echo_length(text)
    whole, text = text, text[echo:]
    rest = after_reasoning(text).lstrip()
    line, ended, following = rest.partition("\n")
    if not ended and (REASONING.startswith(line) or _may_become_sentinel(line)):
        return None
    if rest[:1] in _ECHO_BEGIN and any(echoed.startswith(rest[: len(echoed)]) for echoed in (*_NOTICES, *_RESULTS)):
        return None
    if not ended or not _WHOLE.fullmatch(line[: _LONGEST + 1]):
        leading = leading_length(text)
        return None if leading is None else echo + leading
    begin = visible_begin(following)
    if begin is None:
        return None
    shown = following[begin:].lstrip()
    return len(whole) - len(shown)


def visible_end(text: str) -> int:
    """Return the index at which the visible part of an incomplete reply ends, given that it has begun.

    A last line that is blank or may still become the sentinel (`No more actions.`) is excluded; otherwise this is the
    text's length.
    """
    tail = text[-2 * _LONGEST :]
    kept = tail.rstrip()
    line = _last_line(tail)
    if line and _may_become_sentinel(tail[line:]):
        kept = tail[:line].rstrip()
    elif "\n" not in tail[len(kept) :]:
        return len(text)
    return len(text) - len(tail) + len(kept)


def _last_line(text: str) -> int:
    """Return the index at which the last non-blank line begins; 0 if there is only one line."""
    return text.rfind("\n", 0, len(text.rstrip())) + 1


def _may_become_sentinel(line: str) -> bool:
    """Whether a line is, or may still become, the sentinel `No more actions.`"""
    if len(line) > _LONGEST or _SENTINEL_BEGIN.match(line) is None:
        return False
    words = re.sub(r"\s+", " ", re.sub(r"^[\W_]+", "", line)).casefold()
    return any(form.startswith(words) for form in _FORMS) or _WHOLE.fullmatch(line) is not None


class CallOpening:
    """Finds how much of a growing text certainly precedes its first tool call.

    Text that may be the start of a call counts as one until more text excludes it. Markdown links, other tags, inline
    code and fenced program code do not count. One object serves one text.
    """

    def __init__(self) -> None:
        self._at = 0
        """Index up to which the text has no call."""
        self._code: re.Pattern[str] | None = None
        """Pattern of the fence that closes the open code block; None outside a block."""

    def before(self, text: str) -> int:
        """Return the index up to which `text` certainly has no call; its length if there is no candidate.

        Each `text` must begin with the text of the previous call of this method.
        """
        while True:
            if self._code is not None:
                if (closing := self._code.search(text, self._at)) is None:
                    self._at = max(self._at, text.rfind("\n") + 1)
                    return len(text)
                self._code, self._at = None, closing.end()
            if (candidate := _CANDIDATE.search(text, self._at)) is None:
                # The pattern also finds an unfinished candidate at the end.
                self._at = len(text)
                return self._at
            after = self._past(text, candidate)
            if after is None:
                self._at = candidate.start()
                return self._at
            self._at = after

    def _past(self, text: str, candidate: re.Match[str]) -> int | None:
        """Return the index at which to continue after a candidate; None if the candidate may be a call.

        Args:
            text: The reply so far.
            candidate: A match of the characters that may open a call.
        """
        start, first = candidate.start(), candidate[0][0]
        if first in "{[":
            return None if (_BRACE if first == "{" else _BRACKET).match(text, start) else start + 1
        if first in "f]":
            return None
        if first in "`~":
            return self._past_fence(text, candidate)
        return None if _may_be_tag(text[start : start + _LONGEST_TAG]) else start + 1

    def _past_fence(self, text: str, candidate: re.Match[str]) -> int | None:
        """Return the index at which to continue after the marks of a fenced block; None if the block may hold calls.

        None also for marks at the end of the text, which may be incomplete. A block of program code is skipped up to
        its closing marks.

        Args:
            text: The reply so far.
            candidate: A match of the marks.
        """
        fence = _FENCE.match(text, candidate.start())
        if fence is None:
            # A run at the end may still become a fence.
            return None if candidate.end() == len(text) else candidate.end()
        if fence["open"] is not None or not code_language(fence["language"] or ""):
            return None
        self._code = re.compile(rf"^[ \t>]*+{fence['marks']}", re.MULTILINE)
        return fence.end()


def may_begin_with_call(text: str) -> bool:
    """Whether a text begins with a call, or may do so once it is complete; leading white space is ignored."""
    return CallOpening().before(text.lstrip()[:_LONGEST_OPENING]) == 0


def _may_be_tag(text: str) -> bool:
    """Whether a text begins with a tag of calls, or may do so with more text."""
    if TAG.match(text) or FUNCTION_START.match(text) or FAMILY.match(text):
        return True
    return len(text) < _LONGEST_TAG and _OPEN_TAG.match(text) is not None


class SentinelFilter:
    """Shows each part of a reply as soon as it cannot be the sentinel; implements `Visibility`."""

    def __init__(self) -> None:
        self._begin: int | None = None
        self._shown_to = 0

    def part(self, text: str) -> tuple[int, int]:
        """Return begin and end of the visible part of the reply so far; `(0, 0)` while nothing may be shown. Neither
        the begin nor a larger end that was returned before is withdrawn.
        """
        if self._begin is None:
            self._begin = visible_begin(text)
        if self._begin is None:
            return 0, 0
        # Text that is shown already cannot be withdrawn.
        self._shown_to = max(self._begin, self._shown_to, visible_end(text))
        return self._begin, self._shown_to

    def extends(self, text: str) -> bool:
        """Return True unless `text` has a line end. See `Visibility.extends`."""
        # A line that is shown to its end is not the sentinel, and more text does not make it one.
        if "\n" in text:
            return False
        self._shown_to += len(text)
        return True


class CallFilter(SentinelFilter):
    """Shows a reply up to the first possible call in its text, without the sentinel."""

    def __init__(self) -> None:
        super().__init__()
        self._opening = CallOpening()
        self._call = -1
        """Index of the first possible call; -1 before one was found."""
        self._end = 0

    def part(self, text: str) -> tuple[int, int]:
        """Return begin and end of the visible part of the reply so far, which ends before the first text that may be a
        call; white space before that text is left out. What was visible stays so.
        """
        begin, end = super().part(text)
        call = self._opening.before(text)
        if call >= end:
            self._end = max(self._end, begin, end)
        elif call != self._call:
            self._call = call
            self._end = max(self._end, begin, len(text[:call].rstrip()))
        return begin, self._end

    def extends(self, text: str) -> bool:
        """Return True, and count `text` as visible, if it has neither a line end nor a character that may open a call;
        else False. `text` is appended to a reply that is visible to its end.
        """
        if _NOT_PLAIN.search(text) is not None:
            return False
        self._shown_to += len(text)
        self._end += len(text)
        return True


class LeadingCallFilter(CallFilter):
    """Shows a reply without the sentinel; a reply that begins with a possible call is shown only up to that call."""

    def __init__(self) -> None:
        super().__init__()
        self._is_text = False
        """Whether the reply begins with text; final once True."""

    def part(self, text: str) -> tuple[int, int]:
        """Return begin and end of the visible part of the reply so far; both are equal while the reply may begin with a
        call. Once text that is no call was found, calls are no longer searched.
        """
        if not self._is_text:
            self._is_text = bool(text[: self._opening.before(text)].strip())
        return SentinelFilter.part(self, text) if self._is_text else super().part(text)

    def extends(self, text: str) -> bool:
        """Return True if `text` may be shown at once: decided like `SentinelFilter` once the reply begins with text,
        and like `CallFilter` before that. See `Visibility.extends`.
        """
        return SentinelFilter.extends(self, text) if self._is_text else super().extends(text)


class AnswerFilter(SentinelFilter):
    """Shows an answer without the sentinel. A reply that begins with a possible call or plan is withheld completely.

    Reasoning in `<think>` may precede the call.

    Args:
        prefix: Fixed beginning of the reply, e.g. a notice, which is always shown.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix
        self._is_answer = False

    def part(self, text: str) -> tuple[int, int]:
        """Return begin and end of the visible part of the reply so far, which begins with the prefix if there is one.

        Until the reply is known to be an answer, and not calls, only the prefix is visible; so it is, too, if hidden
        text stands between prefix and answer.
        """
        prefix = len(self._prefix)
        begin, end = super().part(text[prefix:])
        if not self._is_answer:
            self._is_answer = end > begin and not may_begin_with_call(after_reasoning(text[prefix + begin :]))
        # What is shown is one piece: text behind a removed line cannot follow the prefix.
        if not self._is_answer or (prefix and text[prefix : prefix + begin].strip()):
            return (0, min(prefix, len(text))) if prefix else (begin, begin)
        return (0, prefix + end) if prefix else (begin, end)

    def extends(self, text: str) -> bool:
        """Return whether `text`, appended to a reply that is visible to its end, is visible at once; False until the
        reply is known to be an answer.
        """
        return self._is_answer and super().extends(text)


class TurnFilter:
    """Applies another filter to a reply up to the first tool result or conversation turn that the model invents.

    Args:
        inner: The filter that decides about the text before that.
        start: Length of a fixed beginning of the reply, which is not searched.
        turns: Whether to search for invented tool results and turns.
        markup: Whether the markup of a call, such as `<tool_call>`, also ends the visible text.
    """

    def __init__(self, inner: Visibility, start: int = 0, *, turns: bool = True, markup: bool = True) -> None:
        self._inner = inner
        self._start = start
        self._prose = ProseEnd(turns=turns, markup=MARKUP if markup else "")

    def part(self, text: str) -> tuple[int, int]:
        """Return the inner filter's range of the text before the invented turn. See `Visibility.part`."""
        return self._inner.part(text[: self._start + self._prose.before(text[self._start :])])

    def extends(self, text: str) -> bool:
        """Return False for text with a character that may begin a turn or markup. See `Visibility.extends`."""
        return TURN_MARK.search(text) is None and self._inner.extends(text)


class MarkupFilter(TurnFilter):
    """Shows a reply, without the sentinel, up to the markup of a call such as `<tool_call>`."""

    def __init__(self) -> None:
        super().__init__(SentinelFilter(), turns=False)


class TextCallFilter(TurnFilter):
    """Shows a reply of text mode, without the sentinel, up to the first possible call or invented turn."""

    def __init__(self) -> None:
        super().__init__(CallFilter(), markup=False)
