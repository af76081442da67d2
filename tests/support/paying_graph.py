"""A graph for `langgraph dev`: its tool pays, and waits for the file `leave`; both files are in the current folder."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool

from graph_agent import ScriptedChatModel, create_graph_agent


@tool
async def pay() -> str:
    """Pay."""
    await asyncio.to_thread(_note_payment)
    while not await asyncio.to_thread(Path("leave").exists):
        await asyncio.sleep(0.01)
    return "paid"


def _note_payment() -> None:
    with Path("payments").open("a") as payments:
        payments.write("paid\n")


class _PaysOnce(ScriptedChatModel):
    """Plans a payment, and answers when it has a result."""

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        has_paid = any(message.type == "tool" for message in messages)
        plan = json.dumps({"tool_calls": [{"id": "1", "name": "pay", "arguments": {}}]})
        return ScriptedChatModel(["Done." if has_paid else plan])._reply(messages, stop, kwargs)


graph = create_graph_agent(_PaysOnce(responses=[]), tools=[pay])
