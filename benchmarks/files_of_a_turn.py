"""Modules of the package that one plain native turn runs code of: `python -m benchmarks.files_of_a_turn`.

A turn is one input with one tool call and an answer, through `graph.ainvoke`, after a first one that has warmed caches.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from langchain_core.tools import tool

import graph_agent
from graph_agent import ScriptedChatModel, create_graph_agent

PACKAGE = Path(graph_agent.__file__).parent
NODES = PACKAGE.parent / "nodes"


@tool
def look_up(text: str) -> str:
    """Look a text up."""
    return text


look_up.metadata = {"effect": "read"}


async def files() -> set[str]:
    """Return the paths of all code that the second turn runs."""
    call = '{"tool_calls": [{"id": "c", "name": "look_up", "arguments": {"text": "a"}}]}'
    graph = create_graph_agent(ScriptedChatModel([call, "Found a."], cycle=True), tools=[look_up])
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    await graph.ainvoke({"messages": [("user", "first")]})
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        await graph.ainvoke({"messages": [("user", "second")]})
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return seen


def main() -> None:
    """Print the modules and their number."""
    paths = {Path(name).resolve() for name in asyncio.run(files()) if not name.startswith("<")}
    own = [path for path in paths if path.is_relative_to(PACKAGE) or path.is_relative_to(NODES)]
    for path in sorted(str(path.relative_to(NODES.parent)) for path in own):
        print(path)
    print(f"{len(own)} files")


if __name__ == "__main__":
    main()
