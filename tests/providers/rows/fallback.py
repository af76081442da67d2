"""The row that a situation falls back to."""

from __future__ import annotations

from tests.providers.row import Row
from tests.providers.rows import openai_chat


def fallback_row(row: Row) -> Row:
    """Return the row of another provider."""
    return openai_chat.OPENAI
