"""Writes values and calls as Python source, in the format of `ruff format`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, Self

WIDTH = 88
"""Maximum columns of a line that can be broken."""
_LONG = 160
"""Characters from which on a value, or a text of several lines, gets a name of its own."""


@dataclass(frozen=True, slots=True)
class Code:
    """A Python expression: a name, a call, or a dict with further keys."""

    name: str
    arguments: tuple[Any, ...] | None = None
    """Positional arguments of a call; None for a bare expression."""
    options: Mapping[str, Any] = field(default_factory=dict)
    merged_with: Mapping[str, Any] | None = None
    comment: str = ""
    """Comment on the line before; empty if there is none."""

    @classmethod
    def call(cls, name: str, arguments: Sequence[Any], options: Mapping[str, Any] | None = None) -> Self:
        """Return a call."""
        return cls(name, tuple(arguments), options or {})

    @classmethod
    def merged(cls, code: Code, others: Mapping[str, Any]) -> Self:
        """Return a dict of the items of an expression and of others."""
        return cls("", (code,), merged_with=others)

    def with_comment(self, comment: str) -> Code:
        """Return the same expression with a comment on the line before."""
        return replace(self, comment=comment)


def rendered(value: Any, indent: int = 0, *, prefix: str = "", suffix: str = "") -> str:
    """Return an expression in as few lines as fit.

    Args:
        value: JSON, a tuple, or `Code`, also within each other.
        indent: Columns before its first line.
        prefix: Text before it, in the same line.
        suffix: Text after it, in the same line.
    """
    flat = _flat(value)
    if flat is not None and indent + len(prefix) + len(flat) + len(suffix) <= WIDTH:
        return f"{prefix}{flat}{suffix}"
    opening, items, closing = _parts(value)
    if not items:
        return f"{prefix}{flat if flat is not None else opening + closing}{suffix}"
    lines = [prefix + opening]
    inner = indent + 4
    for before, item in items:
        if isinstance(item, Code) and item.comment:
            lines.append(f"{' ' * inner}# {item.comment}")
        lines.append(" " * inner + rendered(item, inner, prefix=before, suffix=","))
    lines.append(" " * indent + closing + suffix)
    return "\n".join(lines)


def assignment(name: str, items: Sequence[Any]) -> list[str]:
    """Return the lines of a list with one item a line."""
    lines = [f"{name} = ["]
    for item in items:
        if isinstance(item, Code) and item.comment:
            lines.append(f"    # {item.comment}")
        lines.append("    " + rendered(item, 4, suffix=","))
    return [*lines, "]"] if items else [f"{name} = []"]


def comparison(left: str, right: str, indent: int) -> list[str]:
    """Return the lines of an assertion that a value equals a text.

    Args:
        left: Its beginning, up to the text.
    """
    text = _text(right)
    if indent + len(left) + len(text) <= WIDTH:
        return [left + text]
    keyword, _, compared = left.partition(" ")
    if indent + 4 + len(compared) + len(text) <= WIDTH:
        return [f"{keyword} (", f"    {compared}{text}", ")"]
    return [f"{keyword} (", f"    {compared.removesuffix(' == ')}", f"    == {text}", ")"]


class Constants:
    """Long values, which get a name each; equal values share it."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, Any]] = {}

    def of(self, value: Any, name: str) -> Any:
        """Return the name of a long value, and any other value unchanged.

        Args:
            value: JSON.
            name: Name for a new one; a number is added if it is taken.
        """
        if isinstance(value, Code) or not _is_long(value):
            return value
        taken = {known for known, _ in self._names.values()}
        numbered = (f"{name}_{at}" for at in count(2))
        chosen = next(each for each in chain([name], numbered) if each not in taken)
        return Code(self._names.setdefault(_key(value), (chosen, value))[0])

    def known(self, value: Any) -> Any:
        """Return a value with the names of the values in it that have one."""
        if not isinstance(value, str | dict | list | tuple):
            return value
        if not isinstance(value, tuple) and _is_long(value) and _key(value) in self._names:
            return Code(self._names[_key(value)][0])
        if isinstance(value, dict):
            return {key: self.known(each) for key, each in value.items()}
        return value if isinstance(value, str) else type(value)(self.known(each) for each in value)

    def lines(self) -> Iterator[str]:
        """Yield the lines of their assignments."""
        for name, value in self._names.values():
            if not isinstance(value, str):
                yield from [rendered(value, prefix=f"{name} = "), ""]
                continue
            body = value.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
            body = "".join(char if char == "\n" or char.isprintable() else _escaped(char) for char in body)
            body = f'{body[:-1]}\\"' if body.endswith('"') else body
            yield from [f'{name} = """\\', f'{body}"""', ""]


def _is_long(value: Any) -> bool:
    if isinstance(value, str):
        return "\n" in value and len(value) >= _LONG
    return isinstance(value, dict | list) and len(repr(value)) >= _LONG


def _key(value: Any) -> str:
    return repr(value)


def _escaped(char: str) -> str:
    return repr(char)[1:-1]


def _text(value: str) -> str:
    """Return a string literal with the quotes that need fewer escapes; double quotes if equal."""
    quote = "'" if value.count('"') > value.count("'") else '"'
    body = "".join(
        f"\\{char}" if char in (quote, "\\") else char if char.isprintable() else _escaped(char) for char in value
    )
    return f"{quote}{body}{quote}"


def _flat(value: Any) -> str | None:
    """Return a value in one line; None if it has a comment."""
    opening, items, closing = _parts(value)
    if not items:
        return opening + closing
    inner = [(before, _flat(item)) for before, item in items]
    if any(text is None for _, text in inner) or any(isinstance(item, Code) and item.comment for _, item in items):
        return None
    joined = ", ".join(f"{before}{text}" for before, text in inner)
    one = isinstance(value, tuple) and len(value) == 1
    return f"{opening}{joined}{',' if one else ''}{closing}"


def _parts(value: Any) -> tuple[str, list[tuple[str, Any]], str]:
    """Return the opening, the items with what stands before each, and the closing of an expression."""
    if isinstance(value, Code):
        if value.merged_with is not None:
            assert value.arguments is not None
            rest = [(f"{_text(key)}: ", each) for key, each in value.merged_with.items()]
            return "{", [("**", value.arguments[0]), *rest], "}"
        if value.arguments is None:
            return value.name, [], ""
        options = [(f"{name}=", each) for name, each in value.options.items()]
        return f"{value.name}(", [*(("", each) for each in value.arguments), *options], ")"
    if isinstance(value, Mapping):
        return "{", [(f"{_parts(key)[0]}: ", each) for key, each in value.items()], "}"
    if isinstance(value, tuple):
        return "(", [("", each) for each in value], ")"
    if isinstance(value, list):
        return "[", [("", each) for each in value], "]"
    if isinstance(value, str):
        return _text(value), [], ""
    return (repr(value) if value is None or isinstance(value, bool | int | float) else json.dumps(value)), [], ""
