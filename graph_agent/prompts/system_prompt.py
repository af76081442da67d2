"""The source of the system prompt: text, or a function that is called for each request."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from graph_agent._internal.exception_text import exception_text
from graph_agent.errors import ConfigError


def system_prompt_source(given: object, state: Callable[[], dict[str, Any]] = dict) -> Callable[[], str]:
    """Return a function that provides the system prompt of each request.

    Args:
        given: Text, or a function that returns text, without parameters or with one, which receives the state.
        state: Returns the state of the running node.

    Raises:
        ConfigError: If it is neither. The returned function raises it if the given function fails or returns no text.
    """
    if isinstance(given, str):
        return lambda: given
    if not callable(given):
        raise ConfigError(f"system_prompt={given!r}: give text, or a function that returns text.")
    name = getattr(given, "__name__", repr(given))
    if inspect.iscoroutinefunction(given):
        raise ConfigError(f"system_prompt: {name} is a coroutine function; give a plain function that returns text.")
    needed = _needed_parameters(given)
    if len(needed) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed):
        names = ", ".join(repr(parameter.name) for parameter in needed)
        raise ConfigError(
            f"system_prompt: the function {name} needs {names}, and it is called with the state alone, or without "
            "arguments; give its other parameters defaults, or pass e.g. functools.partial or a lambda."
        )

    def source() -> str:
        try:
            text = given(state()) if needed else given()
        except Exception as error:
            raise ConfigError(f"system_prompt: the function {name} failed: {exception_text(error)}") from error
        if not isinstance(text, str):
            raise ConfigError(f"system_prompt: the function {name} returned {text!r}; return text.")
        return text

    return source


def _needed_parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []  # some C callables have no signature
    return [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
