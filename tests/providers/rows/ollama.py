"""Ollama's own API."""

from __future__ import annotations

from typing import Any

from tests.providers.protocols.ollama import Ollama
from tests.providers.row import Row
from tests.providers.rows.building import from_class
from tests.providers.rule import Rule
from tests.providers.rules import ollama

NATIVE = Ollama()


def _row(
    name: str, model: str, *, more: tuple[Rule, ...] = (), limits: dict[Any, str] | None = None, **arguments: Any
) -> Row:
    return Row(
        name=name,
        protocol=NATIVE,
        build=from_class("langchain_ollama:ChatOllama", model=model, **arguments),
        package="langchain-ollama",
        model=model,
        rules=(*ollama.RULES, *more),
        faults=ollama.FAULTS,
        answers=("ollama-07", "ollama-14"),
        limits={
            "documents": "Messages hold text and images only.",
            "overflow_error": "A request that is too long is cut without a word.",
            **(limits or {}),
        },
    )


ROWS = (
    _row(
        "ollama",
        "llama3.1:8b",
        more=(ollama.NO_THINKING,),
        limits={"reasoning": "The model does not reason."},
    ),
    _row("ollama-reasoning", "qwen3:8b", reasoning=True),
)
