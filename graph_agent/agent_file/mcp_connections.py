"""Resolves the MCP connections of an agent file: paths, environment variables and the files of the servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from graph_agent.agent_file.spec import AgentSpec
from graph_agent.base._internal.failure_log import clause
from graph_agent.base._internal.own_files import record_file
from graph_agent.base._internal.yaml_files import expand
from graph_agent.base.errors import ConfigError


def mcp_connections(spec: AgentSpec, environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the file's MCP connections for `open_mcp_tools`, with paths and variables resolved.

    Args:
        spec: The agent file.
        environment: Variables for every stdio server; its own variables override them.

    Raises:
        ConfigError: A variable that a URL or header refers to is not set.
    """
    return {name: _located(name, raw, spec, environment) for name, raw in spec.mcp_servers.items()}


def _located(name: str, raw: Mapping[str, Any], spec: AgentSpec, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a connection with its paths resolved relative to the agent file's folder, and its variables replaced.

    A stdio server starts in that folder, or in its `cwd`, so that relative arguments resolve there; the files among its
    command and arguments are recorded as ones that the agent's tools must not change.

    Args:
        name: Name of the server.
        raw: The connection, not validated yet; invalid values are left for the validation.
        spec: The agent file.
        environment: Variables for the process of a stdio server, which those of the connection override.

    Raises:
        ConfigError: A variable in the connection of a server over HTTP is not set.
    """
    if isinstance(roots := raw.get("roots"), list):
        raw = {**raw, "roots": [str(spec.folder / root) if isinstance(root, str) else root for root in roots]}
    if raw.get("transport") != "stdio":
        return _with_variables(name, raw)
    cwd = "." if (given := raw.get("cwd")) is None else given
    folder = spec.folder / cwd if isinstance(cwd, str) else spec.folder
    args = raw.get("args")
    for part in (raw.get("command"), *(args if isinstance(args, list | tuple) else ())):
        if isinstance(part, str):
            record_file(folder / part, f"the MCP server {name!r} of this agent", only_file=True)
    return {**raw, "cwd": str(folder) if isinstance(cwd, str) else cwd, "env": _env(raw.get("env") or {}, environment)}


def _with_variables(server: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return an HTTP connection with the environment variables in its URL, headers and OAuth settings replaced.

    Raises `ConfigError` if one is not set.
    """
    connection = dict(raw)
    try:
        if isinstance(url := raw.get("url"), str):
            connection["url"] = expand(url)
        for key in ("headers", "oauth"):
            if isinstance(given := raw.get(key), Mapping):
                connection[key] = {
                    name: expand(value) if isinstance(value, str) else value for name, value in given.items()
                }
    except ValueError as error:
        fix = "set it, or write a default: '${NAME:-default}'"
        raise ConfigError(f"MCP server {server!r}: {clause(error)}; {fix}.") from None
    return connection


def _env(own: Any, given: Mapping[str, str]) -> Any:
    """Return the environment of a stdio server: the `given` variables, overridden by its `own` ones.

    A variable of None is inherited from this process, or left out if it is not set. Anything but a mapping is returned
    unchanged.
    """
    if not isinstance(own, Mapping):
        return own  # refused by the validation of the connection
    values = {name: os.environ.get(name) if value is None else value for name, value in own.items()}
    return {**given, **{name: value for name, value in values.items() if value is not None}}
