"""Describes the faults of a request's body, as pydantic reports them, in one message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SHOWN = 3
"""Maximum number of faults in a message."""


def describe_faults(faults: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """Return a message about the faults of a request's body, at most 3 of them, and the first faulty field, e.g.
    `messages.0.content`.

    The field is None if the fault is in no field. For a field with a union type, e.g. text or a list of parts, only the
    faults of the member that the value matches best are reported. Values of the request are not repeated.

    Args:
        faults: Errors of pydantic, not empty, with locations that begin with `body`.
    """
    deepest: dict[str, int] = {}
    for fault in faults:
        field = _field_of_choice(fault)
        deepest[field] = max(deepest.get(field, 0), len(fault["loc"]))
    close = [fault for fault in faults if len(fault["loc"]) == deepest[_field_of_choice(fault)]]
    # The values are not repeated: they may be long, or secrets in the wrong field.
    texts = [_text(fault) for fault in close[:_SHOWN]]
    return "; ".join(texts), _path(close[0]) or None


def _text(fault: Mapping[str, Any]) -> str:
    """Return the text of one fault: the field and pydantic's message, without the value.

    If the body as a whole is at fault, because it is not JSON, missing, or not an object, it is a sentence about that.
    """
    if fault["type"] == "json_invalid":
        why = fault.get("ctx", {}).get("error", fault["msg"])
        return f"The request's body is not valid JSON: {why}, at character {fault['loc'][-1]}."
    if len(fault["loc"]) == 1:
        if fault["type"] == "missing":
            return "The request has no body; send a JSON object."
        if fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
            return (
                "The request's body is not a JSON object; send one, with the header 'content-type: application/json'."
            )
    return f"{_path(fault) or 'body'}: {fault['msg']}"


def _path(fault: Mapping[str, Any]) -> str:
    """Return the field of a fault, e.g. `messages.0.content`, without the members of unions; empty if it is in no
    field.
    """
    if fault["type"] == "json_invalid":
        return ""  # its location is an offset, not a field
    return _dotted(part for part in fault["loc"][1:] if not _is_choice(part))


def _field_of_choice(fault: Mapping[str, Any]) -> str:
    """Return the path of the outermost field with a union type that a fault is in; the whole path of the fault if there
    is none.
    """
    location = fault["loc"]
    return _dotted(location[: next((at for at, part in enumerate(location) if _is_choice(part)), len(location))])


def _is_choice(part: int | str) -> bool:
    """Return whether a part of a fault's location names a member of a union type, and not a field: `str`, a type with
    brackets, or a capitalized name.
    """
    # Pydantic inserts the type of a union's member into the path.
    return isinstance(part, str) and (part == "str" or "[" in part or (part.isidentifier() and part[0].isupper()))


def _dotted(parts: Iterable[int | str]) -> str:
    """Return parts joined by dots."""
    return ".".join(str(part) for part in parts)
