"""Addresses of databases: what kind they are, and how they are shown to a person."""

from __future__ import annotations

import re

_POSTGRES = ("postgresql://", "postgres://")
_IN_AUTHORITY = re.compile(r"(?<=://)([^/@:?]*):[^?]*(?=@)")
_IN_QUERY = re.compile(r"(?<=[?&]password=)[^&]*")


def is_postgres(url: str) -> bool:
    """Whether an address is one of PostgreSQL, as libpq has them."""
    return url.startswith(_POSTGRES)


def without_password(url: str) -> str:
    """An address for messages and logs."""
    return _IN_QUERY.sub("…", _IN_AUTHORITY.sub(r"\1:…", url))
