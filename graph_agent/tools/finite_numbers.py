"""Arguments that a tool's schema would read as a number that is not finite.

Several formats of calls write each argument as text: `NaN` may be a word there, or a number. The schema decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ValidationError

from graph_agent.errors import ToolArgumentsError

_LONGEST = 1_000
"""Characters of a text that may be such a number."""


def check_finite(tool: BaseTool, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments whose text a tool's schema reads as NaN or as an infinity.

    Args:
        tool: The tool; one whose schema is no pydantic class takes its arguments as they are.
        arguments: The model's.

    Raises:
        ToolArgumentsError: With the arguments' names.
    """
    suspects = [name for name, value in arguments.items() if _may_be_not_finite(value)]
    if not suspects:
        return
    # Without what the framework fills in.
    schema = tool.tool_call_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return
    try:
        read = vars(schema.model_validate({**arguments}))
    except ValidationError:
        return  # the call itself says what does not fit
    if names := [name for name in suspects if _is_not_finite(read.get(name))]:
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
