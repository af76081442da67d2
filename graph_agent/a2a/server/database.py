"""The SDK's stores in a database, whose failures are the log's: it tells clients the text of any exception, SQL too."""

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


class QuietTaskStore(DatabaseTaskStore):
    """As the SDK's.

    Raises:
        InternalError: When the database fails.
        InvalidParamsError: When an id that is looked for holds a NUL, which PostgreSQL has no place for.
    """

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """As the SDK's."""
        with _quietly("Writing an A2A task"):
            await super().save(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """As the SDK's; there is no task whose id holds a NUL."""
        if _NUL in task_id:
            return None
        with _quietly("Reading an A2A task"):
            return await super().get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """As the SDK's."""
        _check("contextId", params.context_id)
        with _quietly("Listing the A2A tasks"):
            return await super().list(params, context)


class QuietPushStore(DatabasePushNotificationConfigStore):
    """As the SDK's.

    Raises:
        InternalError: When the database fails.
        InvalidParamsError: When the id of a configuration holds a NUL.
    """

    async def set_info(
        self, task_id: str, notification_config: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """As the SDK's."""
        _check("id", notification_config.id)
        with _quietly("Writing whom to notify"):
            return await super().set_info(task_id, notification_config, context)

    async def get_info(self, task_id: str, context: ServerCallContext) -> list[TaskPushNotificationConfig]:
        """As the SDK's."""
        with _quietly("Reading whom to notify"):
            return await super().get_info(task_id, context)

    async def delete_info(self, task_id: str, context: ServerCallContext, config_id: str | None = None) -> None:
        """As the SDK's."""
        _check("id", config_id or "")
        with _quietly("Deleting whom to notify"):
            await super().delete_info(task_id, context, config_id)


@contextmanager
def _quietly(what: str) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        log_failure(logger, what, error)
        raise InternalError(message="The server could not reach its tasks; its log says why.") from None


def _check(name: str, text: str) -> None:
    if _NUL in text:
        raise InvalidParamsError(message=f"{name} holds a NUL character; send an id without it.")
