"""LLMCompiler as its paper describes it, written by hand: a streamed planner, a task fetching unit and a joiner."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import BaseTool

from proofs.overlap.items import Item, filled

PLANNER = "Write one task a line, `id = tool({arguments}) after id, id`; ${id.field} takes the result of a task."
JOINER = "Answer the question from the results of the tasks."
_TASK = re.compile(r"(\w+) = (\w+)\((.*)\)(?: after (.*))?")


def plan_of(item: Item) -> str:
    """Return the planner's reply for an item."""
    lines = []
    for step in (step for level in item.levels for step in level):
        after = f" after {', '.join(step.after)}" if step.after else ""
        lines.append(f"{step.id} = {step.tool}({json.dumps(step.args)}){after}")
    return "\n".join([*lines, ""])


async def answer(model: BaseChatModel, question: str, tools: Mapping[str, BaseTool]) -> str:
    """Plan, run each task as soon as its needs have results, while the plan streams, and join the results.

    Args:
        model: The planner and the joiner.
        question: The user's question.
        tools: Name → tool.
    """
    tasks: dict[str, asyncio.Task[Any]] = {}

    async def run(tool: str, arguments: str, needs: list[str]) -> Any:
        results = {need: await tasks[need] for need in needs}
        return await tools[tool].ainvoke(filled(json.loads(arguments), results))

    async for line in _lines(model, [SystemMessage(PLANNER), HumanMessage(question)]):
        if (task := _TASK.fullmatch(line)) is not None:
            id_, tool, arguments, after = task.groups()
            needs = [*re.findall(r"\w+", after or ""), *re.findall(r"\$\{(\w+)", arguments)]
            tasks[id_] = asyncio.create_task(run(tool, arguments, needs))
    results = {id_: await task for id_, task in tasks.items()}
    reply = await model.ainvoke([SystemMessage(JOINER), HumanMessage(question), AIMessage(json.dumps(results))])
    return reply.text


async def _lines(model: BaseChatModel, messages: list[Any]) -> AsyncIterator[str]:
    """Yield the lines of a reply, each as soon as it is complete."""
    text = ""
    async for chunk in model.astream(messages):
        text += chunk.text
        while "\n" in text:
            line, text = text.split("\n", 1)
            yield line
    yield text
