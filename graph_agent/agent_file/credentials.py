"""Reads credentials from environment variables that an agent file or the command line names.

Neither may contain the secret itself: files are shared, and command lines are visible to every user of the machine. No
error message shows a value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from graph_agent.base._internal.validation_text import describe_fields
from graph_agent.base._internal.yaml_files import parse_yaml
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.base.settings.config import LoopConfig

_SHAPE = "write {env: NAME}, where NAME is the environment variable that holds the secret"


class CredentialSource(BaseModel):
    """The source of one credential."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True, json_schema_extra=describe_fields
    )

    env: str = Field(min_length=1)
    """The environment variable that holds it."""


def check_sources(given: Any, where: str) -> None:
    """Check the `credentials` of an agent file, as parsed from YAML: credential name → `{"env": …}`.

    Raises `ConfigError` for any other form, e.g. the secret itself, which the message does not show. `where` is the
    file's name in the message.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: credentials: expected a mapping of names, such as {{token: {{env: NAME}}}}.")
    for name, source in given.items():
        variable = source.get("env") if isinstance(source, Mapping) else None
        if not isinstance(name, str) or not isinstance(variable, str) or not variable or len(source) != 1:
            raise ConfigError(f"{where}: credentials.{name}: {_SHAPE}; the secret itself does not belong here.")


def sources_from(entries: Sequence[str]) -> dict[str, CredentialSource]:
    """Return credential name → source for the command line's entries `NAME=env:VARIABLE`.

    Of several entries with one name, the last one counts. Raises `ConfigError` for an entry of another form; the
    message has the name only.
    """
    sources: dict[str, CredentialSource] = {}
    for entry in entries:
        name, _, source = entry.partition("=")
        kind, _, variable = source.partition(":")
        if not name or kind != "env" or not variable:
            raise ConfigError(
                f"--credential {name}: write NAME=env:VARIABLE, e.g. token=env:MY_TOKEN. The secret itself does not "
                "belong on the command line, where other users of this machine see it."
            )
        sources[name] = CredentialSource(env=variable)
    return sources


def read_credentials(
    sources: Mapping[str, CredentialSource], environment: Mapping[str, str] = os.environ
) -> dict[str, SecretStr]:
    """Return credential name → secret, read from the environment variables that `sources` names.

    Raises `ConfigError`, which names all variables that are missing or empty.
    """
    # All at once, so that a user does not find them one by one.
    missing = [f"{name} (${source.env})" for name, source in sources.items() if not environment.get(source.env)]
    if missing:
        raise ConfigError(
            f"These credentials have no value, as their environment variables are not set: {', '.join(missing)}. "
            "Set the variables, or take the credentials out of the agent file."
        )
    return {name: SecretStr(environment[source.env]) for name, source in sources.items()}


LOOP_PREFIX = "GRAPH_AGENT_LOOP_"
"""Prefix of environment variables for `config`: `GRAPH_AGENT_LOOP_MAX_STEPS` replaces `config.max_steps`."""
KEY_VARIABLES = {
    "GRAPH_AGENT_MODEL": "model",
    "GRAPH_AGENT_CACHE": "cache",
    "GRAPH_AGENT_PUSH_NOTIFICATIONS": "push_notifications",
}
"""Environment variable → key of the agent file that it replaces. `GRAPH_AGENT_DB` belongs to the option `--db`."""


def loop_variable_of(field: str) -> str:
    """Return the name of the environment variable that sets a field of `LoopConfig`."""
    return f"{LOOP_PREFIX}{field.upper()}"


def keys_from(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return key of the agent file → parsed value, for the environment variables of `KEY_VARIABLES` that are set.

    Variables of white space count as not set. Raises `ConfigError` if a value is not valid YAML.
    """
    return {
        key: parse_yaml(environment[variable], variable)
        for variable, key in KEY_VARIABLES.items()
        if environment.get(variable, "").strip()
    }


def loop_fields_from(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return field of `LoopConfig` → parsed value, for the environment variables `GRAPH_AGENT_LOOP_…` that are set.

    Variables of white space count as not set. Raises `ConfigError` if a variable names no field, or its value is no
    YAML or is invalid for the field. Each value is checked on its own, not in combination with the others.
    """
    fields = {loop_variable_of(name): name for name in (*LoopConfig.model_fields, *LoopConfig.removed_fields)}
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(LOOP_PREFIX) or not text.strip():
            continue
        if variable not in fields:
            raise ConfigError(f"{variable}: there is no such setting; {did_you_mean(variable, fields)}")
        name = fields[variable]
        found[name] = parse_yaml(text, variable)
        try:
            # Each on its own, so that the error names its variable.
            LoopConfig(**{name: found[name]})
        except ConfigError as error:
            raise ConfigError(f"{variable}={text}: {error}") from None
    return found
