"""Budgets when a structured plan would be sent back for repair."""

from __future__ import annotations

from typing import Any

import pytest

from graph_agent import ScriptedChatModel
from tests.support.agents import echo, kinds
from tests.support.budgets import reply_with_usage
from tests.support.sessions import new_session

UNSOUND = reply_with_usage('{"status": "continue", "tools": []}', 90, 10)
ANSWER = reply_with_usage("Best I can say.", 90, 10)


@pytest.mark.parametrize(
    ("limits", "reason", "sentence"),
    [
        ({"max_turns": 1}, "turn_limit", "Reached maximum model turns (1)"),
        ({"max_tokens_total": 250}, "token_limit", "Reached the token budget (250 tokens)"),
    ],
)
async def test_a_plan_is_not_sent_back_when_a_limit_forbids_it(limits: Any, reason: str, sentence: str) -> None:
    model = ScriptedChatModel([UNSOUND, ANSWER])
    talk = new_session(model, echo)

    result = await talk.run("go", context={**limits, "tool_calling": "wave"})

    model.assert_spent()
    assert (result.stop_reason, result.answer, result.usage["model_calls"], kinds(await talk.events())) == (
        reason,
        f"{sentence}\n\nBest I can say.",
        2,
        ["user_message", "status", "limit", "agent_response", "status"],
    )
