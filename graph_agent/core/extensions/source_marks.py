"""Reads the marks of tools that declare untrusted results and sinks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graph_agent.base.calls import is_delegation
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.core.extensions.toolbox import Toolbox

_WORDS = ("trusted", "untrusted")


def declared_source(toolbox: Toolbox, name: str) -> str | frozenset[str]:
    """Return `trusted` or `untrusted` for the results of a call, or the names of the fields that outsiders can write.

    The mark `source` of the tool, or the attribute `source` of the delegate, decides. Without it, results of delegates
    and of tools of MCP servers are untrusted, and those of the agent's other tools trusted. Tools that the agent does
    not have are untrusted.
    """
    if is_delegation(name):
        return str(getattr(toolbox.delegates.get(name), "source", "untrusted"))
    if name not in toolbox.tools and name not in toolbox.client_tools:
        return "untrusted"
    marks: Mapping[str, Any] = toolbox.marks(name)
    declared = marks.get("source", "untrusted" if "mcp_server" in marks else "trusted")
    return declared if isinstance(declared, str) else frozenset(map(str, declared))


def sinks_of(toolbox: Toolbox, name: str) -> frozenset[str]:
    """Return the names of the arguments that decide where a call goes (its sinks), from the tool's mark `sinks`."""
    return frozenset(map(str, toolbox.marks(name).get("sinks", ())))


def check_marks(toolbox: Toolbox) -> None:
    """Check the marks `source` and `sinks` of all tools.

    `source` is `trusted`, `untrusted`, or a list of fields of the result; `sinks` is a list of arguments of the tool.
    The lists may not be empty.

    Raises:
        ConfigError: A mark is invalid, or a sink is no argument of its tool.
    """
    schemas = {schema["function"]["name"]: schema["function"] for schema in toolbox.schemas}
    for name in toolbox.tools:
        marks = toolbox.marks(name)
        if (source := marks.get("source")) is not None and source not in _WORDS and not _are_names(source):
            raise ConfigError(
                f"The mark source of the tool {name!r} is {source!r}; write 'trusted', 'untrusted', or a list of the "
                "fields of its result that outsiders can write."
            )
        if (sinks := marks.get("sinks")) is None:
            continue
        if not _are_names(sinks):
            raise ConfigError(f"The mark sinks of the tool {name!r} is {sinks!r}; list names of its arguments.")
        known = schemas.get(name, {}).get("parameters", {}).get("properties", {})
        for sink in sinks:
            if sink not in known:
                raise ConfigError(f"The tool {name!r} has no argument {sink!r} for a sink; {did_you_mean(sink, known)}")


def _are_names(given: Any) -> bool:
    """Whether a value is a collection of texts, and not empty."""
    is_collection = isinstance(given, Collection) and not isinstance(given, str | bytes | Mapping)
    return is_collection and bool(given) and all(isinstance(name, str) and name for name in given)
