"""What does not fit an API's schema, in the words of who sent it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SHOWN = 3


def told(faults: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """What is wrong with a body, and the first field that is; None where it is no field's fault.

    Where a field may be one thing or another, e.g. text or a list of parts, only that is told which the sender came
    closest to.

    Args:
        faults: Pydantic's errors; at least one.
    """
    deepest: dict[str, int] = {}
    for fault in faults:
        field = _field_of_choice(fault)
        deepest[field] = max(deepest.get(field, 0), len(fault["loc"]))
    close = [fault for fault in faults if len(fault["loc"]) == deepest[_field_of_choice(fault)]]
    # What was given is not repeated: it may be long, and it may be a secret in the wrong place.
    texts = [f"{_path(fault) or 'body'}: {fault['msg']}" for fault in close[:_SHOWN]]
    return "; ".join(texts), _path(close[0]) or None


def _path(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "json_invalid":
        return ""  # its place is a number of characters, and no field's
    return _dotted(part for part in fault["loc"][1:] if not _is_choice(part))


def _field_of_choice(fault: Mapping[str, Any]) -> str:
    """The field whose kind was to be chosen; the whole place where there was no choice."""
    place = fault["loc"]
    return _dotted(place[: next((at for at, part in enumerate(place) if _is_choice(part)), len(place))])


def _is_choice(part: int | str) -> bool:
    # Pydantic names the kind it tried by its type, between the names of fields.
    return isinstance(part, str) and (part == "str" or "[" in part or (part.isidentifier() and part[0].isupper()))


def _dotted(parts: Iterable[int | str]) -> str:
    return ".".join(str(part) for part in parts)
