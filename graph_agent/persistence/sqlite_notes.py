"""Writes one item to LangGraph's Store in an SQLite file without importing LangGraph, for commands that start fast."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

_WAIT_S = 30.0
"""Seconds to wait for another process that writes."""
_PUT = "INSERT OR REPLACE INTO store (prefix, key, value) VALUES (?, ?, ?)"


def put_item(file: Path, namespace: tuple[str, ...], key: str, value: Mapping[str, Any]) -> bool:
    """Store an item; return False if the file has no Store yet.

    Args:
        file: The SQLite file, which exists.
        namespace: The complete namespace.
        key: The item's key.
        value: The item, plain JSON.

    Raises:
        sqlite3.Error: If the file cannot be written.
    """
    with closing(sqlite3.connect(file, timeout=_WAIT_S, isolation_level=None)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'store'").fetchone():
            return False
        connection.execute(_PUT, (".".join(namespace), key, json.dumps(value)))
    return True
