"""Addresses of databases: what kind they are, and how they are shown to a person."""

from __future__ import annotations

import re
from urllib.parse import unquote

_POSTGRES = ("postgresql://", "postgres://")
_IN_AUTHORITY = re.compile(r"(?<=://)([^/@:?]*):(.+)(?=@)")
_IN_QUERY = re.compile(r"(?<=[?&])([^=&]+)=([^&]*)")
_KEY_AND_VALUE = re.compile(r"(\b\w*password\s*=\s*)('(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)+)", re.IGNORECASE)
"""As libpq has them: `host=… password='…'`."""


def is_postgres(url: str) -> bool:
    """Whether an address is one of PostgreSQL, as libpq has them."""
    return url.startswith(_POSTGRES)


def without_password(url: str) -> str:
    """An address for messages and logs: each password in it, also one of the form `password=…`, is `…`."""
    if "://" not in url:
        return _KEY_AND_VALUE.sub(r"\1…", url)
    return _IN_QUERY.sub(_shown, _IN_AUTHORITY.sub(r"\1:…", url))


def without_passwords_of(url: str, text: str) -> str:
    """A text about an address, e.g. a driver's error, without the passwords of the address.

    Args:
        url: The address.
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


def _shown(found: re.Match[str]) -> str:
    return f"{found[1]}=…" if _is_password(found[1]) else found[0]


def _is_password(name: str) -> bool:
    return unquote(name).lower().endswith("password")
