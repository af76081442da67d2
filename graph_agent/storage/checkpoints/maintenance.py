"""Removes old checkpoints from a database of sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.base.database_urls import MEMORY, check_database_exists, file_of, is_postgres
from graph_agent.base.errors import ConfigError
from graph_agent.storage.checkpoints.open import open_saver
from graph_agent.storage.checkpoints.pruning.plan import Mark, Rule
from graph_agent.storage.checkpoints.pruning.tables import Tables
from graph_agent.storage.checkpoints.pruning.threads import PrunedSession, by_number, prune_thread, rule, total
from graph_agent.storage.locks.locks import database_key
from graph_agent.storage.locks.registry import is_idle

DEFAULT_AGE = timedelta(days=30)
"""Age from which checkpoints are removed if no rule is given."""
_MARKS = 500
"""Marks of pruned sessions stored at once."""


@dataclass(frozen=True, slots=True)
class PruneReport:
    """The result of `prune`."""

    sessions: tuple[PrunedSession, ...]
    """The sessions of which something was removed or that were skipped, in the order of their ids."""
    reasons: Mapping[str, int]
    """Reason → number of checkpoints of all sessions that remain for it, most frequent first."""
    checkpoints: int
    """Checkpoints removed."""
    writes: int
    """Stored writes removed with them."""
    bytes: int
    """Bytes of stored data removed, less those of the full copies that the remaining checkpoints received."""
    size_before: int
    """Bytes that the database took on disk before."""
    size_after: int
    """Bytes that it takes now. Less is possible later: PostgreSQL reuses free space, and an SQLite file of an older
    version is rewritten only if no run is under way."""
    dry_run: bool
    """Whether nothing was removed."""


async def prune(
    url: str,
    *,
    keep_last: int | None = None,
    older_than: timedelta | None = None,
    sessions: Iterable[str] | None = None,
    dry_run: bool = False,
    folder: Path | None = None,
) -> PruneReport:
    """Remove old checkpoints, and return the space to the file system.

    The state, the events and the open interrupts of each session remain, with its first checkpoint and the newest one
    of each branch. The answers of inputs with an id remain for a day, as such an input may be sent again. Older
    checkpoints are lost: the session cannot be read as it was then, nor continued from there. Every checkpoint that
    remains reads as before. A session with a run under way is skipped; a run that begins meanwhile waits for a few
    milliseconds.

    Args:
        url: `sqlite:///FILE` or `postgresql://…`; the tables may be those of LangGraph's own savers.
        keep_last: Number of the newest checkpoints to keep, in each session and each nested graph; at least 1.
        older_than: Keep checkpoints up to this age. Without both rules, the age is 30 days.
        sessions: Ids of the sessions to prune; None for all.
        dry_run: Whether to return what would be removed, and change nothing.
        folder: Same as for `open_saver`.

    Raises:
        SessionLostError: If the connection is lost that excludes runs of a session; earlier sessions stay pruned.
        ConfigError: If a rule is invalid or both are given, a session does not exist, or the database does not exist or
            is one in memory.
    """
    keep = _rule(keep_last, older_than)
    async with open_tables(url, folder) as (tables, saver):
        place = await database_key(saver)
        stored = {state.id: state for state in await tables.threads()}
        chosen = sorted(stored) if sessions is None else list(dict.fromkeys(sessions))
        if unknown := [id_ for id_ in chosen if id_ not in stored]:
            raise ConfigError(f"There is no session {unknown[0]!r} to prune; `graph-agent sessions` lists them.")
        before = await tables.size()
        found: list[PrunedSession] = []
        reasons, marks = Counter[str](), dict[str, Mark]()
        for id_ in chosen:
            if (unchanged := stored[id_].unchanged_since(keep)) is not None:
                reasons.update(unchanged.reasons)
                continue
            found.append(await prune_thread(tables, saver, place, id_, keep, dry_run=dry_run, marks=marks))
            reasons.update(found[-1].reasons)
            if len(marks) >= _MARKS and not dry_run:
                await tables.mark(marks)
                marks.clear()
        if marks and not dry_run:
            await tables.mark(marks)
        shown = tuple(each for each in found if each.checkpoints or each.bytes or each.skipped)
        if not dry_run and any(each.checkpoints or each.bytes for each in found):
            await tables.reclaim(lambda: _are_idle(saver, stored))
        return PruneReport(
            shown, by_number(reasons), *total(found), before, before if dry_run else await tables.size(), dry_run
        )


async def _are_idle(saver: BaseCheckpointSaver[Any], ids: Iterable[str]) -> bool:
    for id_ in ids:
        if not await is_idle(saver, id_):
            return False
    return True


def _rule(keep_last: int | None, older_than: timedelta | None) -> Rule:
    if keep_last is not None and older_than is not None:
        raise ConfigError("keep_last and older_than are given; give one of them.")
    if keep_last is not None:
        if keep_last < 1:
            raise ConfigError(f"keep_last={keep_last}: at least 1 checkpoint of a session remains; give 1 or more.")
        return rule(keep_last)
    age = DEFAULT_AGE if older_than is None else older_than
    if age < timedelta():
        raise ConfigError(f"older_than={age}: an age is not negative.")
    try:
        return rule(not_before=datetime.now(UTC) - age)
    except OverflowError:
        raise ConfigError(f"older_than={age}: no checkpoint can be that old; give a shorter time.") from None


@asynccontextmanager
async def open_tables(
    url: str, folder: Path | None = None, *, create: bool = False
) -> AsyncIterator[tuple[Tables, BaseCheckpointSaver[Any]]]:
    """Open the tables of a database, created if `create` and it is a missing SQLite file, and a saver of it.

    Raises `ConfigError` if the database does not exist, cannot be opened, or is one in memory.
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
