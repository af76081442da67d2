"""Progress notifications of a server, forwarded to the stream of the calling run."""

from __future__ import annotations

from contextvars import copy_context

from langgraph.config import get_stream_writer
from mcp.shared.session import ProgressFnT


def progress_to_stream(server: str, tool: str) -> ProgressFnT | None:
    """Return a progress callback for a call in the current run; None outside a graph's run, to request no progress.

    The callback writes `{"type": "mcp_progress", "server", "tool", "progress", "total", "message"}` to the custom
    stream; `total` and `message` may be None.
    """
    try:
        write = get_stream_writer()
    except (RuntimeError, KeyError):
        # There is no runnable context, or the tool was invoked outside a graph.
        return None
    # Captured: the writer reads the graph position from the context, and progress arrives in the session's context.
    context = copy_context()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        event = {"type": "mcp_progress", "server": server, "tool": tool}
        context.run(write, {**event, "progress": progress, "total": total, "message": message})

    return on_progress
