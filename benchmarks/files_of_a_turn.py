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


async def run() -> list[str]:
    """Return the modules, by their path in the package, sorted."""
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
    paths = {Path(name).resolve() for name in seen if not name.startswith("<")}
    return sorted(
        str(path.relative_to(root.parent)) for path in paths for root in (PACKAGE, NODES) if path.is_relative_to(root)
    )


def main() -> None:
    """Print the modules and their number."""
    files = asyncio.run(run())
    for name in files:
        print(name)
    print(f"{len(files)} files")


if __name__ == "__main__":
    main()
