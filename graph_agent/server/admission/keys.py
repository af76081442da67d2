"""Reads API keys from their sources, and identifies the caller of a request by its key."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr
from starlette.requests import HTTPConnection

from graph_agent.approvals.decisions import DEFAULT_DECIDER
from graph_agent.errors import ConfigError
from graph_agent.server.settings import KEYS_VARIABLE, ApiKey

_SHORTEST = 16
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    name: str
    """The key's name; empty on a server without keys."""

    @property
    def person(self) -> str:
        """Name under which the history records the caller's decisions."""
        return self.name or DEFAULT_DECIDER

    def thread(self, session_id: str) -> str:
        """Return the LangGraph thread of one of this caller's sessions; unique across callers."""
        return f"{self.name}/{session_id}" if self.name else session_id

    def session(self, thread_id: str) -> str | None:
        """Return the session of a thread; None if the thread is another caller's, or not a session."""
        session_id = thread_id.removeprefix(f"{self.name}/") if self.name else thread_id
        return None if "/" in session_id or self.thread(session_id) != thread_id else session_id

    def pending_thread(self, token: str) -> str:
        """Return the thread of a request without a session that waits for this caller's own tools."""
        return f"{self.name}/parked/{token}"


def read_keys(file: Path | None = None, environment: Mapping[str, str] = os.environ) -> tuple[ApiKey, ...]:
    """Read the keys of a file and of `GRAPH_AGENT_API_KEYS`.

    Args:
        file: One key per line, `key` or `name:key`; lines that start with `#` are skipped. None for no file.

    Returns:
        The keys; a key without a name is named by a hash of it.

    Raises:
        ConfigError: If the file cannot be read, a key is too short, two keys have the same name, or two names have
            the same key. No message shows a key.
    """
    listed = environment.get(KEYS_VARIABLE, "").replace(",", "\n")
    entries = [(f"{KEYS_VARIABLE}, entry {i}", text) for i, text in _entries(listed)]
    if file is not None:
        try:
            entries += [(f"{file}, entry {i}", text) for i, text in _entries(file.read_text(encoding="utf-8-sig"))]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Keys file {file}: {error}.") from None
        if not entries:
            raise ConfigError(f"Keys file {file}: there is no key in it; write one a line, as 'name:key'.")
    keys = [_key(where, text) for where, text in entries]
    for where, name in ((entries[i][0], key.name) for i, key in enumerate(keys)):
        if sum(key.name == name for key in keys) > 1:
            raise ConfigError(f"{where}: another key is named {name!r} too; give each a name of its own.")
    if len({key.key.get_secret_value() for key in keys}) < len(keys):
        raise ConfigError(f"{KEYS_VARIABLE} and the keys file: two names have one key; give each a key of its own.")
    return tuple(keys)


def caller_of(request: HTTPConnection, keys: Sequence[ApiKey]) -> Caller | None:
    """Return the caller of a request by `Authorization: Bearer` or `x-api-key`; None if the key is missing or unknown.

    Every key is compared, each in constant time, so that the duration reveals nothing about the keys.
    """
    if not keys:
        return Caller("")
    given = key_in(request)
    found: Caller | None = None
    for key in keys:
        if hmac.compare_digest(key.key.get_secret_value().encode(), given.encode("utf-8", "surrogatepass")):
            found = Caller(key.name)
    return found


def key_in(request: HTTPConnection) -> str:
    """Return the key of a request; empty without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else request.headers.get("x-api-key", "")


def _entries(text: str) -> list[tuple[int, str]]:
    stripped = [line.strip() for line in text.split("\n")]
    return list(enumerate((entry for entry in stripped if entry and not entry.startswith("#")), 1))


def _key(where: str, text: str) -> ApiKey:
    name, colon, key = text.partition(":")
    if not colon:
        name, key = "key-" + hashlib.sha256(text.encode()).hexdigest()[:12], text
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a key's name is 1 to 64 letters, digits, '_' or '-'.")
    if len(key) < _SHORTEST:
        raise ConfigError(f"{where}: a key has {_SHORTEST} characters or more; make one with 'openssl rand -hex 24'.")
    return ApiKey(name=name, key=SecretStr(key))
