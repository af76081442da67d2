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
"""Builds a session id from a user name (empty for an anonymous user) and a conversation id."""

TaskLease = Callable[[types.Task, ServerCallContext], Awaitable[bool]]
"""Whether any process runs the conversation of a caller's task."""


def session_id_of(user: str, context_id: str) -> str:
    """Return the session id of a conversation: the conversation id, prefixed by the user name if there is one.

    Clients choose the conversation id; the prefix, e.g. `alice/c1`, prevents access to another user's conversation.
    """
    if user:
        return f"{quote(user, safe='@')}/{context_id}"
    # An anonymous user's id must not match a user's prefixed id.
    return f"/{context_id}" if "/" in context_id else context_id


def task_lease(graph: CompiledAgentGraph, session_ids: SessionIdOf = session_id_of) -> TaskLease:
    """Return an async function that returns whether any process runs a task's conversation.

    `session_ids` builds the session's id from user and conversation.
    """
    saver = graph.checkpointer
    assert isinstance(saver, BaseCheckpointSaver)
    is_running = running_check(saver)

    async def has_lease(task: types.Task, context: ServerCallContext) -> bool:
        return await is_running(session_ids(context.user.user_name, task.context_id))

    return has_lease
