"""Claude, over Anthropic's own API."""

from __future__ import annotations

from typing import Any

from tests.providers.protocols.anthropic import Anthropic, AnthropicShape
from tests.providers.row import Row
from tests.providers.rows.building import KEY, from_class
from tests.providers.rules import anthropic

MESSAGES = Anthropic()
BUDGET = {"type": "enabled", "budget_tokens": 1024}


def _row(name: str, model: str, *, limits: dict[Any, str] | None = None, note: str = "", **arguments: Any) -> Row:
    return Row(
        name=name,
        protocol=MESSAGES,
        build=from_class("langchain_anthropic:ChatAnthropic", model=model, api_key=KEY, **arguments),
        package="langchain-anthropic",
        model=model,
        rules=anthropic.rules(),
        faults=anthropic.FAULTS,
        shape=AnthropicShape(thinks=arguments.get("thinking") == BUDGET),
        answers=("anthropic-19", "anthropic-20", "anthropic-23", "anthropic-24"),
        limits=limits or {},
        host="api.anthropic.com",
        note=note,
    )


ROWS = (
    _row("anthropic", "claude-sonnet-4-6", limits={"reasoning": "Thinking is off in this row."}),
    _row("anthropic-thinking", "claude-sonnet-4-6", thinking=BUDGET, max_tokens=4096),
    _row("anthropic-adaptive", "claude-opus-4-8", thinking={"type": "adaptive"}, max_tokens=4096),
)
