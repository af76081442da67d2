"""Rejection of text arguments that a tool's schema would parse as NaN or an infinity.

Several call formats write each argument as text, where `NaN` may be a word or a number. The tool's schema decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ValidationError

from graph_agent.errors import ToolArgumentsError

_LONGEST = 1_000
"""Maximum characters of a text that is checked; a longer one is not a number."""


def check_finite(tool: BaseTool, arguments: Mapping[str, Any]) -> None:
    """Refuse text arguments that the tool's schema parses as NaN or an infinity.

    Args:
        tool: The tool; no check if its schema is not a pydantic class.
        arguments: The model's arguments.

    Raises:
        ToolArgumentsError: With the names of those arguments.
    """
    suspects = [name for name, value in arguments.items() if _may_be_not_finite(value)]
    if not suspects:
        return
    # The schema without injected arguments.
    schema = tool.tool_call_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return
    try:
        parsed = vars(schema.model_validate({**arguments}))
    except ValidationError:
        return  # the call itself reports the misfit
    if names := [name for name in suspects if _is_not_finite(parsed.get(name))]:
        raise ToolArgumentsError(
            f"The arguments do not fit the tool {tool.name!r}: {', '.join(names)} must be finite, and was given as "
            f"{', '.join(repr(arguments[name])[:80] for name in names)}. Send a finite number."
        )


def _may_be_not_finite(value: Any) -> bool:
    if isinstance(value, str):
        if len(value) > _LONGEST:
            return False
        try:
            return not math.isfinite(float(value))
        except ValueError:
            return False
    if isinstance(value, Mapping):
        return any(map(_may_be_not_finite, value.values()))
    return isinstance(value, list) and any(map(_may_be_not_finite, value))


def _is_not_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, BaseModel):
        value = vars(value)
    if isinstance(value, Mapping):
        return any(map(_is_not_finite, value.values()))
    return isinstance(value, list | tuple | set) and any(map(_is_not_finite, value))
