"""Makes the tool with which the model waits for background delegations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import Field

from graph_agent.base._compat import read_running_state
from graph_agent.core.extensions.delegation import BackgroundDelegate, Delegate
from graph_agent.core.state.channels import NOTHING_REMOTE, RemoteState

WAIT_TOOL = "wait_for_background"
"""Name of the tool by which the model waits for background tasks."""
_LONGEST_S = 600
"""Maximum seconds of one wait."""
_DESCRIPTION = (
    "Wait until one of the tasks that you have delegated with background=true ends or asks something. Its result "
    "follows as a notice."
)


def wait_tools(delegates: Sequence[Delegate]) -> list[BaseTool]:
    """Return a list with the tool `wait_for_background`, which waits until a background task ends or asks something.

    Empty if no delegate supports background tasks. The tool waits for `seconds` at most (60 by default), returns how
    many tasks have stopped by then, or at once that there is none, and neither reads nor cancels the tasks.
    """
    if not (known := {one.name: one for one in delegates if isinstance(one, BackgroundDelegate) and one.background}):
        return []  # making a tool takes milliseconds

    async def wait(seconds: Annotated[float, Field(ge=0, le=_LONGEST_S)] = 60) -> str:
        remote: RemoteState = read_running_state(["remote"]).get("remote") or NOTHING_REMOTE
        tasks = [task for task in remote.get("background", {}).values() if task["delegate"] in known]
        if not tasks:
            return "No task runs in the background."
        waits = [asyncio.ensure_future(known[task["delegate"]].wait(task)) for task in tasks]
        try:
            done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return f"{len(done)} of {len(tasks)} background tasks stopped within {seconds:g} s."

    marks = {"effect": "read", "poll": True, "timeout_s": _LONGEST_S + 60}
    return [StructuredTool.from_function(coroutine=wait, name=WAIT_TOOL, description=_DESCRIPTION, metadata=marks)]
