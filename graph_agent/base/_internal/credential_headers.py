"""Reads credentials from request headers; they are used by the run of that request only, and never stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import SecretStr

from graph_agent.base.errors import ConfigError, InputError

if TYPE_CHECKING:
    from starlette.datastructures import Headers

KEY_HEADERS = frozenset({"authorization", "x-api-key"})
"""Headers that hold the client's key on a server with API keys, in lower case."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RESERVED = frozenset(
    {
        *("host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "origin"),
        *("x-session-id", "x-progress", "x-request-id", "a2a-version", "a2a-extensions"),
    }
)
"""Headers with a fixed meaning, in lower case, which cannot hold credentials; some of them are stored or returned."""


def check_headers(headers: Mapping[str, str], *, has_keys: bool = False, session_header: str = "") -> None:
    """Check the request headers that are configured to hold credentials for tools, and the header of the session's id.

    Args:
        headers: Name of the credential → name of the header.
        has_keys: Whether the server has API keys, whose headers tools must not receive.
        session_header: The configured name of the header with the session's id; empty for the default.

    Raises:
        ConfigError: A credential's header is not a valid name, has a fixed meaning such as `content-type` or
            `x-session-id`, is `session_header`, or, with `has_keys`, holds API keys. Or `session_header` has another
            fixed meaning than `x-session-id`, or is a header of API keys, also without `has_keys`.
    """
    if session_header.lower() in (_RESERVED | KEY_HEADERS) - {"x-session-id"}:
        raise ConfigError(f"session_header: the header {session_header!r} means something else; write e.g. X-Chat-Id.")
    for name, header in headers.items():
        if not _TOKEN.fullmatch(header):
            raise ConfigError(
                f"credential_headers.{name}: {header!r} is not a valid header name; write e.g. X-User-Token."
            )
        if header.lower() in (*_RESERVED, session_header.lower()):
            raise ConfigError(
                f"credential_headers.{name}: the header {header!r} means something else; write e.g. X-User-Token."
            )
        if has_keys and header.lower() in KEY_HEADERS:
            raise ConfigError(
                f"credential_headers.{name}: {header!r} holds the API key of this server, which tools must not get; "
                "write e.g. X-User-Token."
            )


def credentials_of(headers: Headers, names: Mapping[str, str]) -> dict[str, SecretStr]:
    """Return the credentials in one request's headers: name → value; those whose header is absent or empty are omitted.

    Args:
        headers: The request's headers.
        names: Name of the credential → name of the header.

    Raises:
        InputError: A header occurs more than once, so that its value is ambiguous.
    """
    found: dict[str, SecretStr] = {}
    for name, header in names.items():
        values = headers.getlist(header)
        if len(values) > 1:
            raise InputError(f"The header {header} was sent {len(values)} times; send it once.")
        if values and values[0]:
            found[name] = SecretStr(values[0])
    return found
