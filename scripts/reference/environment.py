"""The page of the environment variables: options, settings of a server, keys of an agent file, and the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from inspect import signature
from typing import get_args, get_type_hints

from typer.models import OptionInfo

from graph_agent.agent_file.credentials import KEY_VARIABLES, loop_variable_of
from graph_agent.agent_file.spec import TODAY_VARIABLE
from graph_agent.base._internal.validation_text import field_docs
from graph_agent.base.settings.config import LoopConfig
from graph_agent.interfaces.cli.serving import a2a, serve
from graph_agent.interfaces.server.settings import KEYS_VARIABLE, ServerSettings, variable_of
from graph_agent.models.scripted import MOCK_VARIABLE
from scripts.reference.markdown import code, default_of, document, table

OTHERS = {
    KEYS_VARIABLE: "API keys of a server, separated by commas or newlines, each `key` or `name:key`.",
    MOCK_VARIABLE: "Replies of a scripted model in place of every model: a JSON array of texts and calls. "
    "No model is called. See [testing](../guides/testing.md).",
    TODAY_VARIABLE: "The ISO date that a served agent and its stdio MCP servers take as today.",
    "GRAPH_AGENT_OTEL": "`true` to [trace](../guides/opentelemetry.md) runs by OTLP; the extra `otel`.",
    "GRAPH_AGENT_LOG_FORMAT": "`json` for one JSON object per [log record](../guides/logging.md#fields); `text` else.",
    "AGENTIC_LOOP_ENABLED": "`true` or `false`: the [planner](../guides/waves.md) of every session of the process.",
    "OPENAI_API_KEY": "Key of the models of `openai:`.",
    "OPENAI_BASE_URL": "URL of a server with OpenAI's API, for the models of `openai:`.",
    "PGPASSWORD": "Password of a PostgreSQL database; the other variables of libpq apply as well.",
}
"""Variables that belong to no option and no setting → description."""


def page() -> str:
    """Return the page."""
    return document(
        "Environment variables",
        "An option on the command line replaces its variable, and a variable replaces a key of the agent file. An "
        "empty variable counts as unset. Values of settings and of keys are YAML.",
        "## Options",
        "Of `graph-agent serve`, and of every other command that has the same option.",
        table(("Variable", "Option", "Description"), _options()),
        "## Settings of a server",
        table(("Variable", "Default", "Description"), _settings()),
        "## Keys of an agent file",
        "Only the agent file that a command opens is changed, not those of its delegates.",
        table(("Variable", "Key", "Description"), _keys()),
        "An address of an agent file can refer to variables itself: `${NAME}` or `${NAME:-default}` in the `url` of a "
        "delegate, in the `url` and the `headers` of an MCP server over HTTP, and in the `env` of one over stdio.",
        "## Others",
        table(("Variable", "Description"), [(code(name), text) for name, text in OTHERS.items()]),
    )


def names() -> frozenset[str]:
    """Return every variable of the page."""
    settings = [variable_of(name) for name in ServerSettings.model_fields]
    loop = [loop_variable_of(name) for name in LoopConfig.model_fields]
    return frozenset([*(row[0] for row in _envvars()), *settings, *KEY_VARIABLES, *loop, *OTHERS])


def options_of(command: Callable[..., object]) -> dict[str, OptionInfo]:
    """Return the options of a command by parameter."""
    types = get_type_hints(command, include_extras=True)
    given = {name: get_args(types[name]) for name in signature(command).parameters}
    return {name: found[1] for name, found in given.items() if isinstance(found[1], OptionInfo)}


def _envvars() -> Iterator[tuple[str, str, str]]:
    seen = set()
    for info in [*options_of(serve).values(), *options_of(a2a).values()]:
        if isinstance(info.envvar, str) and info.envvar not in seen:
            seen.add(info.envvar)
            yield info.envvar, str(info.default), info.help or ""


def _options() -> Iterator[tuple[str, ...]]:
    for variable, option, text in _envvars():
        yield code(variable), code(option), text


def _settings() -> Iterator[tuple[str, ...]]:
    docs = field_docs(ServerSettings)
    for name, field in ServerSettings.model_fields.items():
        if name != "keys":
            text = re.sub(r"\bNone\b", "null", docs[name])
            yield code(variable_of(name)), default_of(field.default), text


def _keys() -> Iterator[tuple[str, ...]]:
    described = {"model": "The model; a YAML list tries the first that can be built.", "cache": "The cache of plans."}
    for variable, key in KEY_VARIABLES.items():
        yield code(variable), code(key), described.get(key, "Whether A2A clients may subscribe to changes of tasks.")
    for name, schema in LoopConfig.model_json_schema()["properties"].items():
        yield code(loop_variable_of(name)), code(f"config.{name}"), schema["description"]
