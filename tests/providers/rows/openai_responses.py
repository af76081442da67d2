"""OpenAI's Responses API."""

from __future__ import annotations

from typing import Any

from tests.providers.protocols.openai_responses import OpenAIResponses
from tests.providers.row import Row
from tests.providers.rows.building import KEY, from_class
from tests.providers.rules import openai, openai_responses

RESPONSES = OpenAIResponses()


def _row(name: str, model: str, *, limits: dict[Any, str] | None = None, **arguments: Any) -> Row:
    return Row(
        name=name,
        protocol=RESPONSES,
        build=from_class(
            "langchain_openai:ChatOpenAI", suffix="/v1", model=model, api_key=KEY, use_responses_api=True, **arguments
        ),
        package="langchain-openai",
        model=model,
        rules=openai_responses.RULES,
        faults={**openai.FAULTS, "overflow": openai_responses.OVERFLOW},
        answers=("openai-50", "openai-51", "openai-55"),
        limits=limits or {},
        host="api.openai.com",
    )


ROWS = (
    _row("openai-responses", "gpt-5", reasoning={"effort": "low", "summary": "auto"}),
    _row(
        "openai-responses-unstored",
        "gpt-5",
        reasoning={"effort": "low", "summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
    ),
)
