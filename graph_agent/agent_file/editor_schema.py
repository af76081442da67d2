"""Generates the JSON schema of the agent file, for editors; `spec/agent.schema.json` is its output.

The schema is that of `AgentSpec`, with the mappings that are validated elsewhere filled in: `config`, MCP connections
and the authentication of remote delegates. It accepts exact JSON types only, where the loader also converts `"8"` to 8.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from graph_agent.agent_file.imports import SHIPPED_HOOKS
from graph_agent.agent_file.spec import CONFIG_ALIASES, AgentSpec
from graph_agent.delegates.a2a_http import A2AAuth
from graph_agent.mcp.connections import (
    ANSWER_TIMEOUT_S,
    COMMON_KEYS,
    CONNECT_TIMEOUT_S,
    ELICITATION,
    SAMPLING,
    SAMPLING_MAX_TOKENS,
    STRAY_OUTPUT,
    TRANSPORT_KEYS,
    TRANSPORTS,
)
from graph_agent.mcp.messages import MAX_MESSAGE_BYTES
from graph_agent.mcp.transports import READ_TIMEOUT_S, TIMEOUT_S
from graph_agent.prompts import VARIABLES
from graph_agent.settings.config import LoopConfig

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
"""Connection keys whose values are Python objects, which a file cannot contain."""

_CONNECTION: dict[str, dict[str, Any]] = {
    "tool_prefix": {
        "anyOf": [{"type": "boolean"}, {"type": "string"}],
        "default": False,
        "description": "Prefix of the server's tool names: true for `<server>_`, or the prefix itself.",
    },
    "connect_timeout_s": {
        **_SECONDS,
        "default": CONNECT_TIMEOUT_S,
        "description": "Seconds that the server may take to start.",
    },
    "pin_tools": {
        "type": "boolean",
        "default": False,
        "description": "Whether to offer only the tools listed at startup, and ignore later changes.",
    },
    "required": {
        "type": "boolean",
        "default": False,
        "description": "Whether the agent cannot be opened without the server; otherwise its tools are left out.",
    },
    "max_message_bytes": {
        "type": "integer",
        "minimum": 1024,
        "default": MAX_MESSAGE_BYTES,
        "description": "Maximum bytes of one message from the server; a longer one is refused.",
    },
    "elicitation": {
        "enum": [*ELICITATION],
        "default": ELICITATION[0],
        "description": "For a question that the server asks a person during a call: make it an interrupt, also repeat "
        "a writing call that was lost before the answer, or refuse it.",
    },
    "sampling": {
        "enum": [*SAMPLING],
        "default": SAMPLING[0],
        "description": "For a request of the server to a model: refuse it, or answer it with the agent's model.",
    },
    "sampling_max_tokens": {
        "type": "integer",
        "minimum": 1,
        "default": SAMPLING_MAX_TOKENS,
        "description": "Maximum tokens of one such reply.",
    },
    "resources": {
        "type": "boolean",
        "default": False,
        "description": "Whether to offer the server's resources as tools that list and read them.",
    },
    "prompts": {
        "type": "boolean",
        "default": False,
        "description": "Whether to offer the server's prompts as tools that list them and return their text.",
    },
    "roots": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Folders that are announced to the server, relative to the agent file.",
    },
    "oauth": {
        "anyOf": [
            {"type": "boolean"},
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "scopes": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "The requested scopes; absent for those that the server advertises.",
                    },
                    "client_id": {
                        "type": "string",
                        "description": "Id of a client that is registered already; absent to register one.",
                    },
                    "client_secret": {"type": "string", "description": "Its secret; may refer to a variable."},
                    "store": {"type": "string", "description": "Folder of the tokens."},
                    "redirect_port": {
                        "type": "integer",
                        "minimum": 0,
                        "maximum": 65_535,
                        "description": "Port of the redirect on 127.0.0.1; 0 for a free one.",
                    },
                },
            },
        ],
        "description": "Whether to authorize with OAuth, or its settings: the scopes, a client that is registered "
        "already, the folder of the tokens, and the port of the redirect.",
    },
    "answer_timeout_s": {
        "type": "number",
        "exclusiveMinimum": 0,
        "default": ANSWER_TIMEOUT_S,
        "description": "Seconds that a call stays open for the answer to its question.",
    },
    "stray_output": {
        "enum": list(STRAY_OUTPUT),
        "default": STRAY_OUTPUT[0],
        "description": "For a line of a stdio server that is not a message: fail the running calls, or only log it.",
    },
    "command": {"type": "string", "minLength": 1, "description": "The program to start."},
    "args": {"type": "array", "items": {"type": "string"}, "default": [], "description": "Its arguments."},
    "env": {
        "type": "object",
        "additionalProperties": {"type": ["string", "null"]},
        "default": {},
        "description": "Its environment variables, which may refer to those of this process, as in `${NAME}`; null "
        "inherits a variable of this process, if set.",
    },
    "cwd": {"type": "string", "default": ".", "description": "Its working folder, relative to the agent file."},
    "encoding": {"type": "string", "default": "utf-8", "description": "Encoding of its messages."},
    "encoding_error_handler": {
        "enum": ["strict", "ignore", "replace"],
        "default": "strict",
        "description": "What happens to bytes that cannot be decoded.",
    },
    "url": {
        "type": "string",
        "pattern": r"^(?:https?://|\$\{)",
        "description": "URL of the server; `${NAME}` or `${NAME:-default}` is read from the environment.",
    },
    "headers": {**_TEXTS, "default": {}, "description": "Headers of every request; may refer to variables, as `url`."},
    "timeout": {**_SECONDS, "default": TIMEOUT_S, "description": "Seconds for one HTTP request."},
    "sse_read_timeout": {
        **_SECONDS,
        "default": READ_TIMEOUT_S,
        "description": "Seconds of silence after which a stream of events fails.",
    },
    "terminate_on_close": {
        "type": "boolean",
        "default": True,
        "description": "Whether to end the server's session when the connection closes.",
    },
    "session_kwargs": {"type": "object", "default": {}, "description": "Further arguments of MCP's `ClientSession`."},
}


def agent_schema() -> dict[str, Any]:
    """Return the JSON schema of an agent file. Unknown keys are errors at every level."""
    definitions: dict[str, Any] = {}
    schema = _schema_of(AgentSpec, definitions)
    keys = schema["properties"]
    del keys["path"]
    single, several = keys["model"]["anyOf"]
    single |= _MODEL
    several["minItems"] = 1
    several["items"] |= _MODEL
    keys["db"] |= _DATABASE
    keys["prompts"]["propertyNames"] = {"enum": sorted(VARIABLES)}
    keys["cache"]["anyOf"][0]["pattern"] = "^(memory|sqlite:///.+)$"
    keys["config"] |= _config(definitions)
    keys["mcp_servers"]["additionalProperties"] = {"anyOf": [_connection(name) for name in TRANSPORT_KEYS]}
    keys["tools"]["items"] |= _DOTTED
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
    """Return the schema as the text of `agent.schema.json`."""
    return json.dumps(agent_schema(), indent=2, ensure_ascii=False) + "\n"


def _schema_of(model: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_WithoutFieldTitles)
    definitions |= schema.pop("$defs", {})
    del schema["title"]
    return schema


class _WithoutFieldTitles(GenerateJsonSchema):
    """Leaves out the titles that pydantic derives from the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _one_of(*names: str) -> list[dict[str, Any]]:
    """Return the alternatives of an object that has exactly one of some texts; null counts as absent."""
    return [{"required": [name], "properties": {name: {"type": "string"}}} for name in names]


def _config(definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _schema_of(LoopConfig, definitions)
    fields = schema["properties"]
    for alias, name in CONFIG_ALIASES.items():
        fields[alias] = {**fields[name], "description": f"Alias of `{name}`."}
    both = [{"not": {"required": [alias, name]}} for alias, name in CONFIG_ALIASES.items()]
    return {
        "additionalProperties": False,
        "properties": fields,
        "dependentRequired": {"max_cost": ["prices"]},
        "allOf": both,
    }


def _connection(transport: Any) -> dict[str, Any]:
    names = [name for name, of in TRANSPORTS.items() if of == transport]
    keys = (COMMON_KEYS | TRANSPORT_KEYS[transport]) - {"transport"} - _OBJECTS_ONLY
    return {
        "type": "object",
        "title": transport,
        "additionalProperties": False,
        "properties": {
            "transport": {"enum": names, "description": "How to reach the server."},
            **{name: _CONNECTION[name] for name in sorted(keys, key=list(_CONNECTION).index)},
        },
        "required": ["transport", _REQUIRED[transport]],
    }


def _in_yaml_terms(schema: Any, key: str = "") -> Any:
    """Replace Python's None by null in every description, and join the lines of its paragraphs."""
    if isinstance(schema, dict):
        return {name: _in_yaml_terms(value, name) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_in_yaml_terms(value) for value in schema]
    if key == "description" and isinstance(schema, str):
        return re.sub(r"(?<!\n)\n(?!\n)", " ", re.sub(r"\bNone\b", "null", schema))
    return schema
