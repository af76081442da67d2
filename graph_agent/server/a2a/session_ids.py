"""Derives the session id of a conversation, and checks whether any process runs that session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from a2a.server.context import ServerCallContext
from a2a.types import Task
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.compiled import CompiledAgentGraph
from graph_agent.runs.registry import is_idle

SessionIds = Callable[[str, str], str]
"""Builds a session id from a user name (empty for an anonymous user) and a conversation id."""

TaskLease = Callable[[Task, ServerCallContext], Awaitable[bool]]
"""Whether any process runs the conversation of a caller's task."""


def session_id_of(user: str, context_id: str) -> str:
    """Return the session id of a conversation: the conversation id, prefixed by the user name if there is one.

    Clients choose the conversation id; the prefix prevents access to another user's conversation.
    """
    if user:
        return f"{quote(user, safe='@')}/{context_id}"
    # An anonymous user's id must not match a user's prefixed id.
    return f"/{context_id}" if "/" in context_id else context_id


def task_lease(graph: CompiledAgentGraph, session_ids: SessionIds = session_id_of) -> TaskLease:
    """Return a check whether any process runs a task's conversation.

    Args:
        graph: The agent, with a checkpointer whose sessions are locked across processes.
    """
    saver = graph.checkpointer
    assert isinstance(saver, BaseCheckpointSaver)

    async def has_lease(task: Task, context: ServerCallContext) -> bool:
        return not await is_idle(saver, session_ids(context.user.user_name, task.context_id))

    return has_lease
