"""A process whose agent delegates in the background, started and killed by `test_background_delegates`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from langchain_core.tools import tool

from graph_agent import GraphDelegate, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import asks

CHILD = [asks(("p", "pay", {}), ("l", "look", {})), "Paid."]


async def main(folder: Path, text: str, *replies: str) -> None:
    """Run one input; the delegate's call `look` ends only when the file `go` exists."""

    @tool
    async def pay() -> str:
        """Pay, which must happen once."""
        with (folder / "paid").open("a") as file:
            file.write("paid\n")
        return "paid"

    @tool
    async def look() -> str:
        """Look."""
        (folder / "looking").touch()
        while not (folder / "go").exists():
            await asyncio.sleep(0.01)
        return "looked"

    look.metadata = {"effect": "read"}
    async with open_saver(f"sqlite:///{folder / 'a.db'}") as saver:
        # After the kill, the model has made its first plan.
        replies_of_child = CHILD[1:] if (folder / "looking").exists() else CHILD
        child = create_graph_agent(ScriptedChatModel(replies_of_child), tools=[pay, look])
        agent = create_graph_agent(
            ScriptedChatModel(list(replies)),
            delegates=[GraphDelegate("cashier", "Pays.", child, background=True)],
            checkpointer=saver,
        )
        result = await Session(agent, "s1").run(text)
        sys.stdout.write(f"{result.answer}\n")
        sys.stdout.flush()
        if (folder / "go").exists():
            return
        await asyncio.Event().wait()  # killed here


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
