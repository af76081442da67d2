"""Measure streamed dispatch with the real model: `python -m tests.real.overlap [QUESTIONS] [TOOL_S]`.

Each of 20 questions, or of at least 2, is asked with `dispatch="whole"` and with `dispatch="streamed"`, in turns whose
order alternates, after once without measuring, so that the server's cache of prompts serves both. Plans are structured,
because the model has no native calls. The tools are those of `questions.yaml`; each takes 1 s.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, create_graph_agent
from graph_agent.base.settings.config import Dispatch
from scripts.local_model import model_server
from tests.real.questions import TOOLS, Question, load_questions
from tests.support.openai_stub import open_chat_model

QUESTIONS, TOOL_S = 20, 1.0


@dataclass(frozen=True)
class Run:
    """One run of a question."""

    seconds: float
    calls: list[tuple[str, str]]
    """Name and arguments of each call."""
    status: str
    early: int
    """Calls that began before their plan was whole, and were kept."""
    lead_s: float
    """Seconds that these calls had run when the plan was whole."""
    plans: int
    """Plans that were valid."""
    replies: int
    """Replies to requests for a plan, valid or not."""
    is_right: bool
    """Whether the first call is the right one."""


async def ask(model: BaseChatModel, question: Question, dispatch: Dispatch, tool_s: float) -> Run:
    """Ask a question in a session of its own.

    Args:
        model: The model.
        question: The question.
        dispatch: When calls begin.
        tool_s: Seconds that each call takes.
    """
    config = LoopConfig(dispatch=dispatch, tool_calling="wave", max_steps=2, max_output_tokens=200)
    tools = [_slow(tool, tool_s) for tool in TOOLS]
    session = create_graph_agent(model, tools=tools, config=config, checkpointer=InMemorySaver()).session("s")
    begun = time.monotonic()
    result = await session.run(question.ask)
    seconds = time.monotonic() - begun
    events = await session.events()
    requests = [each for event in events for each in event.get("model_calls", ())]
    calls = [{"name": call.name, "arguments": call.arguments} for call in result.calls]
    return Run(
        seconds,
        [(call.name, str(call.arguments)) for call in result.calls],
        result.status.value,
        sum("early_s" in event for event in events),
        sum(event.get("early_s", 0.0) for event in events if event["type"] == "tool_result"),
        sum(event["type"] == "plan" for event in events),
        sum(each["purpose"] == "plan" for each in requests),
        question.is_right(calls),
    )


def _slow(tool: Callable[..., str], seconds: float) -> BaseTool:
    async def run(**arguments: Any) -> str:
        await asyncio.sleep(seconds)
        return tool(**arguments)

    made = StructuredTool.from_function(tool)
    return made.model_copy(update={"coroutine": run, "func": None, "metadata": {"effect": "read"}})


async def compare(model: BaseChatModel, questions: Sequence[Question], tool_s: float) -> list[tuple[Run, Run]]:
    """Return the runs of each question, with whole and with streamed dispatch."""
    pairs = []
    for number, question in enumerate(questions):
        await ask(model, question, "whole", tool_s)
        order: list[Dispatch] = ["whole", "streamed"]
        runs = {each: await ask(model, question, each, tool_s) for each in (order if number % 2 else order[::-1])}
        pairs.append((runs["whole"], runs["streamed"]))
    return pairs


async def main() -> None:
    """Print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else QUESTIONS
    tool_s = float(sys.argv[2]) if len(sys.argv) > 2 else TOOL_S
    questions = [each for each in load_questions() if each.tool is not None][:count]
    with model_server("local", context=4096) as base_url:
        async with open_chat_model(base_url, "local") as model:
            pairs = await compare(model, questions, tool_s)
    whole, streamed = zip(*pairs, strict=True)
    ratios = [second.seconds / first.seconds for first, second in pairs]
    first_quartile, _, third_quartile = statistics.quantiles(ratios, n=4, method="inclusive")
    print(
        f"{len(pairs)} questions, tools of {tool_s:g} s: median {statistics.median(run.seconds for run in whole):.2f} "
        f"s whole, {statistics.median(run.seconds for run in streamed):.2f} s streamed; ratio of each pair: median "
        f"{statistics.median(ratios):.3f}, quartiles {first_quartile:.3f} and {third_quartile:.3f}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}; "
        f"{sum(run.early for run in streamed)} of {sum(len(run.calls) for run in streamed)} calls began early, "
        f"{sum(run.lead_s for run in streamed):.1f} s ahead in all; "
        f"{sum(a.calls == b.calls and a.status == b.status for a, b in pairs)} pairs with equal calls and status"
    )
    for name, runs in (("whole", whole), ("streamed", streamed)):
        print(
            f"{name}: {sum(run.plans for run in runs)} of {sum(run.replies for run in runs)} replies were valid plans, "
            f"{sum(run.is_right for run in runs)} first calls were right, "
            f"{sum(run.status == 'COMPLETED' for run in runs)} questions were completed"
        )


if __name__ == "__main__":
    asyncio.run(main())
