"""URLs of databases and caches: their kind, their file, and redaction of their passwords."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from graph_agent.errors import ConfigError

MEMORY = "memory:"
"""URL of a database that ends with the process."""
_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
_IN_AUTHORITY = re.compile(r"(?<=://)([^/@:?]*):(.+)(?=@)")
_IN_QUERY = re.compile(r"(?<=[?&])([^=&]+)=([^&]*)")
_KEY_AND_VALUE = re.compile(r"(\b\w*password\s*=\s*)('(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)+)", re.IGNORECASE)
"""Passwords in libpq's key-value syntax: `host=… password='…'`."""


def is_postgres(url: str) -> bool:
    """Whether a URL is a PostgreSQL URL in libpq's syntax."""
    return url.startswith(_POSTGRES)


def without_password(url: str) -> str:
    """Return a URL for messages and logs, with each password, also in the form `password=…`, replaced by `…`."""
    if "://" not in url:
        return _KEY_AND_VALUE.sub(r"\1…", url)
    return _IN_QUERY.sub(_redact_match, _IN_AUTHORITY.sub(r"\1:…", url))


def redact_passwords(url: str, text: str) -> str:
    """Replace the passwords of a URL in a text about it, e.g. a driver's error.

    Args:
        url: The URL.
        text: The text.
    """
    for password in sorted(_passwords(url), key=len, reverse=True):
        text = text.replace(password, "…")
    return text


def _passwords(url: str) -> set[str]:
    if "://" not in url:
        found = {value.strip("'") for _, value in _KEY_AND_VALUE.findall(url)}
    else:
        found = {value for _, value in _IN_AUTHORITY.findall(url)}
        found |= {value for name, value in _IN_QUERY.findall(url) if _is_password(name)}
    return {form for value in found for form in (value, unquote(value)) if form}


def _redact_match(found: re.Match[str]) -> str:
    return f"{found[1]}=…" if _is_password(found[1]) else found[0]


def _is_password(name: str) -> bool:
    return unquote(name).lower().endswith("password")


def check_database_exists(url: str, folder: Path | None = None) -> None:
    """Raise if the URL is that of an SQLite file that does not exist; the file is not created.

    Args:
        url: As for `open_saver`.
        folder: As for `open_saver`.

    Raises:
        ConfigError: If there is no such file, or the URL is of another kind than those of `open_saver`.
    """
    if url == MEMORY or is_postgres(url):
        return
    path = file_of(url, folder)
    if not path.is_file():
        raise ConfigError(
            f"db={url!r}: there is no database {path}; check the path and the current folder. "
            "The first run of an agent creates its database."
        )


def check_cache(url: str) -> str:
    """Return the URL of a cache if it is valid.

    Raises:
        ValueError: If the kind of cache is unknown; the message names the known kinds.
    """
    if url == "memory" or (url.startswith(_SQLITE) and url != _SQLITE):
        return url
    raise ValueError("no such kind of cache; use 'memory' or 'sqlite:///FILE'")


def file_of(url: str, folder: Path | None = None, field: str = "db") -> Path:
    """Return the file of an SQLite URL.

    Args:
        url: `sqlite:///FILE`.
        folder: Base of a relative path; None for the current folder.
        field: Name of the setting, for the message.

    Raises:
        ConfigError: If the URL is of another kind, or the file's folder does not exist.
    """
    if not url.startswith(_SQLITE) or url == _SQLITE:
        shown = without_password(url)
        raise ConfigError(
            f"db={shown!r}: no such kind of database; use 'sqlite:///FILE', 'postgresql://…' or 'memory:'."
        )
    path = (folder or Path()) / url.removeprefix(_SQLITE)
    if not path.parent.is_dir():
        raise ConfigError(f"{field}={url!r}: the folder {path.parent} does not exist; create it first.")
    return path
