"""A process that is killed while a tool of the FastAPI recipe's session runs: see `test_recipe_fastapi`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import asks


async def main(path: str) -> None:
    """Run a message of Ada until its call ends the process."""

    async def book(room: str, day: str) -> str:
        """Book a room for a day."""
        os.kill(os.getpid(), signal.SIGKILL)
        return "unreachable"

    async with open_saver(f"sqlite:///{path}") as saver:
        model = ScriptedChatModel([asks(("b", "book", {"room": "Oak", "day": "2026-12-01"}))])
        agent = create_graph_agent(model, [book], checkpointer=saver)
        await agent.session("ada/c1").run("Book Oak for tomorrow.")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
