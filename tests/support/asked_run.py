"""A process that kills itself while its sessions wait for answers to questions of MCP servers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.mcp import open_mcp_tools
from graph_agent.persistence import open_saver
from tests.support.agents import asks
from tests.support.mcp_servers.running import asking_servers

CALLS = {
    "book": ("book", {"room": "1"}),
    "repeat": ("rebook", {"room": "2"}),
    "look": ("look", {"room": "3"}),
    "connect": ("connect", {}),
}
"""Session → its call."""


async def main(folder: str) -> None:
    """Run until the sessions wait, then end without any cleanup."""
    async with open_saver(f"sqlite:///{folder}/db") as saver, open_mcp_tools(asking_servers(folder)) as tools:
        for id_, (name, arguments) in CALLS.items():
            script = ScriptedChatModel([asks(("c", name, arguments))])
            waiting = await Session(create_graph_agent(script, tools=tools, checkpointer=saver), id_).run("go")
            assert waiting.interrupts
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
