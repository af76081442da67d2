"""Task store that removes progress messages from the task history."""

from __future__ import annotations

from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore
from a2a.types import ListTasksRequest, ListTasksResponse, Task

from graph_agent.a2a.server.updates import is_progress


class ConversationStore(TaskStore):
    """Stores tasks without progress in their history.

    The SDK appends the message of each status update to the history when the next update arrives. The protocol allows
    an agent to omit transient messages, so `historyLength` counts the client's messages and the agent's questions. The
    newest progress stays in the task's status.

    Args:
        store: The underlying store.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task without progress; removes it from `task`, the SDK's own object, too."""
        history = [message for message in task.history if not is_progress(message)]
        if len(history) < len(task.history):
            del task.history[:]
            task.history.extend(history)
        await self._store.save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task."""
        return await self._store.get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """List tasks."""
        return await self._store.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task."""
        await self._store.delete(task_id, context)
