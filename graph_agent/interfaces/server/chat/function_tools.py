"""Reads the function tools of a request: their definitions, the choice among them, and the arguments of calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from graph_agent.base._internal.text import to_json_safe
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError


def parse_arguments(id_: str, text: str | None, param: str) -> dict[str, Any]:
    """Return the arguments of a call from JSON as text; an empty text is an empty object.

    Raises `InvalidRequestError` if it is no JSON object; `id_` and `param` name call and field in the error.
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
    """Return a tool of the caller as an OpenAI function; `parameters` None declares a function without arguments."""
    function = {
        "name": name,
        "description": description or "",
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def allowed_functions(allowed: Iterable[tuple[str, str | None]], offered: Iterable[tuple[str, str | None]]) -> set[str]:
    """Return the names of the functions that `tool_choice` allows, of those that a request offers.

    Both are pairs of a type and a name, which is None for tools that are no functions. Raises `ProblemError` if a tool
    is allowed that is not offered.
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
    """Return the problem for a `tool_choice` that names a tool which the request does not offer."""
    return InvalidRequestError(f"tool_choice names {name!r}, which is not among the tools.", "tool_choice")
