"""Reads the function tools of a request: their definitions, the choice among them, and the arguments of calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from graph_agent.base._internal.text import to_json_safe
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError


def parse_arguments(id_: str, text: str | None, param: str) -> dict[str, Any]:
    """Parse the arguments of a call, which are JSON as text. An empty text is an empty object.

    Args:
        id_: Id of the call, for the error.
        text: The arguments; None is an empty text.
        param: Name of the request's field, for the error.

    Raises:
        InvalidRequestError: The text is not a JSON object.
    """
    try:
        # `clean_body` saw the arguments as text, so their values are not cleaned yet.
        arguments = to_json_safe(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"The arguments of the call {id_!r} are no JSON object.", param)
    return arguments


def function_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Return a tool of the caller in OpenAI's format. Without a description, it is empty; without parameters, or with
    an empty object, the function has no arguments.
    """
    function = {
        "name": name,
        "description": description or "",
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def allowed_functions(allowed: Iterable[tuple[str, str | None]], offered: Iterable[tuple[str, str | None]]) -> set[str]:
    """Return the names of the functions that a `tool_choice` of type `allowed_tools` permits.

    A permitted tool that is not a function must only have the type of a tool of the request, and adds no name.

    Args:
        allowed: Type and name of each permitted tool; the name is None for tools that are not functions.
        offered: Type and name of each tool of the request.

    Raises:
        ProblemError: A permitted tool is not among those of the request.
    """
    known = {(kind, name if kind == "function" else None) for kind, name in offered}
    names = set()
    for kind, name in allowed:
        if (kind, name if kind == "function" else None) not in known:
            raise not_among(name or kind)
        if kind == "function":
            names.add(name or "")
    return names


def not_among(name: str | None) -> ProblemError:
    """Return the error for a `tool_choice` that names a tool which is not among those of the request."""
    return InvalidRequestError(f"tool_choice names {name!r}, which is not among the tools.", "tool_choice")
