"""Generates the JSON schema of the agent file for editors; `spec/agent.schema.json` is its output.

The schema is that of `AgentSpec`, completed by the mappings that are validated elsewhere: `config`, MCP connections and
the authentication of remote delegates. It accepts exact JSON types only, where the loader also converts `"8"` to 8.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from graph_agent.agent_file.imports import SHIPPED_HOOKS
from graph_agent.agent_file.spec import CONFIG_ALIASES, AgentSpec
from graph_agent.base.settings.config import LoopConfig
from graph_agent.integrations.delegates.a2a_http import A2AAuth
from graph_agent.integrations.mcp.connections import COMMON_KEYS, TRANSPORT_KEYS, TRANSPORTS, ServerConfig
from graph_agent.integrations.mcp.oauth import OAuthSettings
from graph_agent.integrations.mcp.transports import TIMEOUT_S
from graph_agent.models.prompts import VARIABLES

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DOTTED = {"pattern": r"^[^\s:]+[:.][^\s:]+$"}
_HOOK = {"pattern": rf"^(?:{'|'.join(SHIPPED_HOOKS)}|[^\s:]+[:.][^\s:]+)$"}
_MIDDLEWARE = {"pattern": r"^(?:[A-Za-z_]\w*|[^\s:]+[:.][^\s:]+)$"}
_MODEL = {"pattern": r"^(?:[^:]*[^\s:][^:]*:.*\S.*|[^\W\d]\w*(?:\.[^\W\d]\w*)+)$"}
"""`provider:name`, `module:factory` or `module.factory`."""
_DATABASE = {"pattern": "^(?:memory:|sqlite:///.+|postgres(?:ql)?://.*)$"}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_SECONDS = {"type": "number", "exclusiveMinimum": 0}
_REQUIRED = {"stdio": "command", "streamable_http": "url", "sse": "url"}
_OBJECTS_ONLY = {"auth", "httpx_client_factory"}
"""Keys of connections whose values are Python objects, which a file cannot contain."""

_NONE: Any = object()


def _key(description: str, default: Any = _NONE, **schema: Any) -> dict[str, Any]:
    """Return the schema of a key: its rules, its default if one is given, and its description."""
    return {**schema, **({} if default is _NONE else {"default": default}), "description": description}


def _text(description: str, default: Any = _NONE, **rules: Any) -> dict[str, Any]:
    """Return the schema of a key whose value is a text, with further rules such as a pattern."""
    return _key(description, default, type="string", **rules)


_STRINGS = {"type": "array", "items": {"type": "string"}}
_TRANSPORT_KEYS: dict[str, dict[str, Any]] = {
    "oauth": _key(
        "Whether to authorize with OAuth, or its settings.",
        anyOf=[{"type": "boolean"}, {"$ref": "#/$defs/OAuthSettings"}],
    ),
    "command": _text("The program to start.", minLength=1),
    "args": _key("Its arguments.", [], **_STRINGS),
    "env": _key(
        "Its environment variables, which may refer to those of this process, as in `${NAME}`; null inherits a "
        "variable of this process, if set.",
        {},
        type="object",
        additionalProperties={"type": ["string", "null"]},
    ),
    "cwd": _text("Its working folder, relative to the agent file.", "."),
    "encoding": _text("Encoding of its messages.", "utf-8"),
    "encoding_error_handler": _key(
        "What happens to bytes that cannot be decoded.", "strict", enum=["strict", "ignore", "replace"]
    ),
    "url": _text(
        "URL of the server; `${NAME}` or `${NAME:-default}` is read from the environment.",
        pattern=r"^(?:https?://|\$\{)",
    ),
    "headers": _key("Headers of every request; may refer to variables, as `url`.", {}, **_TEXTS),
    "timeout": _key("Seconds for one HTTP request.", TIMEOUT_S, **_SECONDS),
    "sse_read_timeout": _key(
        "Seconds of silence after which a stream of events fails; by default `answer_timeout_s`, 300 at least.",
        ServerConfig.model_fields["answer_timeout_s"].default,
        **_SECONDS,
    ),
    "terminate_on_close": _key("Whether to end the server's session when the connection closes.", True, type="boolean"),
    "session_kwargs": _key("Further arguments of MCP's `ClientSession`.", {}, type="object"),
}


def agent_schema() -> dict[str, Any]:
    """Return the JSON schema of an agent file, in which unknown keys are errors at every level."""
    definitions: dict[str, Any] = {}
    schema = _schema_of(AgentSpec, definitions)
    keys = schema["properties"]
    # Set by the loader, and never in a file.
    del keys["path"]
    single, endpoint, several = keys["model"]["anyOf"]
    single |= _MODEL
    several["minItems"] = 1
    several["items"] = {"anyOf": [{"type": "string", **_MODEL}, endpoint]}
    definitions["ModelEndpoint"]["properties"]["model"] |= _MODEL
    keys["db"] |= _DATABASE
    keys["prompts"]["propertyNames"] = {"enum": sorted(VARIABLES)}
    keys["cache"]["anyOf"][0]["pattern"] = "^(memory|sqlite:///.+)$"
    keys["config"] |= _config(definitions)
    keys["mcp_servers"]["additionalProperties"] = {"anyOf": [_connection(name) for name in TRANSPORT_KEYS]}
    definitions["OAuthSettings"] = _schema_of(OAuthSettings, definitions)
    keys["tools"]["items"]["anyOf"][0] |= _DOTTED
    # A name alone is converted before the validation, so that the model's own schema does not have it.
    keys["hooks"]["items"] = {"anyOf": [{"type": "string", **_HOOK}, keys["hooks"]["items"]]}
    definitions["HookSpec"]["properties"]["use"] |= _HOOK
    keys["middleware"]["items"] = {"anyOf": [{"type": "string", **_MIDDLEWARE}, keys["middleware"]["items"]]}
    definitions["MiddlewareSpec"]["properties"]["use"] |= _MIDDLEWARE
    delegate = definitions["DelegateSpec"]
    delegate["properties"]["graph"]["anyOf"][0] |= _DOTTED
    delegate["oneOf"] = [
        {**kind, "required": [*kind["required"], "name"]} if "agent" not in kind["required"] else kind
        for kind in _one_of("agent", "graph", "url")
    ]
    auth = _schema_of(A2AAuth, definitions)
    auth["oneOf"] = _one_of("bearer_env", "api_key_env")
    delegate["properties"]["auth"]["anyOf"][0] = auth
    whole = {"$schema": _DIALECT, "title": "Agent file", **schema, "$defs": definitions}
    plain: dict[str, Any] = _in_yaml_terms(whole)
    return plain


def schema_text() -> str:
    """Return the schema as text, as in `agent.schema.json`."""
    return json.dumps(agent_schema(), indent=2, ensure_ascii=False) + "\n"


def _schema_of(model: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a model, and move the definitions of its parts (`$defs`) to `definitions`."""
    schema = model.model_json_schema(schema_generator=_WithoutFieldTitles)
    definitions |= schema.pop("$defs", {})
    del schema["title"]
    return schema


class _WithoutFieldTitles(GenerateJsonSchema):
    """Omits the titles that pydantic derives from field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False for every field."""
        return False


def _one_of(*names: str) -> list[dict[str, Any]]:
    """Return schemas of objects that have exactly one of the named texts; null counts as absent."""
    return [{"required": [name], "properties": {name: {"type": "string"}}} for name in names]


def _config(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the key `config`: the fields of `LoopConfig` with their aliases, and no others.

    The definitions of their parts are added to `definitions`. A maximum cost requires prices.
    """
    schema = _schema_of(LoopConfig, definitions)
    fields = schema["properties"]
    fields["fallback_models"]["items"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/ModelEndpoint"}]}
    fields["choose"]["anyOf"].append({"type": "string", "pattern": r"^[^\s:]+:[^\s:]+$"})
    for alias, name in CONFIG_ALIASES.items():
        fields[alias] = {**fields[name], "description": f"Alias of `{name}`."}
    # A file must not set one field under both of its names.
    both = [{"not": {"required": [alias, name]}} for alias, name in CONFIG_ALIASES.items()]
    return {
        "additionalProperties": False,
        "properties": fields,
        "dependentRequired": {"max_cost": ["prices"]},
        "allOf": both,
    }


def _connection(transport: Any) -> dict[str, Any]:
    """Return the schema of an MCP connection with one transport: the keys of all transports, and those of this one."""
    # With the aliases, which the loader accepts.
    names = [name for name, of in TRANSPORTS.items() if of == transport]
    common = ServerConfig.model_json_schema(schema_generator=_WithoutFieldTitles)["properties"]
    keys = TRANSPORT_KEYS[transport] - _OBJECTS_ONLY
    return {
        "type": "object",
        "title": transport,
        "additionalProperties": False,
        "properties": {
            "transport": {"enum": names, "description": "How to reach the server."},
            **{name: key for name, key in common.items() if name in COMMON_KEYS - {"transport"}},
            **{name: key for name, key in _TRANSPORT_KEYS.items() if name in keys},
        },
        "required": ["transport", _REQUIRED[transport]],
    }


def _in_yaml_terms(schema: Any, key: str = "") -> Any:
    """Return a JSON schema whose descriptions have null in place of Python's None, and paragraphs of one line each.

    `key` is the key under which the value stands; only texts under `description` are changed.
    """
    if isinstance(schema, dict):
        return {name: _in_yaml_terms(value, name) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_in_yaml_terms(value) for value in schema]
    if key == "description" and isinstance(schema, str):
        return re.sub(r"(?<!\n)\n(?!\n)", " ", re.sub(r"\bNone\b", "null", schema))
    return schema
