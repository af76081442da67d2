"""Removes old checkpoints from a database of sessions.

A session is one LangGraph thread. Trimming it, or pruning, removes all of its checkpoints but the first and the newest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.base.database_urls import MEMORY, check_database_exists, file_of, is_postgres
from graph_agent.base.errors import ConfigError
from graph_agent.core.state.locks import database_key
from graph_agent.core.state.registry import is_idle
from graph_agent.storage.checkpoints.open import open_saver
from graph_agent.storage.checkpoints.pruning.sessions import PrunedSession, by_number, prune_session, trimmed_before
from graph_agent.storage.checkpoints.pruning.tables import Tables

DEFAULT_IDLE = timedelta(days=30)
"""Default time since the newest checkpoint of a session after which the session is trimmed."""
USED = "of sessions that were used since"
"""Reason in a report for the checkpoints of sessions that are not idle long enough."""
_UUID6 = 6
"""The version of the ids that LangGraph gives to checkpoints, which begin with their time."""
_EPOCH = datetime(1582, 10, 15, tzinfo=UTC)
"""The beginning of the time in such an id, which counts 100 nanoseconds."""


@dataclass(frozen=True, slots=True)
class PruneReport:
    """The result of `prune`."""

    sessions: tuple[PrunedSession, ...]
    """The sessions of which something was removed or that were skipped, in the order in which they were pruned."""
    reasons: Mapping[str, int]
    """Reason → number of checkpoints of all sessions that remain for it, most frequent first."""
    checkpoints: int
    """Checkpoints removed."""
    writes: int
    """Stored writes removed with them."""
    bytes: int
    """Bytes of stored data removed, less the bytes of messages and events that were moved to the remaining checkpoint.
    """
    size_before: int
    """Bytes of the database on disk before the pruning."""
    size_after: int
    """Bytes of the database on disk now. It may shrink later: PostgreSQL reuses free space, and an SQLite file of an
    older version is rewritten only if no run is in progress. With `dry_run` it equals `size_before`.
    """
    dry_run: bool
    """Whether nothing was removed, and the report shows what would be."""


async def prune(
    url: str,
    *,
    idle_for: timedelta | None = None,
    keep_last: int | None = None,
    older_than: timedelta | None = None,
    sessions: Iterable[str] | None = None,
    dry_run: bool = False,
    folder: Path | None = None,
) -> PruneReport:
    """Trim idle sessions to their first and newest checkpoint, and return the space to the file system.

    The state, the messages and the events of each session remain. Its other checkpoints are lost: the session cannot be
    read as it was then, nor continued from there, and branches other than the newest are gone. Inputs with an id of the
    last day remain with the checkpoints since, as a caller may send such an input again. A session is skipped if a run
    of it is in progress, or if its newest input has not ended, e.g. because it waits for an answer. A run that begins
    during the pruning waits for the transaction that trims its session. A SQLite file that cannot free pages is
    rewritten only while all sessions are idle.

    Args:
        url: `sqlite:///FILE` or `postgresql://…`; the tables may be those of LangGraph's own savers.
        idle_for: Trim the sessions whose newest checkpoint is at least this old; None for 30 days.
        keep_last: 1 trims sessions that were used just now, as `idle_for=timedelta(0)` does. None leaves the rule to
            `idle_for`; any other number is an error.
        older_than: No longer supported: any value but None is an error; `idle_for` replaces it.
        sessions: Ids of the sessions to trim, if they are idle for long enough; None for all.
        dry_run: Whether to return what would be removed, and change nothing.
        folder: Folder to which a relative SQLite file refers; None for the current folder.

    Raises:
        SessionLostError: If the connection is lost that excludes runs of a session; earlier sessions stay pruned.
        ConfigError: If a rule is invalid, or no longer supported, or two are given, a session does not exist, or the
            database does not exist, cannot be opened or is one in memory.
        DatabaseLockedError: If another process keeps a SQLite file locked.
        ImportError: If the extra `postgres` is needed and not installed.
    """
    since = _idle_since(idle_for, keep_last, older_than)
    async with open_tables(url, folder) as (tables, saver):
        place = await database_key(saver)
        stored = {state.id: state for state in await tables.threads()}
        chosen = sorted(stored) if sessions is None else list(dict.fromkeys(sessions))
        if unknown := [id_ for id_ in chosen if id_ not in stored]:
            raise ConfigError(f"There is no session {unknown[0]!r} to prune; `graph-agent sessions` lists them.")
        before = await tables.size()
        found: list[PrunedSession] = []
        reasons = Counter[str]()
        for id_ in chosen:
            state = stored[id_]
            if (unchanged := trimmed_before(state)) is not None:
                reasons.update(unchanged)
            elif (used := _time_of(state.newest)) is not None and used > since:
                reasons[USED] += state.number
            else:
                found.append(await prune_session(tables, saver, place, id_, dry_run=dry_run))
                reasons.update(found[-1].reasons)
        shown = tuple(each for each in found if each.checkpoints or each.bytes or each.skipped)
        if not dry_run and any(each.checkpoints or each.bytes for each in found):
            await tables.reclaim(lambda: _are_idle(saver, stored))
        total = (sum(each.checkpoints for each in found), sum(each.writes for each in found))
        removed = sum(each.bytes for each in found)
        after = before if dry_run else await tables.size()
        return PruneReport(shown, by_number(reasons), *total, removed, before, after, dry_run)


async def _are_idle(saver: BaseCheckpointSaver[Any], ids: Iterable[str]) -> bool:
    """Whether no run of any of these sessions is in progress, as their locks show; stops at the first busy session.

    Raises what `is_idle` raises if a lock cannot be read.
    """
    for id_ in ids:
        if not await is_idle(saver, id_):
            return False
    return True


def _idle_since(idle_for: timedelta | None, keep_last: int | None, older_than: timedelta | None) -> datetime:
    """Convert the arguments of `prune` to a time (UTC): sessions with a newer checkpoint are not trimmed.

    Raises `ConfigError` if an argument is invalid, or both `keep_last` and `idle_for` are given.

    Args:
        idle_for: Time since the newest checkpoint; None for `DEFAULT_IDLE`. Zero gives the highest `datetime`. A
            negative time, or one that is too long for a `datetime`, is invalid.
        keep_last: 1 for the highest `datetime`, None to use `idle_for`; any other number is invalid.
        older_than: Invalid unless it is None.
    """
    if older_than is not None:
        raise ConfigError(
            f"older_than={older_than}: the age of single checkpoints is no rule now; give idle_for, the time since "
            "a session's newest checkpoint."
        )
    if keep_last is not None and keep_last != 1:
        raise ConfigError(
            f"keep_last={keep_last}: a trimmed session has its first and its newest checkpoint; give keep_last=1, or "
            "idle_for to trim only sessions that were not used for a time."
        )
    if keep_last is not None and idle_for is not None:
        raise ConfigError("keep_last and idle_for are given; give one of them.")
    idle = timedelta() if keep_last is not None else DEFAULT_IDLE if idle_for is None else idle_for
    if idle < timedelta():
        raise ConfigError(f"idle_for={idle}: a time is not negative.")
    if not idle:
        return datetime.max.replace(tzinfo=UTC)  # the clock that an id was made by may be ahead
    try:
        return datetime.now(UTC) - idle
    except OverflowError:
        raise ConfigError(f"idle_for={idle}: no session can be that old; give a shorter time.") from None


def _time_of(checkpoint_id: str) -> datetime | None:
    """Return the time (UTC) in the id of a checkpoint, a UUID of version 6; None for an id of another form."""
    try:
        id_ = UUID(checkpoint_id)
    except ValueError:
        return None
    if id_.version != _UUID6:
        return None
    # The 60 bits of the time are in three parts of the id, the highest first, around the version number.
    ticks = (id_.int >> 96 << 28) | (id_.int >> 80 & 0xFFFF) << 12 | (id_.int >> 64 & 0xFFF)
    return _EPOCH + timedelta(microseconds=ticks // 10)


@asynccontextmanager
async def open_tables(
    url: str, folder: Path | None = None, *, create: bool = False
) -> AsyncIterator[tuple[Tables, BaseCheckpointSaver[Any]]]:
    """Open the tables of a database of sessions, and a saver of the same database; close both on exit.

    Args:
        url: `sqlite:///FILE` or `postgresql://…`.
        folder: Folder to which a relative SQLite file refers; None for the current folder.
        create: Whether to create a missing SQLite file.

    Raises:
        ConfigError: If the database does not exist (without `create`), cannot be opened, or is one in memory.
        DatabaseLockedError: If another process keeps a SQLite file locked.
        ImportError: If the extra `postgres` is needed and not installed.
    """
    if url == MEMORY:
        raise ConfigError("db='memory:' ends with its process; use 'sqlite:///FILE' or 'postgresql://…'.")
    if not create:
        check_database_exists(url, folder)
    async with open_saver(url, folder) as saver:
        if is_postgres(url):
            from graph_agent.storage.checkpoints.pruning.postgres import PostgresTables

            yield PostgresTables(saver.conn), saver  # type: ignore[attr-defined]  # the pool of every PostgreSQL saver
            return
        from graph_agent.storage.checkpoints.pruning.sqlite import SqliteTables

        await saver.list_threads(limit=1)  # type: ignore[attr-defined]  # creates the tables of an empty file
        yield SqliteTables(file_of(url, folder).resolve()), saver
