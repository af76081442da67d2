"""Environment variables that replace keys of an agent file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph_agent._internal.yaml_files import parse_yaml
from graph_agent.config import LoopConfig
from graph_agent.errors import ConfigError, did_you_mean

LOOP_PREFIX = "GRAPH_AGENT_LOOP_"
"""Prefix of the variables for `config`: `GRAPH_AGENT_LOOP_MAX_STEPS` replaces `config.max_steps`."""
KEY_VARIABLES = {
    "GRAPH_AGENT_MODEL": "model",
    "GRAPH_AGENT_CACHE": "cache",
    "GRAPH_AGENT_PUSH_NOTIFICATIONS": "push_notifications",
}
"""Variable → key of the agent file that it replaces. `GRAPH_AGENT_DB` belongs to the option `--db`."""


def loop_variable_of(field: str) -> str:
    """Return the environment variable of a field of `LoopConfig`."""
    return f"{LOOP_PREFIX}{field.upper()}"


def keys_from(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of an agent file that variables replace; an empty variable counts as unset.

    Raises:
        ConfigError: If a value is not YAML.
    """
    return {
        key: parse_yaml(environment[variable], variable)
        for variable, key in KEY_VARIABLES.items()
        if environment.get(variable, "").strip()
    }


def loop_fields_from(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `LoopConfig` that variables set; an empty variable counts as unset.

    Raises:
        ConfigError: If a variable names no field, or its value is not YAML or is invalid.
    """
    fields = {loop_variable_of(name): name for name in LoopConfig.model_fields}
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(LOOP_PREFIX) or not text.strip():
            continue
        if variable not in fields:
            raise ConfigError(f"{variable}: there is no such setting; {did_you_mean(variable, fields)}")
        name = fields[variable]
        found[name] = parse_yaml(text, variable)
        try:
            LoopConfig(**{name: found[name]})
        except ConfigError as error:
            raise ConfigError(f"{variable}={text}: {error}") from None
    return found
