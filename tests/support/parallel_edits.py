"""A process that edits its own lines of a shared file, by waves of parallel calls, until it is killed.

Arguments: the folder and the number of the process. After each wave, it prints the value that its lines have then.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.workspace import workspace_tools
from tests.support.agents import asks

FILE = "values.txt"
CALLS = 4
"""Lines of each process, and calls of each wave."""


def line(worker: int, at: int, value: int) -> str:
    """The line of one value."""
    return f"worker {worker} value {at}: {value}.\n"


def values(text: str) -> dict[tuple[int, int], int]:
    """The value of each process and line; raises `ValueError` for a text that is not whole."""
    found = {}
    for each in text.splitlines(keepends=True):
        _, worker, _, at, value = each.removesuffix(".\n").replace(":", "").split(" ")
        found[int(worker), int(at)] = int(value)
        if each != line(int(worker), int(at), int(value)):
            raise ValueError(each)
    return found


async def main(folder: Path, worker: int) -> None:
    """Edit without an end."""
    tools = workspace_tools(folder)
    before = {at: value for (number, at), value in values((folder / FILE).read_text()).items() if number == worker}
    value = max(before.values())
    while True:
        value += 1
        edits = (
            {"path": FILE, "old": line(worker, at, was), "new": line(worker, at, value)} for at, was in before.items()
        )
        script = [asks(*((f"c{at}", "edit_file", edit) for at, edit in enumerate(edits))), "No more actions.", "Done."]
        agent = create_graph_agent(
            ScriptedChatModel(script), tools=tools, config=LoopConfig(), checkpointer=InMemorySaver()
        )
        result = await Session(agent, "s").run("go")
        failed = [call.result for call in result.calls if call.status != "success"]
        sys.stdout.write(f"failed {failed}\n" if failed else f"{value}\n")
        sys.stdout.flush()
        before = dict.fromkeys(before, value)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
