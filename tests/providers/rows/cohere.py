"""Cohere's own API."""

from __future__ import annotations

from typing import Any

from tests.providers.protocols.cohere import Cohere
from tests.providers.row import Row
from tests.providers.rows.building import KEY, from_class
from tests.providers.rules import cohere

CHAT = Cohere()
_NO_DOCUMENTS = "The client sends no documents: one is replaced by a text that names it."


def _row(name: str, model: str, limits: dict[Any, str] | None = None) -> Row:
    return Row(
        name=name,
        protocol=CHAT,
        build=from_class("langchain_cohere:ChatCohere", model=model, cohere_api_key=KEY),
        package="langchain-cohere",
        model=model,
        rules=cohere.RULES,
        faults=cohere.FAULTS,
        answers=("cohere-05", "cohere-06", "cohere-07"),
        limits={
            "documents": _NO_DOCUMENTS,
            "stream_usage": "A streamed reply reports the tokens that are billed, not those that the model read.",
            **(limits or {}),
        },
        host="api.cohere.com",
    )


ROWS = (
    _row("cohere", "command-a-03-2025", {"reasoning": "The model does not reason."}),
    _row("cohere-reasoning", "command-a-reasoning-08-2025"),
)
