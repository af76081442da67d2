"""The rows of the matrix."""

from __future__ import annotations

from tests.providers.row import Row
from tests.providers.rows import openai_chat

ROWS: tuple[Row, ...] = openai_chat.ROWS
