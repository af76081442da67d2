"""Database URLs: their kind, and redaction of their passwords."""

from __future__ import annotations

import re
from urllib.parse import unquote

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
