"""Trims sessions that no run uses, while runs of others continue. Each session is one transaction.

A session is one LangGraph thread; trimming it leaves its first and newest checkpoint. The history that the newest one
needs moves into parts: checkpoints that only hold the writes of a group.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import TASKS

from graph_agent.base.errors import DamagedSessionError, SessionBusyError
from graph_agent.base.input_ids import ANSWERS
from graph_agent.core.state.locks import database_key
from graph_agent.core.state.own_checkpoint import BY_A_PERSON
from graph_agent.core.state.registry import is_idle, maintained, pruning
from graph_agent.storage.checkpoints.delta_values import config_at
from graph_agent.storage.checkpoints.fenced_writes import Statement
from graph_agent.storage.checkpoints.format import JOINED, has_tasks
from graph_agent.storage.checkpoints.pruning.moves import ValueWrite, moved_writes
from graph_agent.storage.checkpoints.pruning.plan import (
    ACTIVE,
    RECENT,
    Rows,
    Trim,
    answers,
    cut_candidates,
    depends_on_time,
    is_obsolete,
    lineage,
    trim,
    untouched,
)
from graph_agent.storage.checkpoints.pruning.tables import (
    PRUNED_NOTE,
    Tables,
    ThreadChangedError,
    ThreadState,
    UnreadableCheckpointError,
)

REPEATABLE = timedelta(days=1)
"""Age up to which inputs with an id are recognized: a caller may send such an input again."""
_OWN_SENDS = 4
"""The first format of LangGraph's checkpoints that do not read pending sends from their parent."""
_MOST_PLANS = 3
"""Maximum times that a session is planned while runs change it."""
_RUNNING = "a run of it is under way"
"""The constants from here to `_CHANGED` are reasons for which a session is skipped, as reports show them."""
_WAITING = "its newest input has not ended: it waits for an answer, was stopped, or was edited by a person"
_PRUNED = "another pruning of it is under way"
_CHANGED = "runs continued it meanwhile"

_AT = "thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
_DELETE_WRITES = f"DELETE FROM {{writes}} WHERE {_AT}"
_DELETE = f"DELETE FROM checkpoints WHERE {_AT}"
_ADD_WRITE = (
    "INSERT INTO {writes} (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, {value})"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_SET_METADATA = f"UPDATE checkpoints SET metadata = {{json}} WHERE {_AT}"
_SET_PARENT = f"UPDATE checkpoints SET parent_checkpoint_id = ? WHERE {_AT}"
# With those that an earlier version left in case it was killed.
_DELETE_NOTES = "DELETE FROM {writes} WHERE thread_id = ? AND checkpoint_id = ''"


@dataclass(frozen=True, slots=True)
class PrunedSession:
    """What pruning did to one session, or would do."""

    id: str
    """The id of the session."""
    checkpoints: int = 0
    """Number of checkpoints removed, or changed into parts that are not listed."""
    writes: int = 0
    """Stored writes removed with them."""
    bytes: int = 0
    """Bytes of stored data by which the session is smaller; negative if it grows."""
    kept: int = 0
    """Number of checkpoints that remain."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Reason → number of checkpoints that remain for it, most frequent first."""
    skipped: str | None = None
    """Why nothing was done, as the end of a sentence; None if the session was pruned."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What pruning does to one session."""

    thread_id: str
    state: ThreadState
    """The newest checkpoint and the number of checkpoints when the session was read."""
    namespaces: Mapping[str, Trim]
    """Namespace → what happens to its checkpoints."""
    moved: Mapping[tuple[str, str], Sequence[ValueWrite]]
    """Namespace and id of the head of a part → the writes that the part receives."""

    async def report(self, tables: Tables) -> PrunedSession:
        """Return what the plan removes, in numbers of checkpoints, writes and bytes, and how many remain for which
        reason.

        Checkpoints that become parts count as removed, moved writes do not. The session's `tables` are read, and
        nothing is changed.
        """
        checkpoints = writes = size = 0
        for namespace, plan in self.namespaces.items():
            hidden = [part.ids[0] for part in plan.new_parts if not plan.rows[part.ids[0]].is_part]
            gone = [plan.rows[id_] for id_ in plan.removed]
            emptied = [*gone, *(plan.rows[id_] for id_ in hidden)]
            added = [value for (at, _), moved in self.moved.items() if at == namespace for _, _, value in moved]
            checkpoints += len(emptied)
            writes += sum(number for row in emptied for number, _ in row.writes.values()) - len(added)
            size += sum(row.size for row in gone) - sum(map(len, added))
            size += sum(row.bytes_of(row.writes) for row in emptied)
            if gone:
                size += await tables.unused_bytes((self.thread_id, namespace), plan.removed)
        remaining = sum(len(plan.kept) for plan in self.namespaces.values())
        return PrunedSession(self.thread_id, checkpoints, writes, size, remaining, by_number(self._reasons()))

    def statements(self, tables: Tables) -> list[Statement]:
        """Return the SQL statements that carry out the plan, in order: delete checkpoints, move writes, change parents,
        clean up.

        The last one notes what remains, so that a later pruning can skip the session; it is left out if a later pruning
        may remove more. Statements without rows are left out.
        """
        found: list[Statement] = []
        for namespace, plan in self.namespaces.items():
            at = self.thread_id, namespace
            heads = [part.ids[0] for part in plan.new_parts if not plan.rows[part.ids[0]].is_part]
            removed = [(*at, id_) for id_ in plan.removed]
            found += [(_DELETE_WRITES, [*removed, *((*at, id_) for id_ in heads)]), (_DELETE, removed)]
            for head in {part.ids[0] for part in plan.new_parts}:
                row = plan.rows[head]
                begin = sum(number for number, _ in row.writes.values()) if row.is_part else 0
                moved = enumerate(self.moved.get((namespace, head), ()), begin)
                found.append((_ADD_WRITE, [(*at, head, JOINED, number, *write) for number, write in moved]))
            found.append((_SET_METADATA, [(json.dumps(plan.metadata_of(id_)), *at, id_) for id_ in heads]))
            found.append((_SET_PARENT, [(parent, *at, id_) for id_, parent in plan.parents().items()]))
            found += tables.cleaning(at)
        found.append((_DELETE_NOTES, [(self.thread_id,)]))
        if (mark := self._mark()) is not None:
            found.append((_ADD_WRITE, [(self.thread_id, "", "", PRUNED_NOTE, 0, PRUNED_NOTE, "json", mark)]))
        return [(sql, rows) for sql, rows in found if rows]

    def _reasons(self) -> Counter[str]:
        """Count the remaining checkpoints of all namespaces by reason."""
        return Counter(reason for plan in self.namespaces.values() for reason in plan.reasons().values())

    def _mark(self) -> bytes | None:
        """Return the note of what remains: `{"newest": …, "number": …, "trimmed": {reason: number}}` as JSON.

        Returns None if a later pruning may remove more although nothing was added.
        """
        if any(depends_on_time(name, plan) for name, plan in self.namespaces.items()):
            return None
        remaining = [id_ for plan in self.namespaces.values() for id_ in plan.rows.keys() - {*plan.removed}]
        mark = {"newest": max(remaining, default=""), "number": len(remaining), "trimmed": self._reasons()}
        return json.dumps(mark).encode()


def trimmed_before(state: ThreadState) -> Mapping[str, int] | None:
    """Return reason → number of remaining checkpoints, if the thread has not changed since its last pruning.

    Returns None if it has, or was never pruned, or a later pruning could remove more.
    """
    try:
        mark: Any = json.loads(state.mark) if state.mark else {}
        known = mark.get("newest"), mark.get("number")
        return dict(mark["trimmed"]) if known == (state.newest, state.number) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # a mark of another version


async def plan_namespaces(
    tables: Tables, saver: BaseCheckpointSaver[Any], thread_id: str, since: str | None = None
) -> dict[str, Trim] | None:
    """Return namespace → plan, the root first; None if no checkpoint can be removed. Nothing is changed.

    Args:
        tables: The database, from which all checkpoints of the thread are read.
        saver: A saver of the same database.
        thread_id: The thread.
        since: Time (ISO 8601, UTC) since which inputs with an id remain with all that follows them; None for
            `REPEATABLE` ago.

    Raises:
        UnreadableCheckpointError: If a stored row cannot be decoded, or is of a newer version.
        DamagedSessionError: If `saver` reads an incomplete checkpoint.
        NotImplementedError: If a value is encrypted, or stored in another form that `saver` does not read.
    """
    namespaces = await tables.load(thread_id)
    rows = namespaces.pop("", {})
    since = (datetime.now(UTC) - REPEATABLE).isoformat() if since is None else since
    cut = await _ended(saver, (thread_id, ""), rows, cut_candidates(rows, since))
    root = trim(rows, cut, is_root=True) if cut is not None else None
    if root is None:
        return None
    plans = {"": root}
    for namespace, inner in namespaces.items():
        if namespace == ANSWERS:
            plans[namespace] = answers(inner, since)
        elif is_obsolete(namespace, inner, root):
            plans[namespace] = Trim(inner)
        else:
            # A run from a checkpoint that remains begins a subgraph at the one that was its newest then.
            is_kept = root.reason == RECENT
            older = [id_ for id_, row in inner.items() if not row.is_part and not (is_kept and id_ > (cut or ""))]
            newest = await _ended(saver, (thread_id, namespace), inner, [max(older)] if older else [])
            plan = trim(inner, newest, is_root=False) if newest is not None else None
            plans[namespace] = plan or untouched(inner, ACTIVE)
    return plans


async def _ended(saver: BaseCheckpointSaver[Any], at: tuple[str, str], rows: Rows, ids: Sequence[str]) -> str | None:
    """Return the first of the checkpoints `ids` with which a run ended; None if there is none.

    A checkpoint that a person has edited, that has tasks to run, or that does not exist any more is skipped. `at` are
    the thread and the namespace, `rows` its stored checkpoints.
    """
    for id_ in ids:
        if rows[id_].source not in BY_A_PERSON:
            found = await saver.aget_tuple(config_at(at, id_))
            # Before this format, a checkpoint has the tasks that its parent's writes sent, and its parent changes.
            is_old = found is not None and found.checkpoint.get("v", 1) < _OWN_SENDS
            sends = is_old and TASKS in lineage(rows, id_)[-1].writes
            if found is not None and not sends and not has_tasks(found.checkpoint):
                return id_
    return None


async def plan_session(tables: Tables, saver: BaseCheckpointSaver[Any], thread_id: str) -> SessionPlan | None:
    """Return the plan of pruning a session (a LangGraph thread): which checkpoints remain, and which writes move to
    them.

    Returns None if no checkpoint can be removed. Changes nothing. Raises `UnreadableCheckpointError`,
    `DamagedSessionError` or `NotImplementedError` if a part of the session cannot be read.
    """
    state = await tables.extent(thread_id)
    namespaces = await plan_namespaces(tables, saver, thread_id)
    if namespaces is None:
        return None
    moved = {
        (namespace, part): writes
        for namespace, plan in namespaces.items()
        for part, writes in (await moved_writes(tables, saver, (thread_id, namespace), plan)).items()
    }
    return SessionPlan(thread_id, state, namespaces, moved)


async def prune_session(
    tables: Tables, saver: BaseCheckpointSaver[Any], place: Hashable, thread_id: str, *, dry_run: bool
) -> PrunedSession:
    """Trim one session, in one transaction, and return what was removed.

    The result has no numbers if there is nothing to remove. A session is skipped, with a reason in the result, if a run
    or another pruning of it is in progress, if its newest input has not ended, if a part of it cannot be read, or if
    runs change it `_MOST_PLANS` times between reading and removal. Runs that begin during the transaction wait.

    Args:
        tables: The database.
        saver: A saver of the same database.
        place: Identity of the database (`database_key`), for the locks of sessions.
        thread_id: The session.
        dry_run: Whether to change nothing, and return what would be removed.

    Raises:
        SessionLostError: If the lock that excludes runs is lost before the commit; the session is unchanged.
    """
    async with pruning(place, thread_id) as is_alone:
        if not is_alone:
            return PrunedSession(thread_id, skipped=_PRUNED)
        for _ in range(_MOST_PLANS):
            if not await is_idle(saver, thread_id):
                return PrunedSession(thread_id, skipped=_RUNNING)
            try:
                if await _waits(saver, thread_id):
                    return PrunedSession(thread_id, skipped=_WAITING)
                plan = await plan_session(tables, saver, thread_id)
            except (DamagedSessionError, UnreadableCheckpointError) as error:
                return PrunedSession(thread_id, skipped=str(error))
            except NotImplementedError as error:  # from the serializer
                return PrunedSession(thread_id, skipped=f"its checkpoints are encrypted, or stored otherwise: {error}")
            if plan is None:
                return PrunedSession(thread_id)
            report = await plan.report(tables)
            if dry_run:
                return report
            # Runs are excluded for the transaction only. One that has run since the session was read has changed it.
            async with maintained(place, thread_id) as maintenance:
                if not maintenance.is_held:
                    return PrunedSession(thread_id, skipped=_RUNNING)
                with suppress(ThreadChangedError):
                    await tables.apply(plan.statements(tables), maintenance.confirm, plan.state)
                    return report
        return PrunedSession(thread_id, skipped=_CHANGED)


async def _waits(saver: BaseCheckpointSaver[Any], thread_id: str) -> bool:
    """Whether the newest input of a session has not ended: its newest checkpoint has tasks to run, or is an edit by a
    person.

    False for a session without a checkpoint.
    """
    newest = await saver.aget_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
    return newest is not None and (has_tasks(newest.checkpoint) or newest.metadata.get("source") in BY_A_PERSON)


async def prune_to_newest(
    tables: Tables, saver: BaseCheckpointSaver[Any], thread_ids: Sequence[str], strategy: str
) -> None:
    """Prune threads in order, as LangGraph's `aprune` defines it; unknown threads are ignored.

    Args:
        tables: The database.
        saver: A saver of the same database.
        thread_ids: The threads.
        strategy: `keep_latest` trims the threads, `delete` removes them.

    Raises:
        TypeError: If `thread_ids` is a single text.
        ValueError: If the strategy is another.
        SessionBusyError: If a thread was skipped, e.g. because a run of it is in progress; earlier ones stay pruned.
        SessionLostError: If the lock that excludes runs of a thread is lost; earlier ones stay pruned.
    """
    if isinstance(thread_ids, str):
        raise TypeError(f"thread_ids={thread_ids!r}: pass a list of thread ids.")
    if strategy not in ("keep_latest", "delete"):
        raise ValueError(f"strategy={strategy!r}: use 'keep_latest' or 'delete'.")
    place = await database_key(saver)
    for thread_id in thread_ids:
        if strategy == "delete":
            await saver.adelete_thread(thread_id)
            continue
        pruned = await prune_session(tables, saver, place, thread_id, dry_run=False)
        if pruned.skipped is not None:
            raise SessionBusyError(f"Session {thread_id!r} was not pruned: {pruned.skipped}. Try again later.")


def by_number(reasons: Counter[str]) -> dict[str, int]:
    """Return reason → number of checkpoints, the largest number first; equal numbers in alphabetical order."""
    return dict(sorted(reasons.items(), key=lambda each: (-each[1], each[0])))
