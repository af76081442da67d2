"""Names the session of a task's conversation, and checks whether a process runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from a2a import types
from a2a.server.context import ServerCallContext
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.session.activity import running_check
from graph_agent.session.compiled import CompiledAgentGraph

SessionIdOf = Callable[[str, str], str]
"""Returns the session id for a user name (empty for an anonymous user) and a conversation id."""

TaskLease = Callable[[types.Task, ServerCallContext], Awaitable[bool]]
"""Returns whether any process runs the conversation of a caller's task."""


def session_id_of(user: str, context_id: str) -> str:
    """Return the session id of a conversation: `USER/CONVERSATION`, or the conversation id alone for an anonymous user.

    Clients choose the conversation id, so the user name, in which special characters are quoted, prevents access to
    another user's conversation. An anonymous user's id that contains a slash gets one more in front.

    Args:
        user: The user name; empty for an anonymous user.
        context_id: The conversation id.
    """
    if user:
        return f"{quote(user, safe='@')}/{context_id}"
    # An anonymous user's id must not match a user's prefixed id.
    return f"/{context_id}" if "/" in context_id else context_id


def task_lease(graph: CompiledAgentGraph, session_ids: SessionIdOf = session_id_of) -> TaskLease:
    """Return an async function that reports whether any process runs the conversation of a task.

    Args:
        graph: The agent, whose checkpointer holds the sessions.
        session_ids: Returns the session id for a user name and a conversation id.
    """
    saver = graph.checkpointer
    assert isinstance(saver, BaseCheckpointSaver)
    is_running = running_check(saver)

    async def has_lease(task: types.Task, context: ServerCallContext) -> bool:
        """Return whether any process runs the conversation of a task."""
        return await is_running(session_ids(context.user.user_name, task.context_id))

    return has_lease
