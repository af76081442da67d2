"""Gemini, over the Gemini API and over Vertex AI."""

from __future__ import annotations

from typing import Any

from tests.providers.protocols.gemini import Gemini, GeminiShape
from tests.providers.row import Row
from tests.providers.rows.building import KEY, from_class
from tests.providers.rules import gemini

GEMINI = Gemini()


def _row(
    name: str,
    model: str,
    *,
    maker: str = "gemini",
    host: str = "generativelanguage.googleapis.com",
    limits: dict[Any, str] | None = None,
    **arguments: Any,
) -> Row:
    return Row(
        name=name,
        protocol=GEMINI,
        build=from_class("langchain_google_genai:ChatGoogleGenerativeAI", model=model, api_key=KEY, **arguments),
        package="langchain-google-genai",
        model=model,
        rules=gemini.rules(maker),
        faults=gemini.FAULTS,
        shape=GeminiShape(maker=maker, signed=not model.startswith("gemini-2")),
        answers=("google-gemini-15", "google-gemini-16", "google-gemini-17"),
        limits=limits or {},
        host=host,
    )


ROWS = (
    _row("gemini-2.5", "gemini-2.5-flash", limits={"reasoning": "Thoughts are off in this row."}),
    _row("gemini-3", "gemini-3-pro-preview", include_thoughts=True),
    _row("vertex", "gemini-3-pro-preview", maker="vertex", host="aiplatform.googleapis.com", vertexai=True),
)
