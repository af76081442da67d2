"""Reads the keys of callers from a file and from the environment."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from graph_agent.base._internal.own_files import record_file
from graph_agent.base.errors import ConfigError
from graph_agent.interfaces.server.settings import KEYS_VARIABLE, ApiKey

_SHORTEST = 16
"""Minimum characters of a key."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Pattern of the names of keys."""


def read_keys(file: Path | None = None, environment: Mapping[str, str] = os.environ) -> tuple[ApiKey, ...]:
    """Read the API keys of the environment variable `GRAPH_AGENT_API_KEYS`, where commas or line feeds separate them,
    and of a file.

    A key is written as `key` or `name:key`. In both places white space around a key, empty entries, and entries that
    begin with `#` are ignored.

    Args:
        file: File in UTF-8 with one key per line. The agent's tools may not read this file from then on, even if it has
            an error. None for no file.
        environment: The environment variables.

    Returns:
        The keys, those of the variable first; empty without a file and without keys in the variable. A key without a
        name is named `key-` and 12 digits of its SHA-256.

    Raises:
        ConfigError: The file cannot be read; a file is given, and neither it nor the variable has a key; a key is
            shorter than 16 characters; a name is invalid; or two keys have the same name, or two names the same key. No
            message shows a key.
    """
    listed = environment.get(KEYS_VARIABLE, "").replace(",", "\n")
    entries = [(f"{KEYS_VARIABLE}, entry {i}", text) for i, text in _entries(listed)]
    if file is not None:
        record_file(file, "the file of this agent's API keys")
        try:
            entries += [(f"{file}, entry {i}", text) for i, text in _entries(file.read_text(encoding="utf-8-sig"))]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Keys file {file}: {error}.") from None
        if not entries:
            raise ConfigError(f"Keys file {file}: there is no key in it; write one a line, as 'name:key'.")
    keys = [_key(where, text) for where, text in entries]
    for where, name in ((entries[i][0], key.name) for i, key in enumerate(keys)):
        # Two owners of one name would share sessions.
        if sum(key.name == name for key in keys) > 1:
            raise ConfigError(f"{where}: another key is named {name!r} too; give each a name of its own.")
    if len({key.key.get_secret_value() for key in keys}) < len(keys):
        raise ConfigError(f"{KEYS_VARIABLE} and the keys file: two names have one key; give each a key of its own.")
    return tuple(keys)


def _entries(text: str) -> list[tuple[int, str]]:
    """Return the entries of a text with their numbers, counted from 1: its stripped lines, without blank ones and
    comments.
    """
    stripped = [line.strip() for line in text.split("\n")]
    return list(enumerate((entry for entry in stripped if entry and not entry.startswith("#")), 1))


def _key(where: str, text: str) -> ApiKey:
    """Parse one entry, `key` or `name:key`; a key without a name is named by its hash.

    Args:
        where: The beginning of an error: where the entry is.
        text: The entry.

    Raises:
        ConfigError: The name is not 1 to 64 letters, digits, `_` or `-`, or the key is shorter than 16 characters.
    """
    name, colon, key = text.partition(":")
    if not colon:
        name, key = "key-" + hashlib.sha256(text.encode()).hexdigest()[:12], text
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a key's name is 1 to 64 letters, digits, '_' or '-'.")
    if len(key) < _SHORTEST:
        raise ConfigError(f"{where}: a key has {_SHORTEST} characters or more; make one with 'openssl rand -hex 24'.")
    return ApiKey(name=name, key=SecretStr(key))
