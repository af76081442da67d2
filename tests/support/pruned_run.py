"""A process that gives inputs to session `s1`, or prunes its database: `python -m tests.support.pruned_run`.

Arguments: `run`, `prune` or `split`, the database, and the number of inputs or prunings; with `split`, a part of the
history has one checkpoint only. Each prints a line when it ends.
"""

from __future__ import annotations

import asyncio
import sys

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver, prune
from graph_agent.storage.checkpoints.pruning import plan
from tests.support.agents import asks, echo


async def main(what: str, url: str, count: str) -> None:
    """Run or prune."""
    if what != "run":
        plan.PART_BYTES = 0 if what == "split" else plan.PART_BYTES
        for _ in range(int(count)):
            report = await prune(url, keep_last=1)
            sys.stdout.write(f"{report.checkpoints}\n")
        return
    async with open_saver(url) as saver:
        for number in range(int(count)):
            script = [asks((f"c{number}", "echo", {"text": str(number)})), "No more actions.", f"Reply {number}."]
            graph = create_graph_agent(ScriptedChatModel([*script]), tools=[echo], checkpointer=saver)
            result = await Session(graph, "s1").run(f"text {number}")
            sys.stdout.write(f"{result.answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
