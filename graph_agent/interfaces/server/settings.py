"""Reads the settings of a server: keys, limits and times."""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
)

from graph_agent.agent_file.credentials import KEY_VARIABLES, LOOP_PREFIX
from graph_agent.base._internal.validation_text import CheckedModel, describe_fields, field_docs
from graph_agent.base._internal.yaml_files import load_yaml
from graph_agent.base.errors import ConfigError
from graph_agent.base.settings.config import Texts

KEYS_VARIABLE = "GRAPH_AGENT_API_KEYS"
"""Environment variable with the keys, separated by commas or newlines, each `key` or `name:key`."""

CARD_PATH = "/.well-known/agent-card.json"
"""Path of the agent card."""
RPC_PATH = "/a2a"
"""Path of A2A over JSON-RPC."""
REST_PATH = "/a2a/rest"
"""Path below which A2A over HTTP+JSON is served."""
MCP_PATH = "/mcp"
"""Path of MCP."""

A2A_DEFAULTS: Mapping[str, Any] = {"max_steps": 10}
"""Settings of A2A runs, unless the agent's configuration or its context class sets them."""
_PREFIX = "GRAPH_AGENT_"
_OPTIONS = ("CONFIG", "CREDENTIALS", "DB", "HOST", "KEYS_FILE", "LOG_LEVEL", "PORT", "SHOW_OUTPUTS", "WORKERS")
"""Suffixes of the environment variables that set options of commands."""
_OTHERS = ("HISTORY", "LOG_FORMAT", "OTEL", "TODAY")
"""Suffixes of the environment variables that other parts of the package read."""


class ApiKey(BaseModel):
    """One key, and the name that owns its sessions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    key: SecretStr


class ServerSettings(CheckedModel):
    """Keys, limits and times of a server. Frozen, and validated once at construction.

    Raises:
        ConfigError: If a field is unknown or a value is out of range.
    """

    model_config = ConfigDict(json_schema_extra=describe_fields)
    removed_fields: ClassVar[Mapping[str, str]] = {
        "park_s": "its name is 'pending_ttl_s'.",
        "parked_requests": "its name is 'pending_requests'.",
    }

    keys: tuple[ApiKey, ...] = ()
    """Keys that are accepted; empty to admit every client that reaches the address."""
    requests_per_minute: PositiveInt | None = None
    """Model requests per key in any 60 seconds; None for no limit. Requests that read or stop runs do not count."""
    concurrent_requests: PositiveInt = 512
    """Concurrent model requests per key; also the limit of active A2A tasks, which may outlast their requests, and of
    request bodies being received."""
    event_streams: PositiveInt = 64
    """Concurrent streams of session events (`?follow=true`) per key."""
    max_body_bytes: PositiveInt = 10_000_000
    """Bytes of one request's body."""
    max_header_bytes: PositiveInt = 65_536
    """Bytes of one request's line, headers and trailers; each header counts 32 bytes extra, as in HTTP/2."""
    max_body_values: PositiveInt = 60_000
    """JSON values (objects, arrays, strings, numbers, true, false, null) in one request's body; keys do not count. A
    tool with ten described fields has about 80 values, a message about 4."""
    max_body_depth: PositiveInt = 100
    """Nesting depth of objects and arrays in one request's body."""
    max_messages: PositiveInt = 2_000
    """Messages in one chat request; calls and content parts count too."""
    max_tools: PositiveInt = 1_000
    """Caller's tools in one chat request."""
    max_a2a_values: PositiveInt = 5_000
    """JSON values in one A2A request, whose data and metadata cost about 100 times as much to parse."""
    max_a2a_parts: PositiveInt = 200
    """Parts in one A2A message."""
    max_a2a_characters: PositiveInt = 1_000_000
    """Characters of all text in one A2A request, file contents excluded."""
    body_timeout_s: PositiveFloat = 30
    """Seconds a client may take to send a request's headers, and again for its body."""
    send_timeout_s: PositiveFloat = 30
    """Seconds a client may leave streamed data unread."""
    keepalive_s: PositiveFloat = 15
    """Seconds of silence in a stream after which a comment is sent, so that proxies keep the connection open."""
    pending_ttl_s: PositiveFloat = 3600
    """Seconds to keep a request without a session that waits for results of its caller's own tools."""
    pending_requests: PositiveInt = 10_000
    """Maximum number of such requests per key; the oldest are deleted first."""
    retry_ttl_s: PositiveFloat = 300
    """Seconds to keep a request without a session and without an `Idempotency-Key` that has failed or was cut off, if
    the agent has a tool that may write: an equal request of the same caller continues it, and repeats no write."""
    response_s: PositiveFloat = 2_592_000
    """Seconds to keep stored responses of the Responses API, at least; their sessions remain."""
    session_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]*$")] = "X-Session-Id"
    """Header that names the session to continue or create, in requests and answers; an empty text switches it off."""
    unsupported_tools: Literal["ignore", "refuse"] = "ignore"
    """What to do with tools of a request that are no functions, such as a provider's web search: `ignore` leaves them
    out with a `warning` event, `refuse` answers with an error."""
    show_calls: bool = False
    """Whether the Responses API shows the agent's own calls, as `mcp_call` items; requests may set `show_calls`."""
    mcp_text_approvals: bool = False
    """Whether the text of an MCP client's next call decides about waiting calls. The client's model may write that
    text, and so approve calls that it has caused."""
    drain_s: NonNegativeInt = 30
    """Seconds that runs get to reach a superstep boundary when the server stops."""
    worker_timeout_s: PositiveFloat = 60
    """Seconds without progress after which a process of `--workers` is ended and replaced: it answers no health check
    and, until it has started, uses no CPU time."""
    public_url: Annotated[str, Field(pattern=r"^(https?://[^\s/].*)?$")] = ""
    """URL of this server for clients, in the agent card; empty for the address of the card's request. Without keys, its
    host name is the only one with a dot that requests may name."""
    cors_origins: Texts = ()
    """Origins of other servers whose pages may call this one, e.g. `http://localhost:3000`. Another port is another
    origin. An empty list allows none."""
    credential_headers: dict[str, str] = Field(default={})
    """Credential name → the request header that may carry it, in addition to those of the agent file, e.g.
    {token: X-User-Token}."""

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Return the origins unchanged; raise `ValueError` if one is not an origin, such as a URL with a path.

        `*`, `null` and `file://` are permitted, too.
        """
        for each in origins:
            if not re.fullmatch(r"\*|null|file://|[a-z][a-z0-9+.-]*://[^/\s]+", each):
                raise ValueError(f"{each!r} is no origin, which has no path; write e.g. 'https://my.page'")
        return origins

    def checked_for(self, host: str) -> Self:
        """Return these settings unchanged, after checking that they are safe for a server that is bound to `host`.

        Raises:
            ConfigError: Other machines can reach the address, and there are no keys.
        """
        # Any client that reaches the port could run the agent's tools.
        if not self.keys and not is_loopback(host):
            raise ConfigError(
                f"host={host!r} can be reached from other machines, and no API keys are set. Set {KEYS_VARIABLE} "
                "or --keys-file, or bind to 127.0.0.1."
            )
        return self


def variable_of(field: str) -> str:
    """Return the name of the environment variable that sets a field of `ServerSettings`, e.g. `GRAPH_AGENT_DRAIN_S` for
    `drain_s`.

    The variable of `keys` is `GRAPH_AGENT_API_KEYS`.
    """
    return KEYS_VARIABLE if field == "keys" else f"GRAPH_AGENT_{field.upper()}"


def settings_from(entries: Sequence[str], environment: Mapping[str, str] = os.environ) -> ServerSettings:
    """Return the settings of environment variables and of entries written as `field=value`, which precede the
    variables.

    Values are YAML, e.g. `cors_origins=["https://my.page"]`. The variable of a field is that of `variable_of`; a blank
    variable counts as unset. Of several entries for one field, the last is used.

    Args:
        entries: Entries of the command line, each `field=value`.
        environment: The environment variables.

    Raises:
        ConfigError: A value cannot be parsed or is invalid, or an entry has no `=`, or sets `keys` or an unknown field.
    """
    values = _from_environment(environment)
    for entry in entries:
        name, equals, text = entry.partition("=")
        if name == "keys":
            raise ConfigError(f"--set keys: keys are given in {KEYS_VARIABLE} or with --keys-file.")
        if not equals:
            raise ConfigError(f"--set {name}: write a setting as 'field=value', e.g. 'max_body_bytes=1000000'.")
        values[name] = _parse(text, f"--set {entry}", 'cors_origins=["https://my.page"]')
    return ServerSettings(**values)


def unknown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables with this package's prefix that nothing reads, name → text of a warning, which
    suggests a similar name if there is one.

    They are not errors, because an agent file may name such a variable, and Kubernetes sets some. Variables with
    `LOOP_PREFIX` are left out, because `loop_fields_from` refuses unknown ones.
    """
    fields = ServerSettings.model_fields.keys() | ServerSettings.removed_fields.keys()
    known = {*map(variable_of, fields), *KEY_VARIABLES, *(_PREFIX + name for name in (*_OPTIONS, *_OTHERS))}
    found = {}
    for name in sorted(environment.keys() - known):
        if name.startswith(_PREFIX) and not name.startswith(LOOP_PREFIX):  # `loop_fields_from` refuses these
            # A typing error would silently leave the default.
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
            hint = f" Did you mean {near[0]}?" if near else ""
            found[name] = f"The environment variable {name} is no setting of graph-agent.{hint}"
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that environment variables set, field → value; a blank variable counts as not set.

    API keys are not among them. Raises `ConfigError` with the variable's name if a value is invalid.
    """
    values: dict[str, Any] = {}
    for name in (ServerSettings.model_fields.keys() | ServerSettings.removed_fields.keys()) - {"keys"}:
        variable = variable_of(name)
        if text := environment.get(variable, "").strip():
            values[name] = _parse(text, f"{variable}={text}", f'{variable_of("cors_origins")}=["https://my.page"]')
            try:
                # One field at a time, so that the error names its variable.
                ServerSettings(**{name: values[name]})
            except ConfigError as error:
                raise ConfigError(f"{variable}={text}: {error}") from None
    return values


def _parse(text: str, where: str, example: str) -> Any:
    """Parse a value as YAML; raise `ConfigError` if it is not YAML.

    Args:
        text: The value.
        where: The beginning of the error: what sets the value.
        example: A valid setting, for the error.
    """
    try:
        return load_yaml(text)
    except yaml.YAMLError:
        raise ConfigError(f"{where}: the value is no YAML; write e.g. '{example}'.") from None


def describe_settings() -> str:
    """Return a text with the fields that `--set` accepts, each with its default, its description and its environment
    variable.
    """
    docs = field_docs(ServerSettings)
    fields = {name: field for name, field in ServerSettings.model_fields.items() if name != "keys"}
    return "\n".join(
        f"{name}={json.dumps(field.default)}\n    {' '.join(docs[name].split())} [{variable_of(name)}]"
        for name, field in fields.items()
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address. Of names, only `localhost` counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
