"""Converts texts and numbers to tokens, so that two forms of the same value have equal tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MOST_LEAVES = 10_000
"""Maximum values of one result or one call that are read; the rest is not searched."""

# A number that stands alone is read as one token, with its separators: "1,200.50" equals 1200.5. Everything else is
# divided at each character that is neither a letter nor a digit, so that an address equals itself inside a link.
_TOKEN = re.compile(r"(?<![^\W_])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![^\W_])|[^\W_]+")


def match_tokens(value: Any) -> list[str]:
    """Return the tokens of a text or a number, in order; empty for any other value.

    Case, white space and punctuation do not count. A number has one token, without thousands separators and without
    zeros at the end of its fraction.
    """
    if isinstance(value, str):
        return [_canonical(found[0]) for found in _TOKEN.finditer(value.casefold())]
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Not `repr`, which writes large and small numbers with an exponent.
        return [_canonical(f"{abs(value):f}" if isinstance(value, float) else str(abs(value)))]
    return []


def _canonical(token: str) -> str:
    """Return a token in the form that equal numbers share; a token with letters is unchanged."""
    if not token[0].isdigit():
        return token
    plain = token.replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def leaf_values(value: Any, *, names: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the texts and numbers in plain JSON, each with its path, such as `emails[0].sender`.

    The path of the value itself is empty. At most `MOST_LEAVES` are yielded, or more by the names of one object.
    Booleans and null are left out.

    Args:
        value: Plain JSON.
        names: Whether the names of an object's fields are yielded, too, each with the path of its field.
    """
    pending: list[tuple[str, Any]] = [("", value)]
    count = 0
    while pending and count < MOST_LEAVES:
        path, current = pending.pop()
        if isinstance(current, dict):
            inner = [(f"{path}.{key}" if path else str(key), item) for key, item in reversed(current.items())]
            if names:
                count += len(current)
                yield from zip([path for path, _ in reversed(inner)], map(str, current), strict=True)
            pending += inner
        elif isinstance(current, list):
            pending += [(f"{path}[{at}]", current[at]) for at in range(len(current) - 1, -1, -1)]
        elif isinstance(current, str) or (isinstance(current, int | float) and not isinstance(current, bool)):
            count += 1
            yield path, current
