"""The SDK's database stores, with database errors logged and replaced; the SDK sends exception texts to clients."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabasePushNotificationConfigStore, DatabaseTaskStore
from a2a.types import ListTasksRequest, ListTasksResponse, Task, TaskPushNotificationConfig
from a2a.utils.errors import InternalError, InvalidParamsError
from sqlalchemy.exc import SQLAlchemyError

from graph_agent._internal.failure_log import log_failure

logger = logging.getLogger(__name__)

_NUL = "\x00"


class MaskedTaskStore(DatabaseTaskStore):
    """The SDK's task store without database details in errors.

    Raises:
        InternalError: If the database fails.
        InvalidParamsError: If a requested id contains a NUL character, which PostgreSQL cannot store.
    """

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task."""
        with _masked_errors("Writing an A2A task"):
            await super().save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task; None for an id with a NUL character."""
        if _NUL in task_id:
            return None
        with _masked_errors("Reading an A2A task"):
            return await super().get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """List tasks."""
        _check_no_nul("contextId", params.context_id)
        with _masked_errors("Listing the A2A tasks"):
            return await super().list(params, context)


class MaskedPushStore(DatabasePushNotificationConfigStore):
    """The SDK's store of push configurations without database details in errors.

    Raises:
        InternalError: If the database fails.
        InvalidParamsError: If the id of a configuration contains a NUL character.
    """

    async def set_info(
        self, task_id: str, notification_config: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Store a push configuration."""
        _check_no_nul("id", notification_config.id)
        with _masked_errors("Writing a push configuration"):
            return await super().set_info(task_id, notification_config, context)

    async def get_info(self, task_id: str, context: ServerCallContext) -> list[TaskPushNotificationConfig]:
        """Return the push configurations of a task."""
        with _masked_errors("Reading push configurations"):
            return await super().get_info(task_id, context)

    async def delete_info(self, task_id: str, context: ServerCallContext, config_id: str | None = None) -> None:
        """Delete a push configuration."""
        _check_no_nul("id", config_id or "")
        with _masked_errors("Deleting a push configuration"):
            await super().delete_info(task_id, context, config_id)


@contextmanager
def _masked_errors(what: str) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        log_failure(logger, what, error)
        raise InternalError(message="The server could not access its tasks; see the server log.") from None


def _check_no_nul(name: str, text: str) -> None:
    if _NUL in text:
        raise InvalidParamsError(message=f"{name} holds a NUL character; send an id without it.")
