"""A task's history without its progress: the conversation of client and agent, and nothing that passes by."""

from __future__ import annotations

from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore
from a2a.types import ListTasksRequest, ListTasksResponse, Task

from graph_agent.a2a.server.updates import is_progress


class ConversationStore(TaskStore):
    """Stores tasks without progress in their history.

    The SDK appends the message of each status update to the history when the next update arrives. The protocol allows
    an agent to leave transient messages out, and `historyLength` counts what is left: messages of the client, and the
    questions of the agent. The newest progress stays in the task's status.

    Args:
        kept: The store.
    """

    def __init__(self, kept: TaskStore) -> None:
        self._kept = kept

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """As the SDK's; `task` is the SDK's own object, and loses its progress too."""
        said = [message for message in task.history if not is_progress(message)]
        if len(said) < len(task.history):
            del task.history[:]
            task.history.extend(said)
        await self._kept.save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """As the SDK's."""
        return await self._kept.get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """As the SDK's."""
        return await self._kept.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """As the SDK's."""
        await self._kept.delete(task_id, context)
