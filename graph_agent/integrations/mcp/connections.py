"""Validates the settings of connections before any server is started; `docs/guides/mcp.md` describes the keys.

Connections have the keys of langchain-mcp-adapters, and further keys that this package adds for every transport.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, cast

import httpx
import mcp.types as types
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FileUrl,
    StrictBool,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from graph_agent.base._internal.validation_text import describe_fields, explain
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.integrations.mcp.messages import MAX_MESSAGE_BYTES

Transport = Literal["stdio", "streamable_http", "sse"]

TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio",
    "streamable_http": "streamable_http",
    "streamable-http": "streamable_http",
    "http": "streamable_http",
    "sse": "sse",
}
"""Name of a transport in a connection → its canonical name."""
_HTTP = {"url", "headers", "timeout", "sse_read_timeout", "httpx_client_factory", "auth", "session_kwargs", "oauth"}
TRANSPORT_KEYS: dict[Transport, set[str]] = {
    "stdio": {"command", "args", "env", "cwd", "encoding", "encoding_error_handler", "session_kwargs"},
    "streamable_http": {*_HTTP, "terminate_on_close"},
    "sse": _HTTP,
}
"""Transport → keys that belong to it only."""


def _as_seconds(value: Any) -> Any:
    """Return a duration in seconds; any other value unchanged."""
    return value.total_seconds() if isinstance(value, timedelta) else value


Seconds = Annotated[float, Field(strict=True, gt=0), BeforeValidator(_as_seconds)]
"""A number of seconds above zero, also given as a `timedelta`."""
Roots = Annotated[tuple[types.Root, ...] | None, WithJsonSchema({"type": "array", "items": {"type": "string"}})]


class ServerConfig(BaseModel):
    """One validated connection; `options` has the keys that belong to its transport only."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, json_schema_extra=describe_fields)

    name: str
    transport: Transport
    options: Mapping[str, Any]
    tool_prefix: Annotated[str, WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string"}]})] = ""
    """Prefix of the server's tool names: true for `<server>_`, or the prefix itself."""
    connect_timeout_s: Seconds = 30.0
    """Seconds that the server may take to start."""
    pin_tools: StrictBool = False
    """Whether to offer only the tools listed at startup, and ignore later changes."""
    required: StrictBool = False
    """Whether the agent cannot be opened without the server; otherwise its tools are left out."""
    max_message_bytes: Annotated[int, Field(strict=True, ge=1024)] = MAX_MESSAGE_BYTES
    """Maximum bytes of one message from the server; a longer one is refused."""
    elicitation: Literal["ask", "repeat", "refuse"] = "ask"
    """For a question that the server asks a person during a call: make it an interrupt, also repeat a writing call that
    was lost before the answer, or refuse it."""
    sampling: Literal["refuse", "model"] = "refuse"
    """For a request of the server to a model: refuse it, or answer it with the agent's model."""
    sampling_max_tokens: Annotated[int, Field(strict=True, ge=1)] = 4_096
    """Maximum tokens of one such reply."""
    resources: StrictBool = False
    """Whether to offer the server's resources as tools that list and read them."""
    prompts: StrictBool = False
    """Whether to offer the server's prompts as tools that list them and return their text."""
    roots: Roots = None
    """Folders that are announced to the server, relative to the agent file."""
    source: Literal["trusted", "untrusted"] | tuple[str, ...] = "untrusted"
    """Whether outsiders can write the results, or the fields that they can write; for the setting `origins`."""
    sinks: Mapping[str, tuple[str, ...]] = {}
    """Tool → its arguments that decide where a call goes, such as a recipient; for the setting `origins`."""
    answer_timeout_s: Seconds = 3_600.0
    """Seconds that a call stays open for the answer to its question."""
    stray_output: Literal["error", "ignore"] = "error"
    """For a line of a stdio server that is not a message: fail the running calls, or only log it."""

    @field_validator("tool_prefix", mode="before")
    @classmethod
    def _read_prefix(cls, value: Any, info: ValidationInfo) -> str:
        """Return `tool_prefix` as a text: `<name>_` for True, an empty one for False, and a text unchanged.

        Raises `ValueError` for another type.
        """
        own = f"{info.data['name']}_"
        if isinstance(value, bool):
            return own if value else ""
        if not isinstance(value, str):
            raise ValueError(f"it must be true (for {own!r}) or a text")
        return value

    @property
    def start_timeout_s(self) -> float:
        """Seconds for the server to start, including those that a user may take to authorize the client."""
        person_s: float = getattr(self.options.get("auth"), "person_s", 0.0)
        return self.connect_timeout_s + person_s


COMMON_KEYS = ServerConfig.model_fields.keys() - {"name", "options"}
"""Keys of every transport."""


def check_connections(
    connections: Mapping[str, Any], auth: httpx.Auth | Mapping[str, httpx.Auth] | None
) -> list[ServerConfig]:
    """Return the validated settings of all connections, with their authentication.

    Args:
        connections: Server name → connection.
        auth: For HTTP servers whose connection has none: one for all of them, or server name → `httpx.Auth`; None for
            none.

    Raises:
        ConfigError: A connection is invalid, the first of several; or `auth` names no server over HTTP.
    """
    if not isinstance(connections, Mapping):
        raise ConfigError(f"MCP connections must map server names to connections; got {type(connections).__name__}.")
    checked = [_check(name, connection) for name, connection in connections.items()]
    return _with_auth(checked, auth)


def _check(name: Any, connection: Any) -> ServerConfig:
    """Validate one connection, and return it; keys with an empty value (None) count as absent.

    Raises `ConfigError` with the name of the server if that is empty, a key is unknown, or a setting is missing or
    invalid.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"MCP server names must be non-empty text; got {name!r}.")
    if not isinstance(connection, Mapping):
        _refuse(name, f"a connection is a mapping such as {{'transport': 'stdio', …}}; got {connection!r}.")
    transport = _transport(name, connection)
    known = TRANSPORT_KEYS[transport] | COMMON_KEYS
    for key in connection:
        if key not in known:
            _refuse(name, f"unknown key {key!r} for transport {transport!r}; {did_you_mean(str(key), known)}")
    # An empty value in YAML counts as absent.
    options = {key: value for key, value in connection.items() if key not in COMMON_KEYS and value is not None}
    if transport == "stdio":
        _check_stdio(name, options)
    else:
        _check_http(name, transport, options)
    common = {key: connection[key] for key in COMMON_KEYS & connection.keys() if connection[key] is not None}
    if "roots" in common:
        common["roots"] = read_roots(name, common["roots"])
    try:
        return ServerConfig(**{**common, "name": name, "transport": transport, "options": options})
    except ValidationError as error:
        raise ConfigError(explain(error, f"MCP server {name!r}", ServerConfig)) from None


def _transport(name: str, connection: Mapping[str, Any]) -> Transport:
    """Return the transport of a connection in the form of `TRANSPORTS`; raise `ConfigError` if it is missing or
    unknown.
    """
    if "transport" not in connection:
        guess = "stdio" if "command" in connection else "streamable_http"
        _refuse(name, f"'transport' is missing; {did_you_mean(guess, TRANSPORTS)}")
    given = connection["transport"]
    if not isinstance(given, str) or given not in TRANSPORTS:
        _refuse(name, f"unknown transport {given!r}; {did_you_mean(str(given), TRANSPORTS)}")
    return TRANSPORTS[given]


def _check_stdio(name: str, options: dict[str, Any]) -> None:
    """Raise `ConfigError` if a setting of the transport `stdio` (`command`, `args`, `env`, `cwd`) is missing or
    invalid.
    """
    command = options.get("command")
    if not isinstance(command, str) or not command:
        _refuse(name, f"transport 'stdio' needs 'command', the program to start; got {command!r}.")
    args = options.get("args", [])
    if not isinstance(args, list | tuple):
        _refuse(name, f"'args' must be a list of texts, such as ['server.py']; got {args!r}.")
    for index, arg in enumerate(args):
        if not isinstance(arg, str):
            _refuse(name, f"args[{index}] must be text; got {arg!r}. In YAML, put it in quotes.")
    _check_texts(name, "env", options.get("env", {}))
    if not isinstance(options.get("cwd", ""), str | Path):
        _refuse(name, f"'cwd' must be a path; got {options['cwd']!r}.")


def _check_http(name: str, transport: str, options: dict[str, Any]) -> None:
    """Check the settings of a transport over HTTP; convert timeouts and `oauth` in place.

    Timeouts become seconds, and `oauth`, unless it is False, is replaced by `auth`. Raises `ConfigError` if a setting
    is missing or invalid.
    """
    url = options.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        _refuse(name, f"transport {transport!r} needs 'url', beginning with http:// or https://; got {url!r}.")
    _check_texts(name, "headers", options.get("headers", {}))
    if options.get("oauth") not in (None, False):
        _set_oauth(name, options)
    for key in ("timeout", "sse_read_timeout"):
        if key in options:
            options[key] = _seconds(name, key, options[key])
    if not isinstance(options.get("auth", httpx.Auth()), httpx.Auth):
        _refuse(name, f"'auth' must be an httpx.Auth; got {type(options['auth']).__name__}.")


def _set_oauth(name: str, options: dict[str, Any]) -> None:
    """Replace the key `oauth` of a connection, in place, by the `auth` that it describes.

    Raises `ConfigError` if its settings are invalid, or the connection has `auth`, too.
    """
    # Imported here: only servers with OAuth need it.
    from graph_agent.integrations.mcp.oauth import FileOAuth, read_oauth

    if "auth" in options:
        _refuse(name, "give one of 'auth' and 'oauth'.")
    try:
        settings = read_oauth(options.pop("oauth"))
    except ConfigError as error:
        _refuse(name, str(error))
    options["auth"] = FileOAuth(name, options["url"], settings)


def _check_texts(name: str, key: str, value: Any) -> None:
    """Raise `ConfigError` unless a setting maps texts to texts; the message has no value, which may be secret."""
    if not isinstance(value, Mapping):
        _refuse(name, f"{key!r} must map texts to texts; got {type(value).__name__}.")
    for entry, text in value.items():
        if not isinstance(entry, str) or not isinstance(text, str):
            # The value may be a secret, so the message contains only its type.
            _refuse(name, f"{key}[{entry!r}] must be text; got {type(text).__name__}. In YAML, put it in quotes.")


def _seconds(name: str, key: str, value: Any) -> float:
    """Return a duration as seconds above zero; raise `ConfigError` for anything else (forms: see `_as_seconds`)."""
    seconds = _as_seconds(value)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        _refuse(name, f"{key!r} must be seconds above zero; got {value!r}.")
    return float(seconds)


def read_roots(name: str, value: Any) -> tuple[types.Root, ...]:
    """Return folders in the form that MCP sends as roots; raise `ConfigError` if they are not a list of paths.

    A relative folder is relative to the current folder. `name` is the server's name, for the error.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(each, str | Path) for each in value):
        _refuse(name, f"'roots' must be a list of folders, such as ['docs']; got {value!r}.")
    folders = [Path(each).expanduser().resolve() for each in value]
    return tuple(types.Root(uri=FileUrl(folder.as_uri()), name=folder.name) for folder in folders)


def _with_auth(servers: list[ServerConfig], auth: httpx.Auth | Mapping[str, httpx.Auth] | None) -> list[ServerConfig]:
    """Return the connections with the given authentication, unless they have their own; None changes nothing.

    One `httpx.Auth` applies to all servers over HTTP; a mapping names the servers. Raises `ConfigError` for any other
    type, and for a name that is not a server over HTTP.
    """
    if auth is None:
        return servers
    http_servers = [server.name for server in servers if server.transport != "stdio"]
    if isinstance(auth, httpx.Auth):
        auth_by_name: Mapping[str, httpx.Auth] = dict.fromkeys(http_servers, auth)
    elif isinstance(auth, Mapping):
        auth_by_name = auth
    else:
        raise ConfigError(
            f"'auth' must be an httpx.Auth, or map server names to them; got {type(cast('object', auth)).__name__}."
        )
    for name, value in auth_by_name.items():
        if name not in http_servers:
            raise ConfigError(
                f"'auth' names {name!r}, which is not an MCP server over HTTP; {did_you_mean(name, http_servers)}"
            )
        if not isinstance(value, httpx.Auth):
            raise ConfigError(f"auth[{name!r}] must be an httpx.Auth; got {type(cast('object', value)).__name__}.")
    return [
        # The connection's own `auth` takes precedence.
        server.model_copy(update={"options": {"auth": auth_by_name[server.name], **server.options}})
        if server.name in auth_by_name
        else server
        for server in servers
    ]


def _refuse(name: str, problem: str) -> NoReturn:
    """Raise `ConfigError`: `MCP server <name>: <problem>`."""
    raise ConfigError(f"MCP server {name!r}: {problem}")
