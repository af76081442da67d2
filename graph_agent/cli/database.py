"""Access of commands to the database of sessions, without an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from graph_agent.errors import ConfigError, InputError
from graph_agent.persistence.open import open_reader
from graph_agent.persistence.urls import MEMORY, check_database_exists, file_of, is_postgres, without_password

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver


def shared_database(address: str) -> str:
    """Return the URL of a database that other processes reach, if it exists; it is not created.

    Args:
        address: The URL.

    Raises:
        ConfigError: If there is no such database, or it is in the memory of one process.
    """
    if address == MEMORY:
        raise ConfigError(
            "db='memory:' is this process's alone; sessions are reached through 'sqlite:///FILE' or 'postgresql://…'."
        )
    check_database_exists(address)
    return address


def no_session(session_id: str, address: str) -> InputError:
    """Return the error for a session that a database does not have."""
    shown = without_password(address)
    return InputError(f"There is no session {session_id!r} in {shown}; `graph-agent sessions` lists them.")


@asynccontextmanager
async def open_sessions(
    address: str,
) -> AsyncIterator[tuple[BaseCheckpointSaver[Any], Callable[[str], Awaitable[bool]]]]:
    """Open a database for reading.

    Args:
        address: The URL of a database that other processes reach.

    Yields:
        Its saver, and a function that returns whether a run of a session is under way in any process.

    Raises:
        ConfigError: If the database does not exist or cannot be opened.
    """
    async with open_reader(shared_database(address)) as saver:
        yield saver, _postgres_runs(saver) if is_postgres(address) else _sqlite_runs(address)


def _postgres_runs(saver: BaseCheckpointSaver[Any]) -> Callable[[str], Awaitable[bool]]:
    async def is_running(session_id: str) -> bool:
        from graph_agent.runs.registry import is_idle

        return not await is_idle(saver, session_id)

    return is_running


def _sqlite_runs(address: str) -> Callable[[str], Awaitable[bool]]:
    from graph_agent.runs.locks import SessionLocks

    # The lock file alone is read: `is_idle` loads the graph's modules.
    locks, file = SessionLocks(), file_of(address).resolve()

    async def is_running(session_id: str) -> bool:
        return not locks.is_free(file, session_id).result()

    return is_running
