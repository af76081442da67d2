"""Thirty questions with their right calls, asked of a model as a user would ask it: with the shipped defaults."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"The weather in {city}: 12 degrees, light rain."


def add(a: float, b: float) -> str:
    """Add two numbers and return the sum."""
    return str(a + b)


def phone_number(name: str) -> str:
    """Look up the phone number of a person by name."""
    return f"The phone number of {name} is 555-0134."


def local_time(city: str) -> str:
    """Return the current local time in a city."""
    return f"It is 14:05 in {city}."


TOOLS = (weather, add, phone_number, local_time)


@dataclass(frozen=True, slots=True)
class Question:
    """One question."""

    ask: str
    tool: str | None = None
    """Name of the tool that must be called; None if no call is needed."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The right arguments; a text is in lower case."""

    def is_right(self, calls: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the first call is the right one; without a tool, whether there is none."""
        if self.tool is None:
            return not calls
        return bool(calls) and calls[0]["name"] == self.tool and self._fits(calls[0]["arguments"])

    def _fits(self, given: Mapping[str, Any]) -> bool:
        return all(_is_equal(given.get(name), value) for name, value in self.arguments.items())


def _is_equal(given: Any, value: Any) -> bool:
    if isinstance(value, str):
        return isinstance(given, str) and value in given.lower()
    try:
        return bool(float(given) == value)
    except (TypeError, ValueError):
        return False


def load_questions() -> list[Question]:
    """Read `questions.yaml`."""
    text = Path(__file__).with_name("questions.yaml").read_text(encoding="utf-8")
    return [Question(**entry) for entry in yaml.safe_load(text)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a model did with one question."""

    question: Question
    calls: list[dict[str, Any]]
    """The calls of the run that named a tool of the agent, in order; each with `name` and `arguments`."""
    answer: str
    status: str
    seconds: float
    output_tokens: int
    warnings: list[str]


OF, CALLED, RIGHT = 26, 20, 9
"""Of this many questions that need a tool, so many must be answered with a call, and so many with the right one."""


@dataclass(frozen=True, slots=True)
class Score:
    """The sum of outcomes."""

    outcomes: Sequence[Outcome]

    @property
    def called(self) -> int:
        """Questions that need a tool, and that were answered with a call."""
        return sum(bool(each.calls) for each in self.outcomes if each.question.tool is not None)

    @property
    def right(self) -> int:
        """Questions that need a tool, whose first call was the right one."""
        return sum(each.question.is_right(each.calls) for each in self.outcomes if each.question.tool is not None)

    @property
    def quiet(self) -> int:
        """Questions that need no tool, and that were answered without a call."""
        return sum(
            each.status == "COMPLETED" and not each.calls for each in self.outcomes if each.question.tool is None
        )

    @property
    def needing(self) -> int:
        """Questions that need a tool."""
        return sum(each.question.tool is not None for each in self.outcomes)

    @property
    def fails(self) -> str:
        """The aims that are missed, in proportion to the questions; empty if there are none."""
        aims = {"called": (self.called, CALLED), "right": (self.right, RIGHT)}
        least = {name: -(-self.needing * aim // OF) for name, (_, aim) in aims.items()}
        missed = [
            f"{name}: {found} of {self.needing}, not {least[name]}"
            for name, (found, _) in aims.items()
            if found < least[name]
        ]
        others = len(self.outcomes) - self.needing
        if self.quiet < others:
            missed.append(f"without a call: {self.quiet} of {others}")
        return "; ".join(missed)

    def __str__(self) -> str:
        tokens = sum(each.output_tokens for each in self.outcomes)
        return (
            f"called {self.called} of {self.needing}, right {self.right} of {self.needing}, "
            f"no call for {self.quiet} of {len(self.outcomes) - self.needing}; {tokens:,} output tokens"
        )


async def ask_model(question: Question, model: Any, config: LoopConfig | None = None) -> Outcome:
    """Ask one question in a session of its own, with the tools of this module.

    Args:
        model: The model, or its name as a user writes it, such as `openai:local`.
        config: The configuration; None for the defaults.
    """
    agent = create_graph_agent(model, tools=list(TOOLS), config=config or LoopConfig(), checkpointer=InMemorySaver())
    session = Session(agent, "question")
    begun = time.monotonic()
    result = await session.run(question.ask)
    seconds = time.monotonic() - begun
    events = await session.events()
    names = {tool.__name__ for tool in TOOLS}
    calls = [
        {"name": each["name"], "arguments": each["arguments"]}
        for each in events
        if each["type"] == "tool_call" and each["name"] in names
    ]
    warnings = [str(each["message"]) for each in events if each["type"] == "warning"]
    return Outcome(
        question, calls, result.answer, result.status.value, seconds, result.usage["output_tokens"], warnings
    )
