"""A server's progress, shown on the stream of the run that called it."""

from __future__ import annotations

from contextvars import copy_context

from langgraph.config import get_stream_writer
from mcp.shared.session import ProgressFnT


def progress_to_stream(server: str, tool: str) -> ProgressFnT | None:
    """Make the progress callback of a call made here; None outside a graph's run, so that none is asked for.

    Writes `{"type": "mcp_progress", "server", "tool", "progress", "total", "message"}` to the custom stream, where
    `total` and `message` may be None.
    """
    try:
        write = get_stream_writer()
    except (RuntimeError, KeyError):
        # No runnable's context at all, or that of a tool which was invoked by itself.
        return None
    # The writer reads its place in the graph from the context; progress arrives in that of the session.
    context = copy_context()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        event = {"type": "mcp_progress", "server": server, "tool": tool}
        context.run(write, {**event, "progress": progress, "total": total, "message": message})

    return on_progress
