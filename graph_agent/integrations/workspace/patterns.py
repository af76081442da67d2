"""Matches paths with the patterns of `.gitignore`, in time proportional to the path's length.

Libraries translate such a pattern to a regular expression that backtracks: six stars take minutes for one long name.
Here each star and each `**` is in an atomic group. It takes the first match, which suffices because what follows a star
has a fixed length, and is never tried again.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

MOST_CHARS = 1000
"""Maximum characters of a pattern."""
MOST_LINES = 5000
"""Maximum lines of a `.gitignore`; more would take seconds to compile."""

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": r"\x21-\x7e",
    "lower": "a-z",
    "print": r"\x20-\x7e",
    "punct": r"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
"""POSIX class → its members, for a set in `re`."""
_STAR = "*"
_ANY = "[^/]"
_NOTHING = "(?!)"
"""A regular expression that matches nothing."""
_NAME = "(?=[^/])"
_FOLDERS = f"(?:{_ANY}++/)*?"
"""A regular expression for any number of folders."""


class PatternError(ValueError):
    """A pattern is invalid or can match nothing; the message has the reason."""


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One line of a `.gitignore`, compiled."""

    matcher: re.Pattern[str]
    """Matches a path from its beginning; the path of a folder ends with a slash."""
    is_negated: bool
    """Whether matching paths are included again."""


def parse_rule(line: str, *, below: bool = False) -> IgnoreRule | None:
    """Return the rule in a line of a `.gitignore`; None for an empty line or a comment.

    A `!` at the start makes the rule negated. White space at the end is removed as in git.

    Args:
        line: The line.
        below: Whether the rule also matches everything below a folder that it matches.

    Raises:
        PatternError: The line is too long, invalid, or can match nothing.
    """
    line = line.removesuffix("\r")
    line = line[: _end_of(line)]
    if not line or line.startswith("#"):
        return None
    if len(line) > MOST_CHARS:
        raise PatternError(f"it has {len(line)} characters; {MOST_CHARS} are permitted")
    is_negated = line.startswith("!")
    return IgnoreRule(re.compile(_translated(line[is_negated:], below)), is_negated)


@functools.lru_cache(8)
def parse_rules(text: str) -> tuple[IgnoreRule, ...]:
    """Return the rules in a `.gitignore`, the last line first, as the last rule that matches decides.

    Invalid lines are left out, and lines after the first `MOST_LINES`. Cached.
    """
    rules = list[IgnoreRule]()
    for line in text.removeprefix("\ufeff").split("\n")[:MOST_LINES]:
        try:
            rule = parse_rule(line)
        # As in git: one invalid line does not disable the others.
        except PatternError:
            continue
        if rule is not None:
            rules.append(rule)
    return tuple(reversed(rules))


def is_ignored(path: str, rules: tuple[IgnoreRule, ...]) -> bool:
    """Whether a path is ignored: the first of the rules that matches decides; False if none does."""
    return next((not rule.is_negated for rule in rules if rule.matcher.match(path)), False)


def _end_of(line: str) -> int:
    """Return the length of a line without trailing spaces; a space after a backslash is kept."""
    end = len(line.rstrip(" "))
    slashes = end - len(line[:end].rstrip("\\"))
    return min(len(line), end + slashes % 2)


def _translated(pattern: str, below: bool) -> str:
    """Return the regular expression for a pattern without `!` at its start; raise `PatternError` if invalid.

    With `below`, it also matches everything below a folder that the pattern matches.
    """
    is_folder = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if not pattern:
        raise PatternError("it names no file")
    end = ("/" if is_folder else "/?") + ("" if below else r"\Z")
    parts = _split(_tokens(pattern.removeprefix("/")), "/")
    # As in git: a pattern without a slash matches at any depth.
    if "/" not in pattern:
        parts.insert(0, [_STAR, _STAR])
    names = [_FOLDERS if len(part) > 1 and set(part) == {_STAR} else _name(part) for part in parts]
    if names[-1] is _FOLDERS:
        names.append(_name([_STAR]))
    # One run for each `**`, and one before the first.
    runs = _split(names, _FOLDERS)
    *inner, last = [f"(?>{_FOLDERS if at else ''}{'/'.join(run)}" for at, run in enumerate(runs) if run]
    return "".join([f"{each}/)" for each in inner]) + f"{last}{end})"


def _split(tokens: list[str], separator: str) -> list[list[str]]:
    """Split a list at each separator; the result has one more list than there are separators."""
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _name(part: list[str]) -> str:
    """Return the regular expression for one name in a path, which is followed by a slash or the end.

    `part` are its tokens: regular expressions for single characters, and `_STAR` for a star.
    """
    first, *others = ["".join(piece) for piece in _split(part, _STAR)]
    # Consecutive stars are one.
    others = [each for each in others[:-1] if each] + others[-1:]
    inner = "".join(f"(?>{_ANY}*?{each})" for each in others[:-1])
    final = f"{_ANY}*{others[-1]}(?=/|\\Z)" if others else r"(?=/|\Z)"
    return f"(?>{_NAME}{first}{inner}{final})"


def _tokens(part: str) -> list[str]:
    """Return regular expressions for a pattern's characters, `_STAR` for a star; a backslash escapes the next one.

    Raises `PatternError` for a backslash at the end and an invalid set.
    """
    tokens = list[str]()
    at = 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            tokens.append(_STAR)
        elif char == "?":
            tokens.append(_ANY)
        elif char == "[":
            token, at = _set(part, at)
            tokens.append(token)
        elif char == "\\":
            if at == len(part):
                raise PatternError("it ends with a backslash")
            tokens.append(re.escape(part[at]))
            at += 1
        else:
            tokens.append(re.escape(char))
    return tokens


def _set(part: str, at: int) -> tuple[str, int]:
    """Return the regular expression for a set whose `[` precedes index `at`, and the index after the set.

    `!` or `^` at the start negates it; a negated set does not match a slash. A set with only ranges in reverse order
    matches nothing, a negated one any character but a slash. Raises `PatternError` if the set is not closed or names an
    unknown class.
    """
    is_negated = part[at : at + 1] in ("!", "^")
    at += is_negated
    first = at
    members = list[str]()
    # As in git: a bracket that closes right after the opening one is a member of the set.
    while part[at : at + 1] != "]" or at == first:
        if part.startswith("[:", at) and (end := part.find(":]", at)) != -1:
            name = part[at + 2 : end]
            if name not in _CLASSES:
                raise PatternError(f"it has the unknown class {name!r}")
            members.append(_CLASSES[name])
            at = end + 2
            continue
        low, at = _member(part, at)
        if part[at : at + 1] == "-" and part[at + 1 : at + 2] not in ("", "]"):
            high, at = _member(part, at + 1)
            # As in git: a range in reverse order matches nothing, and is no fault of the pattern.
            if low <= high:
                members.append(f"{re.escape(low)}-{re.escape(high)}")
        else:
            members.append(re.escape(low))
    if not members:
        return (_ANY if is_negated else _NOTHING), at + 1
    # A negated set would match a slash, and so reach into another folder.
    return f"(?!/)[{'^' if is_negated else ''}{''.join(members)}]", at + 1


def _member(part: str, at: int) -> tuple[str, int]:
    """Return the character of a set at index `at`, after a backslash if there is one, and the index after it.

    Raises `PatternError` at the end of the pattern.
    """
    at += part[at : at + 1] == "\\"
    if at >= len(part):
        raise PatternError("it has a bracket without an end")
    return part[at], at + 1
