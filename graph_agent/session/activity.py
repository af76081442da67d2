"""Reaches sessions of other processes: which of them run, notes to them, and locks for programs that serve them.

The registry of runs is loaded on first use: commands that only list the sessions of a file do not need it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from graph_agent.base.database_urls import file_of, is_postgres

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from graph_agent.base.inbox import ControlMessage

RunningCheck = Callable[[str], Awaitable[bool]]
"""Returns whether a run of a session, given by its id, is in progress in any process."""


def running_check(saver: BaseCheckpointSaver[Any]) -> RunningCheck:
    """Return a function that returns whether a run of a session is in progress in any process on a saver's database."""

    async def is_running(session_id: str) -> bool:
        """Whether a run of a session is in progress."""
        from graph_agent.storage.locks.registry import is_idle

        return not await is_idle(saver, session_id)

    return is_running


def running_check_at(address: str, saver: BaseCheckpointSaver[Any]) -> RunningCheck:
    """Return a check as `running_check` does, for the saver of the database URL `address`, which other processes use.

    It does not see runs of this process in an SQLite file.
    """
    if is_postgres(address):
        return running_check(saver)
    from graph_agent.storage.locks.locks import SessionLocks

    # The lock file alone is read: `is_idle` loads the graph's modules.
    locks, file = SessionLocks(), file_of(address).resolve()

    async def is_running(session_id: str) -> bool:
        """Whether a run of a session is in progress in another process."""
        return not locks.is_free(file, session_id).result()

    return is_running


async def deliver_note(address: str, session_id: str, note: ControlMessage) -> None:
    """Store a note in a session's inbox, by SQL if it is a SQLite file that permits it, else through the store."""
    import asyncio

    from graph_agent.base.inbox import StoreInbox, inbox_namespace
    from graph_agent.storage.checkpoints.sqlite_reader import put_item

    # Opening the store imports LangGraph, which takes longer than the rest of the command.
    if not is_postgres(address):
        file = file_of(address)
        if await asyncio.to_thread(put_item, file, inbox_namespace(session_id), note.key, note.as_value()):
            return
    from graph_agent.storage.checkpoints.open import open_store

    async with open_store(address) as store:
        await StoreInbox(store).add(session_id, note)


@asynccontextmanager
async def lock_idle_session(saver: BaseCheckpointSaver[Any], session_id: str) -> AsyncIterator[None]:
    """Hold the lock of a session during the block, so that no run begins in any process on the database.

    Raises `SessionBusyError` if a run is in progress, after a wait of seconds for one that is ending.
    """
    from graph_agent.core.runs.run import Run, RunIdentity
    from graph_agent.storage.locks.locks import database_key
    from graph_agent.storage.locks.registry import locked_session

    async with locked_session(await database_key(saver), Run(RunIdentity(session_id))):
        yield


async def sees_other_processes(saver: BaseCheckpointSaver[Any]) -> bool:
    """Whether runs of other processes are seen: the saver's sessions are in an SQLite file or in PostgreSQL."""
    from graph_agent.storage.locks.locks import database_key, guards_processes

    return guards_processes(await database_key(saver))


def use_daemon_threads_of_own_loop() -> None:
    """Replace the default executor of the running event loop by one of daemon threads, for the program that owns it.

    Blocking calls of a run then do not delay the exit of the process. Works for any kind of loop; each call replaces
    the executor.
    """
    import asyncio

    from graph_agent.base._internal.sync_bridge import DaemonExecutor
    from graph_agent.storage.locks.registry import is_within_a_run

    asyncio.get_running_loop().set_default_executor(DaemonExecutor(is_within_a_run))
