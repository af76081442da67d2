"""A worker process: `python -m tests.restate.worker DATABASE FOLDER ADDRESS NAME`.

The model makes one wave for each text of the user: for `wave …`, a quick write `book`, and `charge` and `look`, which
wait for the file FOLDER/gate after their effect; for `pay …`, one `transfer`, which a person must approve, and which
waits too. Each effect is a line of FOLDER/effects: the tool, the call's text, and the process id.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool, tool

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.engines.restate import agent_object
from graph_agent.engines.restate_worker import serve
from graph_agent.persistence import open_saver, open_store
from tests.support.agents import asks, marked

WAVE = ("book", "charge", "look")


class TurnsModel(ScriptedChatModel):
    """Makes the calls of the newest text of the user, once, and then answers it."""

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        at = max(index for index, message in enumerate(messages) if message.type == "human")
        text = messages[at].text
        kind = text.partition(" ")[0]
        names = {"wave": WAVE, "pay": ("transfer",)}.get(kind, ())
        calls = [(f"{name}-{text.replace(' ', '-')}", name, {"text": text}) for name in names]
        done = any(message.type == "tool" for message in messages[at:])
        reply = asks(*calls) if calls and not done else f"answer to {text}"
        return ScriptedChatModel([reply])._reply(messages, stop, kwargs)


def tools(folder: Path) -> list[BaseTool]:
    """The tools, which record their effects."""

    def record(name: str, text: str) -> None:
        descriptor = os.open(folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, (json.dumps([name, text, os.getpid()]) + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    async def gate() -> None:
        while not (folder / "gate").exists():
            await asyncio.sleep(0.01)

    @tool
    async def book(text: str) -> str:
        """Book a room."""
        record("book", text)
        return f"booked for {text}"

    @tool
    async def charge(text: str) -> str:
        """Charge a card."""
        record("charge", text)
        await gate()
        return f"charged for {text}"

    @tool
    async def look(text: str) -> str:
        """Look up a price."""
        record("look", text)
        await gate()
        return f"looked up for {text}"

    @tool
    async def transfer(text: str) -> str:
        """Transfer money."""
        record("transfer", text)
        await gate()
        return f"transferred for {text}"

    return [book, charge, marked(look, effect="read"), transfer]


async def main(url: str, folder: Path, address: str, name: str) -> None:
    """Serve until SIGTERM."""
    async with open_saver(url) as saver, open_store(url) as store:
        config = LoopConfig(finalize="direct", approve=["transfer"])
        graph = create_graph_agent(
            TurnsModel(responses=[]), tools=tools(folder), checkpointer=saver, store=store, config=config, name=name
        )
        await serve(agent_object(graph), bind=address)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
