"""References to environment variables in text: `${NAME}` and `${NAME:-default}`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


def expand(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Replace the references in a text by the values of variables.

    Args:
        text: The text.
        environment: The environment variables; an empty one counts as unset if there is a default.

    Raises:
        ValueError: If a variable is not set and has no default; the message shows the reference, not the text.
    """
    expanded, missing = expand_known(text, environment)
    if missing is not None:
        name = _REFERENCE.fullmatch(missing)
        raise ValueError(f"the environment variable {name and name['name']} in {missing!r} is not set")
    return expanded


def expand_known(text: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str | None]:
    """Replace the references that have a value, and leave the others unchanged.

    Args:
        text: The text.
        environment: The environment variables; an empty one counts as unset if there is a default.

    Returns:
        The text, and the first reference without a value; None if every reference has one.
    """
    missing: list[str] = []

    def value(found: re.Match[str]) -> str:
        given = environment.get(found["name"]) or found["default"]
        if given is None and (given := environment.get(found["name"])) is None:
            missing.append(found[0])
            return found[0]
        return given

    return _REFERENCE.sub(value, text), missing[0] if missing else None
