"""A process that runs a session until it is released, for the tests of steering, aborts and takeovers.

`python -m tests.support.steered_run DATABASE [URL [LEASE_S]]` runs an agent whose tool writes `at work` to the file
`log` next to the database, and then waits for a file named `go`; it prints the session's result as JSON. With an
address, the session is kept there, and the file names a place only. `LEASE_S` replaces the seconds after which
PostgreSQL releases the locks of a paused process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from langchain_core.tools import tool

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state import postgres_locks
from graph_agent.persistence import open_saver, open_store
from tests.support.agents import asks

SCRIPT = [asks(("1", "work", {})), asks(("2", "work", {})), "No more actions.", "Done.", "No more actions.", "And."]


@asynccontextmanager
async def opened(path: Path, script: list[str], url: str = "") -> AsyncIterator[Session]:
    """The session of a database, with its agent.

    Args:
        path: The database's file; the tool's files are next to it.
        script: The model's replies.
        url: The address of another database than the file.
    """

    @tool
    async def work() -> str:
        """Work until the file is there."""
        with (path.parent / "log").open("a") as log:
            log.write("at work\n")
        while not (path.parent / "go").exists():
            await asyncio.sleep(0.005)
        return "worked"

    url = url or f"sqlite:///{path}"
    async with open_saver(url) as saver, open_store(url) as store:
        graph = create_graph_agent(ScriptedChatModel(script), tools=[work], checkpointer=saver, store=store)
        yield Session(graph, "s1")


async def main(path: Path, url: str = "", lease_s: str = "") -> None:
    if lease_s:
        postgres_locks.LEASE_S = int(lease_s)
    async with opened(path, SCRIPT, url) as talk:
        result = await talk.run("go")
        sys.stdout.write(json.dumps({"answer": result.answer, "status": result.status, "results": result.results}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
