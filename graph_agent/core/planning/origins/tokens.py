"""Converts texts and numbers to tokens, so that two forms of the same value have equal tokens."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

MOST_LEAVES = 10_000
"""Maximum values of one argument that are read; the rest is not searched."""
_LEAST_JOINED = 8
"""Minimum characters of an id that is found without its spaces; shorter ones would be found by chance."""
_MOST_JOINED = 12
"""Maximum tokens of such an id."""
_LONGEST_GROUP = 8
"""Maximum characters of one of these tokens."""
_MOST_NAME = 4
"""Maximum tokens of an entry in a list of names, such as `Anna Black, Bert`."""

# A number that stands alone is read as one token, with its separators: "1,200.50" equals 1200.5. Everything else is
# divided at each character that is neither a letter nor a digit, so that an address equals itself inside a link.
_TOKEN = re.compile(r"(?<![^\W_])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![^\W_])|[^\W_]+")
# Characters without a width, which a reader does not see.
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")
# Letters of scripts without spaces between words; each is a token, because a name is a part of a longer run.
_UNSPACED = re.compile("[\u0e00-\u0edf\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
_AT = ("@", "%40", "&#64;", "&#x40;", "&commat;")
_WITHIN_ADDRESS = frozenset(".+_-")
_HAS_DIGIT = re.compile(r"\d")
# Between the groups of an id, such as an account or a telephone number.
_IN_ID = re.compile(r"[ \-./()]{1,3}")
# Numbers with the separators of other countries, or with a unit without a space: "1.200,50", "12 000", "5EUR".
_OTHER_NUMBER = re.compile(
    r"(?<![\w.,])(?P<plain>\d{1,3}(?P<mark>[.,' ])\d{3}(?:(?P=mark)\d{3})*(?:[.,]\d{1,2})?|\d+(?:[.,]\d{1,2})?)"
    r"(?![.,' ]?\d)(?=[^\W\d_]{0,3}\b|\W|$)(?: ?(?P<factor>k|thousand|m|mio|million|bn|billion)\b)?"
)
_ZEROS = {"k": 3, "thousand": 3, "m": 6, "mio": 6, "million": 6, "bn": 9, "billion": 9}
"""Word after a number → the zeros that it stands for."""
# An address in a link or in a web page: "eve%40mail.example", "eve&#64;mail.example".
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z]\w{1,31});", re.IGNORECASE)
# Separates the values in one text, such as several recipients, or the fields of a link.
_BETWEEN = re.compile(r"(?:,(?!\d{3})|[\s;|<>\"'()\[\]{}?&=#])+")
_ENTRY = re.compile(r",(?!\d{3})|[;|\n]")
# Words that hardly stand in a text by chance: addresses, paths and ids.
_ADDRESS = re.compile(r"[^\W_][^\w\s]+[^\W_]|\d{4}")


def match_tokens(value: Any) -> list[str]:
    """Return the tokens of a text or a number, in order; empty for any other value, also a boolean.

    A token is a word, or a number that stands alone. Case, white space, punctuation, and the form of Unicode do not
    count. A number is without thousands separators, zeros at the end of its fraction, and sign. Each letter of a script
    without spaces, such as Chinese, is a token.
    """
    if isinstance(value, str):
        return [_canonical(found[0]) for found in _TOKEN.finditer(_normal(value))]
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Not `repr`, which writes large and small numbers with an exponent.
        return [_canonical(f"{abs(value):f}" if isinstance(value, float) else str(abs(value)))]
    return []


def _normal(text: str) -> str:
    """Return a text in lower case, in Unicode's compatible form, without invisible characters, percent-encoding and
    HTML's entities, and with spaces around each letter of a script without spaces."""
    if "&" in text:
        text = _ENTITY.sub(lambda found: html.unescape(found[0]), text)
    if "%" in text:
        text = unquote(text)
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()
    return _UNSPACED.sub(r" \g<0> ", unicodedata.normalize("NFKC", plain))


def _canonical(token: str) -> str:
    """Return a token in the form that equal numbers share; a token with letters is unchanged."""
    if not token[0].isdigit():
        return token
    plain = token.replace(",", "")
    if not plain.isascii():
        plain = "".join(str(unicodedata.decimal(each, each)) for each in plain)
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def other_forms(value: Any) -> Iterator[tuple[str, int, int]]:
    """Yield second readings of parts of a text, each as one token, with the part's `(first, end)` indexes in the tokens
    of the text, `end` exclusive.

    An id is read without its separators (`DE02 1203 0000`), at every possible length of 8 characters or more, and a
    number with the separators of other countries (`1.200,50`) or a word for its zeros (`1.2k`). Linear in the length of
    the text.

    Args:
        value: The text; other values, and texts without a digit, have no second reading.
    """
    if not isinstance(value, str) or not any(char.isdigit() for char in value):
        return
    text = _normal(value)
    found = [*_TOKEN.finditer(text)]
    for first, token in enumerate(found):
        joined, last = token[0], token
        if len(joined) > _LONGEST_GROUP or not _HAS_DIGIT.search(joined):
            continue
        for end in range(first + 1, min(first + _MOST_JOINED, len(found))):
            following = found[end]
            if len(following[0]) > _LONGEST_GROUP or not _IN_ID.fullmatch(text, last.end(), following.start()):
                break
            joined, last = joined + following[0], following
            if len(joined) >= _LEAST_JOINED and _HAS_DIGIT.search(following[0]):
                yield joined, first, end + 1
    yield from _other_numbers(text, found)


def _other_numbers(text: str, tokens: Sequence[re.Match[str]]) -> Iterator[tuple[str, int, int]]:
    """Yield `(number, first, end)` for each second reading of a number in a text, e.g. of `3,5` or `2 million`, that
    differs from its tokens; `first` and `end` are indexes in `tokens`, `end` exclusive.

    Args:
        text: The text.
        tokens: The tokens of the text.
    """
    first = 0
    for number in _OTHER_NUMBER.finditer(text):
        digits = number["plain"].replace(number["mark"] or ",", "" if number["mark"] else ".").replace(",", ".")
        readings = [(digits, number.end("plain"))]
        if number["factor"]:
            readings.append((_shifted(digits, _ZEROS[number["factor"]]), number.end()))
        while first < len(tokens) and tokens[first].start() < number.start():
            first += 1
        for reading, stop in readings:
            end = first
            while end < len(tokens) and tokens[end].start() < stop:
                end += 1
            if first < end and [_canonical(reading)] != [_canonical(token[0]) for token in tokens[first:end]]:
                yield _canonical(reading), first, end


def _shifted(digits: str, zeros: int) -> str:
    """Return a decimal number, multiplied by a power of ten, as text.

    Args:
        digits: The number, with a point before its decimals.
        zeros: The power of ten; decimals beyond it are dropped.
    """
    whole, _, fraction = digits.partition(".")
    return f"{whole}{fraction[:zeros].ljust(zeros, '0')}".lstrip("0") or "0"


def is_address(value: Any) -> bool:
    """Whether a value is a text that has an address of mail."""
    return isinstance(value, str) and any(sign in value for sign in _AT)


def continued_tokens(value: Any) -> list[int]:
    """Return the indexes of the tokens that continue an address, as `black` does in `eve.black@mail.example`.

    Empty for a value without an address.
    """
    if not is_address(value):
        return []
    text = _normal(value)
    found = [*_TOKEN.finditer(text)]
    pairs = enumerate(pairwise(found), 1)
    return [at for at, (last, each) in pairs if text[last.end() : each.start()] in _WITHIN_ADDRESS]


def pieces(text: str) -> list[str]:
    """Return the values in a text that may be several in one, such as two recipients or the fields of a link.

    They are the entries of a list of names (separated by commas, semicolons, bars or lines, of at most `_MOST_NAME`
    tokens each), and the words that look like an address, a path or an id. Empty if the text is only one value.
    """
    entries = [entry.strip() for entry in _ENTRY.split(text) if not entry.isspace()]
    if len(entries) < 2 or any(len(match_tokens(entry)) > _MOST_NAME for entry in entries):
        entries = []
    words = [word for word in _BETWEEN.split(text) if _ADDRESS.search(word)]
    return [each for each in dict.fromkeys([*entries, *words]) if each != text]


def keys_in(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield `(path, name)` of each field in objects whose name is data, such as an address, because it is no
    identifier.

    Args:
        value: Plain JSON, the value of an argument.
        path: Its path, with which the yielded paths begin.
    """
    pending: list[tuple[str, Any]] = [(path, value)]
    while pending:
        at, current = pending.pop()
        if isinstance(current, dict):
            yield from ((f"{at}.{key}", str(key)) for key in current if not str(key).isidentifier())
            pending += [(f"{at}.{key}", item) for key, item in current.items()]
        elif isinstance(current, list):
            pending += [(f"{at}[{index}]", item) for index, item in enumerate(current)]


def leaf_values(
    value: Any, *, names: bool = False, path: str = "", most: int = MOST_LEAVES
) -> Iterator[tuple[str, Any]]:
    """Yield the texts and numbers in plain JSON, each with its path, such as `emails[0].sender`.

    Booleans and null are left out.

    Args:
        value: Plain JSON.
        names: Whether the names of an object's fields are yielded, too, each with the path of its field.
        path: Path of the value itself.
        most: Maximum values that are yielded; more only by the names of one object.
    """
    pending: list[tuple[str, Any]] = [(path, value)]
    count = 0
    while pending and count < most:
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
