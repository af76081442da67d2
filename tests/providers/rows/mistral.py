"""Mistral's own API."""

from __future__ import annotations

from typing import Any

from tests.providers.protocols.openai_chat import ChatShape, OpenAIChat
from tests.providers.row import Row
from tests.providers.rows.building import KEY, from_class
from tests.providers.rules import mistral

CHAT = OpenAIChat()


def _nine(name: str, number: int) -> str:
    """Return an id of nine letters and digits."""
    return f"gSIMJ{number:04d}"


def _row(name: str, model: str, shape: ChatShape, *, limits: dict[Any, str] | None = None) -> Row:
    return Row(
        name=name,
        protocol=CHAT,
        build=from_class("langchain_mistralai:ChatMistralAI", suffix="/v1", model=model, api_key=KEY),
        package="langchain-mistralai",
        model=model,
        rules=mistral.RULES,
        faults=mistral.FAULTS,
        shape=shape,
        answers=("mistral-07", "mistral-11", "mistral-12", "mistral-14"),
        limits=limits or {},
        host="api.mistral.ai",
    )


ROWS = (
    _row(
        "mistral",
        "mistral-large-latest",
        ChatShape(calls="bare", usage="with_finish", call_id=_nine),
        limits={"reasoning": "The model does not reason."},
    ),
    _row(
        "mistral-reasoning",
        "magistral-medium-latest",
        ChatShape(calls="bare", usage="with_finish", reasoning="thinking_parts", call_id=_nine),
    ),
)
