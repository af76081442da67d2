"""The sentinel `No more actions.`: the planning reply of a model that makes no calls and gives no answer yet."""

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
"""Maximum characters of a line with the sentinel, including surrounding punctuation."""
_REASONING, _REASONING_END = "<think>", "</think>"


def is_sentinel(text: str) -> bool:
    """Whether a text is exactly the sentinel.

    Ignores case, white space, quotes, other surrounding punctuation, and preceding reasoning in `<think>`.
    """
    return _WHOLE.fullmatch(after_reasoning(text).strip()[: _LONGEST + 1]) is not None


def is_blank(text: str) -> bool:
    """Whether a text is only white space and reasoning in `<think>`."""
    return not after_reasoning(text).strip()


def has_no_answer(text: str) -> bool:
    """Whether a text holds no answer: it is blank, or the sentinel."""
    return is_blank(text) or is_sentinel(text)


def after_reasoning(text: str) -> str:
    """Return the text after reasoning in `<think>`; empty while the reasoning is unclosed."""
    _, closed, rest = text.rpartition(_REASONING_END)
    if closed:
        return rest
    return "" if text.lstrip().startswith(_REASONING) else text


def without_sentinel(text: str) -> str:
    """Remove the sentinel from the first and the last lines of a text; empty if nothing remains."""
    if has_no_answer(text):
        return ""
    # An additional line completes the last one.
    kept = text[visible_begin(f"{text}\n.") :]
    while (last := _last_line(kept)) and _WHOLE.fullmatch(kept[last:][: _LONGEST + 1]):
        kept = kept[:last].rstrip()
    return "" if is_sentinel(kept) else kept


def visible_begin(text: str) -> int | None:
    """Return the index where the visible part of an incomplete reply starts; None while it may be the sentinel.

    Reasoning in `<think>` is withheld until text follows it.

    Args:
        text: The reply so far; more text does not change an index once found.
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
    """Return the index where the visible part of an incomplete reply ends.

    A last line that is blank or may become the sentinel is excluded.

    Args:
        text: The reply so far, with an index from `visible_begin`.
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
    """Return the index where the last non-blank line starts; 0 if there is only one line."""
    return text.rfind("\n", 0, len(text.rstrip())) + 1


def _may_become_sentinel(line: str) -> bool:
    if len(line) > _LONGEST:
        return False
    words = re.sub(r"\s+", " ", re.sub(r"^[\W_]+", "", line)).casefold()
    return any(form.startswith(words) for form in _FORMS) or _WHOLE.fullmatch(line) is not None
