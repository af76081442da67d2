"""Converts tool and model output to values that checkpoints, streams and providers accept."""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from graph_agent.base.errors import InputError

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage

# A lone surrogate has no UTF-8 form; PostgreSQL and some providers refuse NUL.
_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_DEEPEST = 200


_PIECE = 65_536
"""Characters that are searched at once, because a search holds the GIL until it ends."""


def clean(text: str) -> str:
    """Return a text in which each NUL and lone surrogate (half a character, with no UTF-8 form) is replaced by
    U+FFFD."""
    # Most texts end here, which costs less than the search.
    if text.isascii() and "\x00" not in text:
        return text
    if len(text) <= _PIECE:
        return _UNSAFE.sub("\ufffd", text)
    return "".join(_UNSAFE.sub("\ufffd", text[at : at + _PIECE]) for at in range(0, len(text), _PIECE))


def check_session_id(session_id: str, name: str = "session_id") -> str:
    """Return an id unchanged. `name` is the parameter's name in the message of the error.

    Raises:
        InputError: The id has a lone surrogate (half a character), which no database can store.
    """
    if not session_id.isascii() and _has_lone_surrogate(session_id):
        raise InputError(f"{name}={session_id!r} is no text in UTF-8: it has half a character. Give another id.")
    return session_id


def find_lone_surrogate(value: Any, place: str = "") -> str | None:
    """Return the path of the first string in a JSON value that has a lone surrogate, e.g.
    `params.message.parts.0.text`.

    If a key has one, it is the path of that key's object. None if there is none; an empty path is that of the value
    itself.

    Args:
        value: The JSON value.
        place: The path of the value itself; empty at the top.

    Raises:
        RecursionError: The value is nested too deeply.
    """
    if isinstance(value, str):
        return place if _has_lone_surrogate(value) else None
    if isinstance(value, dict) and any(map(_has_lone_surrogate, value)):
        return place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inside = (find_lone_surrogate(item, f"{place}.{name}" if place else f"{name}") for name, item in items)
    return next((found for found in inside if found is not None), None)


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class NotFiniteError(ValueError):
    """Raised for a number that is infinite or NaN where it must be finite."""


def to_json_safe(value: Any, depth: int = 0, *, finite: bool = False) -> Any:
    """Convert a value to plain JSON types that every store accepts.

    In strings and keys, NUL and lone surrogates become U+FFFD (see `clean`). Tuples become lists. Values and keys of
    other types become their `str()`, as do integers beyond 64 bits, infinities and NaN.

    Args:
        value: The value.
        depth: The nesting of the value itself; 0 at the top.
        finite: Whether infinities and NaN raise `NotFiniteError` instead.

    Raises:
        NotFiniteError: A number is infinite or NaN, and `finite` is set.
        ValueError: The value is nested more than 200 levels deep, or its `str()` fails.
    """
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if _SMALLEST <= value <= _LARGEST else _describe(value)
    if isinstance(value, float):
        if finite and not math.isfinite(value):
            raise NotFiniteError("a number is NaN, infinite or out of range; send a finite one")
        return value if math.isfinite(value) else _describe(value)
    if depth > _DEEPEST:
        raise ValueError(f"a value is nested more than {_DEEPEST} levels deep")
    if isinstance(value, dict):
        return {
            clean(key) if isinstance(key, str) else _describe(key): to_json_safe(item, depth + 1, finite=finite)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [to_json_safe(item, depth + 1, finite=finite) for item in value]
    return _describe(value)


def as_text(value: Any) -> str:
    """Return a value as text for a model: a string with unsafe characters replaced, any other value as JSON.

    Raises `ValueError` if the value is nested too deeply, or a part of it has no JSON form and its `str()` fails.
    """
    if isinstance(value, str):
        return clean(value)
    return json.dumps(to_json_safe(value), ensure_ascii=False)


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string itself, or the texts of its blocks joined.

    Empty for other values.
    """
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block if isinstance(block, str) else str(block.get("text", "")) for block in blocks)


def reasoning_text(message: AIMessage) -> str:
    """Return the text of a message's reasoning; empty if there is none, or if the provider shows none."""
    if isinstance(message.content, str) and not message.additional_kwargs:
        return ""
    return "".join(
        str(block.get("reasoning") or "") for block in message.content_blocks if block["type"] == "reasoning"
    )


def _describe(value: Any) -> str:
    """Return the cleaned `str()` of a value; raise `ValueError` if that fails."""
    try:
        return clean(str(value))
    except Exception as error:
        raise ValueError(f"a {type(value).__name__} could not be turned into text: {error!r}") from error


REASONING = "<think>"
"""Tag that begins a model's reasoning, from servers that do not separate it from the text."""


def after_reasoning(text: str) -> str:
    """Return the text after the last `</think>`, which ends reasoning that begins with `<think>`.

    All of the text if there is no reasoning, and an empty text while the reasoning is not closed.
    """
    _, closed, rest = text.rpartition("</think>")
    if closed:
        return rest
    return "" if text.lstrip().startswith(REASONING) else text


def common_length(one: Sequence[Any], two: Sequence[Any]) -> int:
    """Return the number of items, or characters, at the begin of two sequences that are equal in both."""
    if one[: len(two)] == two:
        return len(two)
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))


def excerpt(text: str, most: int = 200) -> str:
    """Return a text cut to `most` characters, followed by `…` if it is longer."""
    return text if len(text) <= most else f"{text[:most]}…"


def brief_repr(value: Any) -> str:
    """Return the `repr` of a value for an error message, cut to 200 characters."""
    return excerpt(repr(value))


def html_table(title: str, rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table for a notebook, with a caption; the first cell of each row is its heading.

    Texts are escaped; other values are shown by their `repr`, headings by their `str`, escaped too. Raises `ValueError`
    for an empty row.
    """
    lines = [f"<table><caption>{html.escape(title)}</caption>"]
    for heading, *cells in rows:
        shown = "".join(f"<td>{html.escape(each if isinstance(each, str) else repr(each))}</td>" for each in cells)
        lines.append(f"<tr><th>{html.escape(str(heading))}</th>{shown}</tr>")
    return "".join([*lines, "</table>"])


# C0 and C1 controls (ESC, CSI, NEL), line and paragraph separators, bidirectional overrides, lone surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LAYOUT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# Characters that are invisible although Unicode counts them as letters or marks. A variation selector is part of the
# symbol before it.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\U000e0100-\U000e01ef]"
    "|(?<![\u2000-\u3300\U0001f000-\U0001faff])[\ufe00-\ufe0f]"
)
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")

# Many clients split with `str.splitlines`, which splits at these characters too; JSON can escape them.
_LINE_ENDS = str.maketrans({end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"})


def printable(text: str) -> str:
    r"""Return the text as one line, with each control character as an escape such as `\n` or `\x1b`.

    Line separators and characters that change the direction of text are escaped, too.
    """
    return text if text.isprintable() else _CONTROLS.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return a text with control characters escaped as by `printable`, except line feeds and tabs; CR LF becomes LF."""
    return text if text.isprintable() else _LAYOUT.sub(_escape, text.replace("\r\n", "\n"))


def visible(text: str) -> str:
    r"""Return a text as by `printable`, with invisible characters and unusual spaces escaped too, for a human reviewer.

    So a joiner (`\u200d`), a direction mark, a tag character or a no-break space cannot hide in it.
    """
    return _NOT_ASCII.sub(_escape_hidden, _INVISIBLE.sub(_escape, text))


def visible_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON in which all characters that `visible` would escape are JSON escapes, except line feeds.

    Parsing it gives `value` again; values that are not JSON become their `str`. `indent` is that of `json.dumps`.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return _NOT_ASCII.sub(_escape_hidden_in_json, _INVISIBLE.sub(_escape_in_json, text))


def json_line(text: str) -> str:
    """Return one-line JSON with the line ends of Unicode escaped, for clients that split at them, too."""
    return text if text.isascii() else text.translate(_LINE_ENDS)


def _escape_hidden(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else _escape(found)


def _escape_hidden_in_json(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() or found[0] == "\n" else _escape_in_json(found)


def _escape_in_json(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def decode(text: str) -> tuple[Any] | None:
    """Return the JSON value in a text, as a 1-tuple, so that `null` can be distinguished.

    None if the text is not JSON or has a number that is not finite. Strings are cleaned.
    """
    try:
        return (to_json_safe(json.loads(text), finite=True),)
    except (ValueError, RecursionError):
        return None


def version_of(value: Any) -> str:
    """Return the version of a prompt or a schema, by which changes are recognised: 8 hexadecimal digits.

    They begin the SHA-256 of a string, or of the JSON of any other value, whose keys are sorted.
    """
    given = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(given.encode(errors="surrogatepass")).hexdigest()[:8]
