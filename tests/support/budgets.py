"""Scripted replies with token usage, prices, and a clock for deadlines."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from graph_agent import ScriptedChatModel

PRICES: Any = {"gpt-4o": {"input": 2.5, "output": 10.0}, "gpt-4o-mini": {"input": 0.15, "output": 0.6}}
"""Prices in dollars per million tokens."""


def reply_with_usage(
    content: str | tuple[str, str, dict[str, Any]], input_: int, output: int, **metadata: Any
) -> AIMessage:
    """A reply, or a call `(id, name, arguments)`, with its token usage."""
    calls = [] if isinstance(content, str) else [{"id": content[0], "name": content[1], "args": content[2]}]
    total: Any = {"input_tokens": input_, "output_tokens": output, "total_tokens": input_ + output}
    text = content if isinstance(content, str) else ""
    return AIMessage(text, tool_calls=calls, usage_metadata=total, response_metadata=metadata)


def call_with_usage(number: int, tokens: int = 100) -> AIMessage:
    """A call of `echo`, and the tokens it used."""
    return reply_with_usage((str(number), "echo", {"text": f"{number}"}), tokens - 10, 10)


def plan_with_usage(number: int, tokens: int = 100) -> AIMessage:
    """A structured plan with one call of `echo`, and the tokens it used."""
    wave = f'{{"status": "continue", "tools": [{{"id": "{number}", "tool": "echo", "args": {{"text": "{number}"}}}}]}}'
    return reply_with_usage(wave, tokens - 10, 10)


class Clock:
    """The clock of deadlines; it stands still until a test advances it."""

    now = 0.0

    def forward(self, seconds: float) -> None:
        self.now += seconds

    def after(self, model: ScriptedChatModel, replies: int, seconds: float) -> ScriptedChatModel:
        """The model, which advances the clock with its reply of that number, from 1."""
        clock = self

        class Slow(type(model)):  # type: ignore[misc]  # a subclass of any scripted model
            def _reply(self, *args: Any, **kwargs: Any) -> AIMessage:
                reply: AIMessage = super()._reply(*args, **kwargs)
                if len(self.requests) == replies:
                    clock.forward(seconds)
                return reply

        model.__class__ = Slow
        return model


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Measure the deadlines of runs by a clock that the test advances."""
    clock = Clock()
    monkeypatch.setattr(
        "graph_agent.core.state.run.time", SimpleNamespace(monotonic=lambda: clock.now, time_ns=time.time_ns)
    )
    return clock
