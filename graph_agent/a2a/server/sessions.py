"""The session behind a conversation, and whether any process works on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from a2a.server.context import ServerCallContext
from a2a.types import Task
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.compiled import CompiledAgentGraph
from graph_agent.runs.registry import is_idle

SessionIds = Callable[[str, str], str]
"""Makes a session's id of a user's name (empty for nobody) and a conversation's id."""

AtWork = Callable[[Task, ServerCallContext], Awaitable[bool]]
"""Whether any process works on the conversation of a caller's task."""


def session_id_of(user: str, context_id: str) -> str:
    """The session behind a conversation: its own id, within the user's name where there is one.

    The protocol lets a client name the conversation; nobody may go on with another user's by naming it.
    """
    if user:
        return f"{quote(user, safe='@')}/{context_id}"
    # What nobody in particular names must not look like what is within a user's name.
    return f"/{context_id}" if "/" in context_id else context_id


def at_work(graph: CompiledAgentGraph, session_ids: SessionIds = session_id_of) -> AtWork:
    """How to find out whether any process works on a task's conversation.

    Args:
        graph: The agent, with a checkpointer whose sessions are guarded across processes.
        session_ids: Makes sessions' ids.
    """
    saver = graph.checkpointer
    assert isinstance(saver, BaseCheckpointSaver)

    async def is_at_work(task: Task, context: ServerCallContext) -> bool:
        return not await is_idle(saver, session_ids(context.user.user_name, task.context_id))

    return is_at_work
