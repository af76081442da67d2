"""Reading one JSON value: strictly if possible, then tolerantly, then by json_repair."""

from __future__ import annotations

import json
import re
from typing import Any

from .call import MAX_DEPTH
from .tolerant import Read, finite, read_tolerant
from .work import Work


def _no_constant(_: str) -> None:
    """NaN and Infinity become None, as JavaScript writes them: no JSON that is sent on can hold them."""


_DECODER = json.JSONDecoder(strict=False, parse_float=finite, parse_constant=_no_constant)
_STRICT_CHARACTERS_A_STEP = 16
_TOLERANT_STEPS_A_CHARACTER = 2
# Damaged text is only worth reading where it could turn out to be a call.
_HINT = re.compile(r"name|tool|function|action|agent|delegate", re.IGNORECASE)


def read_json(text: str, work: Work, *, repair: bool = True) -> Read | None:
    """Read the object or list that is ``text``, damaged or cut short; None when it cannot be read, or not any more.

    With ``repair=False`` only what is valid JSON is read. Raises nothing: nesting beyond ``MAX_DEPTH``, integers too
    long to convert and a spent budget all give None.
    """
    if not work.take(len(text) // _STRICT_CHARACTERS_A_STEP + 1):
        return None
    try:
        return Read(_DECODER.decode(text), complete=True)
    except (ValueError, RecursionError):
        pass
    if not repair or not work.take(_TOLERANT_STEPS_A_CHARACTER * len(text)):
        return None
    return read_tolerant(text) or _repaired(text, work)


def read_damaged(text: str, work: Work) -> Read | None:
    """As ``read_json``, giving up at once on damaged text that has no word of a call in it."""
    return read_json(text, work, repair=_HINT.search(text) is not None)


def _repaired(text: str, work: Work) -> Read | None:
    if text.count("{") + text.count("[") > MAX_DEPTH or not work.take_repair(len(text)):
        return None
    # Loading it takes as long as the rest of this package; most texts never need it.
    import json_repair

    try:
        value: Any = json_repair.repair_json(text, return_objects=True, skip_json_loads=True)
    except Exception:  # noqa: BLE001 - a repair library fed with damage may fail in any way; the text is then no call
        return None
    return Read(value, complete=False, certain=False) if isinstance(value, dict | list) else None
