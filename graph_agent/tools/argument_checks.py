"""Checks of the lists that an agent is built from: tools, delegates and hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from graph_agent._internal.exception_text import exception_text
from graph_agent.delegation import Delegate
from graph_agent.errors import ConfigError

_DELEGATE = ("name", "description", "run")


def checked_tools(given: object) -> list[BaseTool]:
    """Make tools of LangChain tools and plain callables.

    Raises:
        ConfigError: When it is no list, or one of them cannot be a tool.
    """
    return [checked_tool(each, f"tools[{at}]") for at, each in enumerate(_listed(given, "tools"))]


def checked_delegates(given: object) -> list[Delegate]:
    """The delegates, as they are.

    Raises:
        ConfigError: When it is no list, or one of them is no delegate.
    """
    delegates = _listed(given, "delegates")
    for at, each in enumerate(delegates):
        if not all(hasattr(each, name) for name in _DELEGATE):
            raise ConfigError(
                f"delegates[{at}]={each!r} is no delegate; give GraphDelegate(name, description, graph) for a compiled "
                "graph, or A2ADelegate(name, url) for a remote agent."
            )
    return delegates


def checked_hooks(given: object) -> list[Any]:
    """The hooks, as they are; each is checked where it is registered.

    Raises:
        ConfigError: When it is no list.
    """
    return _listed(given, "hooks")


def openai_schema(tool: BaseTool) -> dict[str, Any]:
    """A tool in OpenAI's function format.

    Raises:
        ConfigError: When its arguments have no JSON schema.
    """
    try:
        return convert_to_openai_tool(tool)
    except Exception as error:
        raise ConfigError(
            f"The tool {tool.name!r} cannot be offered: {_first_line(error)} Give its parameters types that JSON has: "
            "str, int, float, bool, list, dict, or a pydantic model of these."
        ) from error


def _listed(given: object, name: str) -> list[Any]:
    # A single tool is a pydantic model, which gives its fields when it is iterated over.
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | BaseModel):
        return list(given)
    raise ConfigError(f"{name}={given!r}: give a list, e.g. {name}=[…].")


def checked_tool(given: object, where: str) -> BaseTool:
    """Make a tool of a LangChain tool or a plain callable.

    Args:
        given: What was given.
        where: Its place, for errors.

    Raises:
        ConfigError: When it cannot be a tool.
    """
    if isinstance(given, BaseTool):
        return given
    if not callable(given):
        raise ConfigError(f"{where}={given!r} is no tool; give a LangChain tool, or a function.")
    name = getattr(given, "__name__", repr(given))
    if isinstance(given, type) and issubclass(given, BaseTool):
        raise ConfigError(f"{where}: {name} is a class of tools; give an object of it: {name}(…).")
    try:
        return as_tool(given)
    except Exception as error:
        raise ConfigError(
            f"{where}: the function {name!r} cannot be a tool: {_first_line(error)} Give it a docstring and type hints."
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error) if isinstance(error, ValueError) else exception_text(error)
    return f"{text.strip().splitlines()[0].rstrip('.')}."
