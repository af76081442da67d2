"""Parses URLs of databases and caches, finds the file of an SQLite database, and redacts passwords."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

from graph_agent.base.errors import ConfigError

MEMORY = "memory:"
"""URL of a database in memory, which ends with the process."""
_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
_IN_AUTHORITY = re.compile(r"(?<=://)([^/@:?]*+):(.+)", re.DOTALL)
"""Matches name and password in the part of a URL before its last `@`."""
_IN_QUERY = re.compile(r"(?<=[?&])([^=&?]++)=([^&]*+)")
_KEY_AND_VALUE = re.compile(r"(\b\w*password\s*=\s*)('(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)+)", re.IGNORECASE)
"""Matches passwords in libpq's key-value syntax: `host=… password='…'`."""


def is_postgres(url: str) -> bool:
    """Whether a URL begins with `postgresql://` or `postgres://`."""
    return url.startswith(_POSTGRES)


def without_password(url: str) -> str:
    """Return a URL for messages and logs, in which each password is replaced by `…`.

    Covers the password before the host, in a query, and in libpq's key-value syntax (`host=… password=…`).
    """
    if "://" not in url:
        return _KEY_AND_VALUE.sub(r"\1…", url)
    # The last one, because a password may hold an @ that is not escaped.
    user, at, rest = url.rpartition("@")
    return _IN_QUERY.sub(_redact_match, _IN_AUTHORITY.sub(r"\1:…", user) + at + rest)


def redact_passwords(url: str, text: str) -> str:
    """Return a text, e.g. a driver's error, in which each password that occurs in a URL is replaced by `…`."""
    # The longest first, because one password may be a part of another.
    for password in sorted(_passwords(url), key=len, reverse=True):
        text = text.replace(password, "…")
    return text


def _passwords(url: str) -> set[str]:
    """Return the passwords in a URL or in libpq's key-value syntax, each also with percent escapes decoded."""
    if "://" not in url:
        found = {value.strip("'") for _, value in _KEY_AND_VALUE.findall(url)}
    else:
        found = {value for _, value in _IN_AUTHORITY.findall(url.rpartition("@")[0])}
        found |= {value for name, value in _IN_QUERY.findall(url) if _is_password(name)}
    # An error of a driver has the password as it stands in the URL, or decoded.
    return {form for value in found for form in (value, unquote(value)) if form}


def _redact_match(found: re.Match[str]) -> str:
    """Return a parameter of a query with its value replaced by `…` if it is a password; else unchanged."""
    return f"{found[1]}=…" if _is_password(found[1]) else found[0]


def _is_password(name: str) -> bool:
    return unquote(name).lower().endswith("password")


def check_database_exists(url: str, folder: Path | None = None) -> None:
    """Raise `ConfigError` if the file of an SQLite URL does not exist, or if `file_of` refuses the URL.

    Nothing is created. A URL of PostgreSQL or of a database in memory passes without a check.

    Args:
        url: The database's URL.
        folder: Base of a relative path; None for the current folder.
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
    """Return the URL of a cache unchanged: `memory`, or `sqlite:///FILE`.

    Raises:
        ValueError: The URL is of another kind; the message names the known ones.
    """
    if url == "memory" or (url.startswith(_SQLITE) and url != _SQLITE):
        return url
    raise ValueError("no such kind of cache; use 'memory' or 'sqlite:///FILE'")


def file_of(url: str, folder: Path | None = None, field: str = "db") -> Path:
    """Return the path of the file of an SQLite URL, with percent escapes in its name decoded. Nothing is created.

    Args:
        url: `sqlite:///FILE`. With `?mode=rw`, the file must exist.
        folder: Base of a relative path; None for the current folder.
        field: Name of the setting, for error messages.

    Raises:
        ConfigError: The URL is of another kind, names `:memory:` or no file, or has an unknown parameter, a fragment,
            or escapes that are no UTF-8; the file's folder does not exist, or, with `?mode=rw`, the file.
    """
    if not url.startswith(_SQLITE) or url == _SQLITE:
        shown = without_password(url)
        raise ConfigError(
            f"{field}={shown!r}: no such kind of database; use 'sqlite:///FILE', 'postgresql://…' or 'memory:'."
        )
    address, hash_, fragment = url.removeprefix(_SQLITE).partition("#")
    if hash_:
        raise ConfigError(
            f"{field}={url!r}: the address of a file has no fragment '#{fragment}'; write %23 for a '#' in its name."
        )
    escaped, _, query = address.partition("?")
    try:
        name = unquote_to_bytes(escaped).decode()
    except UnicodeDecodeError:
        # Refused below like a NUL, because neither can be the name of a file.
        name = "\0"
    if "\0" in name:
        raise ConfigError(f"{field}={url!r}: the escapes of the file's name are no UTF-8 text; correct them.")
    if name == ":memory:":
        raise ConfigError(f"{field}={url!r}: each connection would have a database of its own; use 'memory:'.")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    if "?" in url and (parameters.keys() != {"mode"} or parameters["mode"] not in ("rw", "rwc")):
        raise ConfigError(
            f"{field}={url!r}: unknown parameters {query!r}; the only one is mode=rw, with which the file must exist "
            "(default: mode=rwc). Write %3F for a '?' in the name of a file."
        )
    path = (folder or Path()) / name
    if parameters.get("mode") == "rw" and not path.is_file():
        raise ConfigError(f"{field}={url!r}: there is no database {path}, and mode=rw creates none.")
    if not path.parent.is_dir():
        raise ConfigError(f"{field}={url!r}: the folder {path.parent} does not exist; create it first.")
    return path


def check_names(database: Path) -> None:
    """Raise `ConfigError` if a database file has several names (hard links); a file that cannot be inspected passes,
    such as a missing one."""
    # SQLite and this package would lock each name apart.
    with suppress(OSError):
        found = os.stat(database)
        if (names := found.st_nlink) > 1 and stat.S_ISREG(found.st_mode):
            raise ConfigError(
                f"db='sqlite:///{database}': the file has {names} names (hard links), and what is written through one "
                f"is lost for the others. Keep one of them; `find . -samefile {database.name}` lists them."
            )
