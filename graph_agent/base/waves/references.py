"""Resolves references in a call's arguments to the results of other calls: `${id.path.to[0].field}`.

`id` is the id of a call in a structured plan; the path leads into the call's result. `$${` stands for a literal `${`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from graph_agent.base._internal.text import as_text, decode
from graph_agent.base.errors import CallError

# `$${` escapes a literal `${`; it is matched first, so that it never starts a reference.
_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_PATH = re.compile(r"([A-Za-z0-9_-]+)((?:\.[^.\[\]]+|\[\d{1,9}\])*)")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9})\]")


class BadReferenceError(CallError):
    """A reference that is malformed, or that leads to nothing in the results; the text is for the model."""


def referenced_ids(arguments: Any) -> Iterator[str]:
    """Yield the call ids in the references (`${id.path}`) of all texts in plain JSON, in order, with repeats.

    Keys of dicts are not read.

    Raises:
        BadReferenceError: A reference is malformed.
    """
    for text in _strings(arguments):
        for found in _REFERENCE.finditer(text):
            if found[1] is not None:
                yield _parse(found[1])[0]


def references_in(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield `(call id, path, is_whole)` for each reference in a text; `is_whole` if the text is only this reference.

    The path is empty for a reference to the whole result. Malformed references are left out.
    """
    for found in _REFERENCE.finditer(text):
        parsed = _PATH.fullmatch((found[1] or "").strip())
        if parsed is not None:
            yield parsed[1], parsed[2].lstrip("."), found[0] == text


def resolve(arguments: Any, results: Mapping[str, Any]) -> Any:
    """Return plain JSON with each reference in its texts replaced by the value that it leads to.

    Keys of dicts are not read.

    A string that is only one reference becomes the value with its type; within a longer string the value becomes text.
    A path may also lead into a text that contains JSON. Each `$${` becomes `${`.

    Args:
        arguments: Plain JSON; not changed.
        results: Results as plain JSON by call id.

    Raises:
        BadReferenceError: A reference is malformed, its call has no result, or the result has no such path.
    """

    def replace(found: re.Match[str]) -> str:
        return "${" if found[1] is None else as_text(_find(found[1], results))

    def resolved(text: str) -> Any:
        # A whole reference keeps the type of its value: a number stays a number.
        whole = _REFERENCE.fullmatch(text)
        return _REFERENCE.sub(replace, text) if whole is None or whole[1] is None else _find(whole[1], results)

    return _map_texts(arguments, resolved)


def resolve_some(arguments: Any, results: Mapping[str, Any]) -> Any:
    """Return plain JSON in which only the references to some results are replaced by the values to which they lead.

    A text that is only one such reference becomes the value itself. Other references and `$${` stay for a later
    `resolve`, and `${` in an inserted value is escaped for it.

    Args:
        arguments: Plain JSON; not changed.
        results: Results as plain JSON by call id.

    Raises:
        BadReferenceError: A reference is malformed, or one of these results has no such path.
    """

    def is_known(found: re.Match[str] | None) -> bool:
        return found is not None and found[1] is not None and _parse(found[1])[0] in results

    def replace(found: re.Match[str]) -> str:
        return escaped(as_text(_find(found[1], results))) if is_known(found) else found[0]

    def resolved(text: str) -> Any:
        whole = _REFERENCE.fullmatch(text)
        return escaped(_find(whole[1], results)) if whole and is_known(whole) else _REFERENCE.sub(replace, text)

    return _map_texts(arguments, resolved)


def escaped(arguments: Any) -> Any:
    """Return plain JSON with each `${` in its texts written as `$${`, so that `resolve` returns the given value."""
    return _map_texts(arguments, lambda text: text.replace("${", "$${"))


def renamed(arguments: Any, names: Mapping[str, str]) -> Any:
    """Return plain JSON with the ids in its references replaced; unknown ids and malformed references stay.

    Args:
        names: Id in a reference → its new id.
    """

    def rename(found: re.Match[str]) -> str:
        id_ = _PATH.fullmatch((found[1] or "").strip())
        if id_ is None or id_[1] not in names:
            return found[0]
        return f"${{{names[id_[1]]}{id_[2]}}}"

    return _map_texts(arguments, lambda text: _REFERENCE.sub(rename, text))


def _map_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Return plain JSON with `change` applied to each text that contains `${`; dict keys are not changed."""
    if isinstance(value, dict):
        return {key: _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) and "${" in value else value


def _find(reference: str, results: Mapping[str, Any]) -> Any:
    """Return the value that a reference leads to; `BadReferenceError` if it is malformed or leads to nothing.

    A text that holds JSON is parsed before a step into it.

    Args:
        reference: The text between `${` and `}`.
    """
    id_, steps = _parse(reference)
    if id_ not in results:
        raise BadReferenceError(f"${{{reference[:80]}}}: the call {id_!r} has no result.")
    value, walked = results[id_], id_
    for step in steps:
        # Only at a step: a result that is referred to as a whole stays text.
        value = _parse_json_text(value)
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            value, walked = value[step], f"{walked}[{step}]"
        elif isinstance(step, str) and isinstance(value, dict) and step in value:
            value, walked = value[step], f"{walked}.{step}"
        else:
            shown = repr(step if isinstance(step, int) else step[:40])
            raise BadReferenceError(f"${{{reference[:80]}}}: {walked[:80]} has no {shown}; it is {_shape(value)}.")
    return value


def _parse_json_text(value: Any) -> Any:
    """Return the object or list in a JSON text, as many tools return their value so; any other value unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    decoded = decode(value)
    return value if decoded is None else decoded[0]


def _parse(reference: str) -> tuple[str, list[str | int]]:
    """Split a reference into the call's id and the steps of the path; `BadReferenceError` if it is malformed."""
    parsed = _PATH.fullmatch(reference.strip())
    if parsed is None:
        shown = f"${{{reference[:80]}}}"
        raise BadReferenceError(f"{shown} is no reference; write ${{id.field[0]}}, or $${{ for a plain ${{.")
    # A step is a field's name or an index, never both.
    return parsed[1], [name or int(index) for name, index in _STEP.findall(parsed[2])]


def _shape(value: Any) -> str:
    """Describe a value for an error message, such as `a list of 3` or `an object with id, name`."""
    if isinstance(value, dict):
        return f"an object with {', '.join(name[:40] for name in list(value)[:20]) or 'no fields'}"
    return f"a list of {len(value)}" if isinstance(value, list) else f"the {type(value).__name__} {as_text(value)[:80]}"


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in plain JSON, except for the keys of dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
