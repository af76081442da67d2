"""The sentinel `No more actions.`: the planning reply of a model that has nothing to call and gives no answer yet."""

from __future__ import annotations

import re

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
_LONGEST = 80
"""Characters of a line above which it is not the sentinel, however it is decorated."""
_REASONING, _REASONING_END = "<think>", "</think>"


def is_sentinel(text: str) -> bool:
    """Whether a text is the sentinel and nothing else.

    Case, white space, quotes, other punctuation around it, and reasoning in `<think>` before it do not matter.
    """
    return _WHOLE.fullmatch(after_reasoning(text).strip()[: _LONGEST + 1]) is not None


def is_blank(text: str) -> bool:
    """Whether a text has nothing but white space, and reasoning in `<think>`."""
    return not after_reasoning(text).strip()


def says_nothing(text: str) -> bool:
    """Whether a text holds no answer: it is blank, or the sentinel."""
    return is_blank(text) or is_sentinel(text)


def after_reasoning(text: str) -> str:
    """The text behind reasoning in `<think>`; empty while the reasoning is not closed."""
    _, closed, rest = text.rpartition(_REASONING_END)
    if closed:
        return rest
    return "" if text.lstrip().startswith(_REASONING) else text


def without_sentinel(text: str) -> str:
    """A text without the sentinel where that is a first or a last line; empty when nothing else is in it."""
    if says_nothing(text):
        return ""
    # One line more makes the last one complete.
    kept = text[visible_begin(f"{text}\n.") :]
    while (last := _last_line(kept)) and _WHOLE.fullmatch(kept[last:][: _LONGEST + 1]):
        kept = kept[:last].rstrip()
    return "" if is_sentinel(kept) else kept


def visible_begin(text: str) -> int | None:
    """Where the part of an incomplete reply begins that is no sentinel; None while all of it may be the sentinel.

    Reasoning in `<think>` is not shown before what follows it.

    Args:
        text: The reply so far; once a place is found, more text does not change it.
    """
    rest = after_reasoning(text).lstrip()
    line, ended, following = rest.partition("\n")
    if not ended and (_REASONING.startswith(line) or _may_become_sentinel(line)):
        return None
    if not ended or not _WHOLE.fullmatch(line[: _LONGEST + 1]):
        return 0
    begin = visible_begin(following)
    if begin is None:
        return None
    shown = following[begin:].lstrip()
    return len(text) - len(shown)


def visible_end(text: str) -> int:
    """Where the part of an incomplete reply ends that may be shown.

    A last line that is blank or may become the sentinel is left out.

    Args:
        text: The reply so far, of which `visible_begin` has found the begin.
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
    """Where the last line begins that is not blank; 0 where there is one line only."""
    return text.rfind("\n", 0, len(text.rstrip())) + 1


def _may_become_sentinel(line: str) -> bool:
    if len(line) > _LONGEST:
        return False
    words = re.sub(r"\s+", " ", re.sub(r"^[\W_]+", "", line)).casefold()
    return any(form.startswith(words) for form in _FORMS) or _WHOLE.fullmatch(line) is not None
