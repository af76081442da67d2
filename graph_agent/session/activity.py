"""Reaches sessions of other processes: which of them run or were cut off, notes to them, and locks for their servers.

The registry of runs is loaded on first use: commands that only list the sessions of a file do not need it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

from graph_agent.base.database_urls import file_of, is_postgres
from graph_agent.base.errors import InputError, did_you_mean
from graph_agent.base.types import SessionStatus
from graph_agent.storage.checkpoints.format import has_tasks

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

    from graph_agent.base.inbox import ControlMessage

RunningCheck = Callable[[str], Awaitable[bool]]
"""Returns whether a run of a session, given by its id, is in progress in any process."""

Activity = Literal["running", "waiting", "interrupted", "idle", "newer", "damaged"]
# Not imported from `_compat`: lists of sessions do not load LangGraph.
_INTERRUPT, _RESUME = "__interrupt__", "__resume__"
"""Channels of the pending writes of an interrupt and of its answer."""


def check_status_filter(status: str) -> str:
    """Return a status filter in normal form: trimmed, in lower case, with underscores in place of spaces.

    Known filters are each `Activity` except `idle`, and the names of `SessionStatus`. Raises `InputError` for any other
    text, with a similar name as a suggestion.
    """
    wanted = status.strip().lower().replace(" ", "_")
    known = {*get_args(Activity), *(each.lower() for each in SessionStatus)} - {"idle"}
    if wanted not in known:
        raise InputError(f"{status!r} is no status; {did_you_mean(wanted, known)}")
    return wanted


def group_of(user: str | None) -> str | None:
    """Return the text with which the ids of a user's sessions begin, e.g. `ada/`; None for the sessions of all users.

    A server names the sessions of an API key in this way.
    """
    return None if user is None else f"{user}/"


async def is_interrupted(saver: BaseCheckpointSaver[Any], session_id: str) -> bool:
    """Return whether a crash cut off a session's newest input, and no process runs it."""
    newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
    return newest is not None and await session_activity(session_id, newest, running_check(saver)) == "interrupted"


async def session_activity(session_id: str, newest: CheckpointTuple, is_running: RunningCheck) -> Activity:
    """Return what a session does: `running`, `waiting` for an answer, `interrupted` by a crash, or `idle`.

    `idle` if the newest input has ended; else `running` if a run is in progress; else `waiting` if a task of the newest
    checkpoint has an open interrupt; else `interrupted`.

    Args:
        session_id: Id of the session.
        newest: The newest checkpoint of the session.
        is_running: Returns whether a run of a session is in progress; not called if the newest input has ended.
    """
    if not has_tasks(newest.checkpoint):
        return "idle"
    if await is_running(session_id):
        return "running"
    return "waiting" if _is_waiting(newest) else "interrupted"


def _is_waiting(newest: CheckpointTuple) -> bool:
    """Return whether a task of a thread's newest checkpoint waits for an answer.

    Such a task has written an interrupt, and nothing else but answers that resume it.
    """
    written: dict[str, set[str]] = {}
    for task_id, channel, _ in newest.pending_writes or []:
        written.setdefault(task_id, set()).add(channel)
    return any(_INTERRUPT in channels and channels <= {_INTERRUPT, _RESUME} for channels in written.values())


def running_check(saver: BaseCheckpointSaver[Any]) -> RunningCheck:
    """Return a function that reports whether a run of a session is in progress in any process on a checkpointer's
    database.
    """

    async def is_running(session_id: str) -> bool:
        """Return whether a run of the session is in progress."""
        from graph_agent.core.state.registry import is_idle

        return not await is_idle(saver, session_id)

    return is_running


def running_check_at(address: str, saver: BaseCheckpointSaver[Any]) -> RunningCheck:
    """Return a function that returns whether a run of a session is in progress, without loading the graph's modules.

    For a SQLite file, the function reads only the file of locks, and sees only the runs of other processes. For
    PostgreSQL it is that of `running_check`, which loads the modules at its first call. Raises `ConfigError` for an
    address that `file_of` refuses.

    Args:
        address: URL of the database, which other processes use.
        saver: A checkpointer of the database.
    """
    if is_postgres(address):
        return running_check(saver)
    from graph_agent.core.state.locks import SessionLocks

    # The lock file alone is read: `is_idle` loads the graph's modules.
    locks, file = SessionLocks(), file_of(address).resolve()

    async def is_running(session_id: str) -> bool:
        """Return whether a run of the session is in progress in another process."""
        return not locks.is_free(file, session_id).result()

    return is_running


async def deliver_note(address: str, session_id: str, note: ControlMessage) -> None:
    """Store a note in a session's inbox, where the session's run reads it.

    In a SQLite file with the Store's table it is written by SQL, without loading LangGraph. For PostgreSQL, and for a
    file without this table, it is added through the Store of the database, which is created if missing. Raises
    `ConfigError` if the database cannot be opened, and `sqlite3.Error` if its file cannot be written.

    Args:
        address: URL of the database.
        session_id: Id of the session, which need not exist.
        note: The note: a command or a message to the session.
    """
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
    """Hold the lock of a session within the context, so that no run of it begins in any process on the database.

    Raises `SessionBusyError` if a run is in progress. A run that is just ending is waited for, for some seconds.
    """
    from graph_agent.core.state.locks import database_key
    from graph_agent.core.state.registry import locked_session
    from graph_agent.core.state.run import Run, RunIdentity

    async with locked_session(await database_key(saver), Run(RunIdentity(session_id))):
        yield


async def sees_other_processes(saver: BaseCheckpointSaver[Any]) -> bool:
    """Return whether runs of other processes can be detected, because the sessions are in a SQLite file or in
    PostgreSQL.
    """
    from graph_agent.core.state.locks import database_key, guards_processes

    return guards_processes(await database_key(saver))


def use_daemon_threads_of_own_loop() -> None:
    """Replace the default executor of the running event loop by one with daemon threads.

    Only the program that owns the loop may call it.

    Blocking calls of a run then do not delay the exit of the process. Each call replaces the executor again.
    """
    import asyncio

    from graph_agent.base._internal.sync_bridge import DaemonExecutor
    from graph_agent.core.state.registry import is_within_a_run

    asyncio.get_running_loop().set_default_executor(DaemonExecutor(is_within_a_run))
