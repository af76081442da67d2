"""What a server is started with."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from graph_agent.errors import ConfigError
from graph_agent.server.keys import ApiKey
from graph_agent.validation_text import explain


class ServerSettings(BaseModel):
    """Who may come in, and how much of everything one may take. Frozen, and checked once.

    Raises:
        ConfigError: On an unknown field or a value out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    keys: tuple[ApiKey, ...] = ()
    """Who may come in; empty for everybody who reaches the address."""
    requests_per_minute: PositiveInt | None = None
    """Model requests of one key in any minute; None for no limit."""
    concurrent_requests: PositiveInt = 512
    """Model requests of one key at the same time, and as many A2A tasks, which may outlast their requests,
    and bodies that are still coming."""
    event_streams: PositiveInt = 64
    """Streams of sessions' events (`?follow=true`) of one key at the same time."""
    max_body_bytes: PositiveInt = 10_000_000
    """Size of one request's body."""
    max_header_bytes: PositiveInt = 65_536
    """Size of one request's line, headers and trailers; each header counts 32 bytes more than it has, as in HTTP/2."""
    max_body_values: PositiveInt = 60_000
    """JSON values (objects, arrays, strings, numbers, true, false, null) in one request's body; keys do not count. A
    tool with ten described fields is about 80, a message about 4."""
    max_body_depth: PositiveInt = 100
    """Levels of objects and arrays inside one another in one request's body."""
    max_messages: PositiveInt = 2_000
    """Messages in one chat request, and calls, and content parts."""
    max_tools: PositiveInt = 1_000
    """Tools of the caller's in one chat request."""
    max_a2a_values: PositiveInt = 5_000
    """JSON values in one A2A request, whose data and metadata cost a hundred times as much to read."""
    max_a2a_parts: PositiveInt = 200
    """Parts in one A2A message."""
    max_a2a_characters: PositiveInt = 1_000_000
    """Characters of all text in one A2A request, the bytes of files aside."""
    body_timeout_s: PositiveFloat = 30
    """Seconds a client may take to send its request's headers, and again its body."""
    send_timeout_s: PositiveFloat = 30
    """Seconds a client may leave what is streamed to it unread."""
    keepalive_s: PositiveFloat = 15
    """Seconds of silence in a stream after which a comment is sent, so that no proxy takes it for dead."""
    park_s: PositiveFloat = 3600
    """Seconds that a request which waits for its caller's own tools is kept, where the caller keeps no session."""
    parked_requests: PositiveInt = 10_000
    """Such requests of one key kept at most; the oldest goes first."""
    drain_s: NonNegativeInt = 30
    """Seconds that runs are given to come to a boundary when the server is asked to stop."""
    public_url: str = ""
    """Where clients reach this server, for the agent card; empty for the address that the card was asked at. Without
    keys, its host name is the only one with a dot that requests may be sent to."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call this server; empty for none."""
    credential_headers: dict[str, str] = {}
    """Credential name → the header in which a request may bring it, beside those of the agent file, e.g.
    {token: X-User-Token}."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, type(self).__name__, type(self))) from None

    def checked_for(self, host: str) -> Self:
        """These settings, when they may be used on an address.

        Args:
            host: The address to bind to.

        Raises:
            ConfigError: When it can be reached from elsewhere and there are no keys.
        """
        if not self.keys and not is_loopback(host):
            raise ConfigError(
                f"host={host!r} can be reached from other machines, and no API keys are set. Set GRAPH_AGENT_API_KEYS "
                "or --keys-file, or bind to 127.0.0.1."
            )
        return self


def settings_from(entries: Sequence[str]) -> ServerSettings:
    """Read settings written as `field=value`; a value is YAML, e.g. `cors_origins=["https://my.page"]`.

    Raises:
        ConfigError: When one cannot be read or used; keys cannot be given in this way.
    """
    values: dict[str, Any] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        if name == "keys":
            raise ConfigError("--set keys: keys are given in GRAPH_AGENT_API_KEYS or with --keys-file.")
        if not equals:
            raise ConfigError(f"--set {name}: write a setting as 'field=value', e.g. 'max_body_bytes=1000000'.")
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(
                f"--set {entry}: the value is no YAML; write e.g. 'cors_origins=[\"https://my.page\"]'."
            ) from None
    return ServerSettings(**values)


def told_settings() -> str:
    """What `--set` takes, one a line: the field, its default, what it means."""
    fields = {name: field for name, field in ServerSettings.model_fields.items() if name != "keys"}
    return "\n".join(
        f"{name}={_as_given(field.default)}\n    {' '.join((field.description or '').split())}"
        for name, field in fields.items()
    )


def _as_given(value: Any) -> str:
    """A value as `--set` takes it."""
    return json.dumps(value)


def is_loopback(host: str) -> bool:
    """Whether an address to bind to is this machine's own; a name other than `localhost` is taken not to be."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
