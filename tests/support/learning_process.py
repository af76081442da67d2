"""Answers inputs in a process of its own, whose table of calls is in a SQLite file: `python -m
tests.support.learning_process FILE INPUTS`."""

from __future__ import annotations

import asyncio
import sys

from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_store


@tool
async def look(text: str) -> str:
    """Look up."""
    return "found"


async def main(file: str, inputs: int) -> None:
    call = AIMessage("", tool_calls=[{"id": "c", "name": "look", "args": {"text": "it"}}])
    async with open_store(f"sqlite:///{file}") as store:
        model = ScriptedChatModel([call, "Done."], cycle=True)
        agent = create_graph_agent(model, [look], config=LoopConfig(predict="table"), store=store)
        for _ in range(inputs):
            await agent.ainvoke({"messages": [("user", "Look.")]})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
