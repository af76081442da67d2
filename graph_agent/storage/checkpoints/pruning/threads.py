"""Removes old checkpoints of threads, while runs of other threads continue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.base.errors import DamagedSessionError, SessionBusyError
from graph_agent.base.input_ids import ANSWERS
from graph_agent.storage.checkpoints.pruning.histories import Histories
from graph_agent.storage.checkpoints.pruning.plan import (
    ANSWERED,
    GROUP,
    At,
    Mark,
    NamespacePlan,
    Node,
    Rule,
    answer_of,
    has_answer,
    mark_of,
    plan_thread,
)
from graph_agent.storage.checkpoints.pruning.tables import (
    Batch,
    Confirm,
    Joined,
    Tables,
    ThreadChangedError,
    UnreadableCheckpointError,
    no_check,
)
from graph_agent.storage.locks.locks import database_key
from graph_agent.storage.locks.registry import is_idle, maintained, pruning

_BATCH = GROUP
"""Checkpoints per transaction; in SQLite, other processes cannot write meanwhile."""
_PAUSE_S = 0.005
"""Seconds between two transactions, in which other processes write."""
_REPEATABLE = timedelta(days=1)
"""Age up to which the answers of inputs with an id remain, as a caller may send such an input again."""
_RUNNING = "a run of it is under way"
_PRUNED = "another pruning of it is under way"
_CHANGED = "a run continued it from an old checkpoint meanwhile"


@dataclass(frozen=True, slots=True)
class PrunedSession:
    """What pruning did to one session, or would do."""

    id: str
    """The session's id."""
    checkpoints: int = 0
    """Checkpoints removed."""
    writes: int = 0
    """Stored writes removed with them."""
    bytes: int = 0
    """Bytes of stored data by which the session is smaller; negative if it grows."""
    kept: int = 0
    """Checkpoints that remain."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Reason → number of checkpoints that remain for it, most frequent first."""
    skipped: str | None = None
    """Why the rest of it was not pruned; None if all was."""


class _SessionInUseError(Exception):
    """A run of the session is under way."""


def rule(keep_last: int = 1, not_before: datetime | None = None) -> Rule:
    """Return a rule that also keeps the answers of inputs with an id for a day; `not_before` has its zone."""
    since = datetime.now(UTC) - _REPEATABLE
    return Rule(keep_last, not_before.isoformat() if not_before is not None else None, since.isoformat())


async def prune_thread(
    tables: Tables,
    saver: BaseCheckpointSaver[Any],
    place: Hashable,
    thread_id: str,
    keep: Rule,
    *,
    dry_run: bool,
    marks: dict[str, Mark] | None = None,
) -> PrunedSession:
    """Prune one thread; at every moment, each stored checkpoint reads as before.

    `place` identifies the database, for the locks of sessions. `marks` receives the thread's mark, to be stored.
    """
    # A plan is valid only as long as no other pruning changes the session.
    async with pruning(place, thread_id) as is_alone:
        if not is_alone:
            return PrunedSession(thread_id, skipped=_PRUNED)
        return await _prune_alone(tables, saver, place, thread_id, keep, dry_run=dry_run, marks=marks)


async def _prune_alone(
    tables: Tables,
    saver: BaseCheckpointSaver[Any],
    place: Hashable,
    thread_id: str,
    keep: Rule,
    *,
    dry_run: bool,
    marks: dict[str, Mark] | None,
) -> PrunedSession:
    if not await is_idle(saver, thread_id):
        return PrunedSession(thread_id, skipped=_RUNNING)
    try:
        plans = await plan_with_answers(tables, saver, thread_id, keep)
    except DamagedSessionError as error:
        return PrunedSession(thread_id, skipped=str(error))
    except UnreadableCheckpointError as error:
        return PrunedSession(thread_id, skipped=str(error))
    done = _Progress(tables, saver, place, dry_run=dry_run)
    skipped = None
    try:
        uncleaned = await tables.uncleaned(thread_id)
        for checkpoint_id in plans[""].answers if "" in plans else ():
            await done.store_answer(thread_id, checkpoint_id)
        for namespace, plan in plans.items():
            await done.prune((thread_id, namespace), plan)
        for namespace in uncleaned:
            if namespace not in plans or not plans[namespace].removed:
                await done.clean((thread_id, namespace), set())
    except _SessionInUseError:
        skipped = _RUNNING
    except ThreadChangedError:
        skipped = _CHANGED
    except DamagedSessionError as error:
        skipped = str(error)
    if marks is not None and skipped is None and (mark := mark_of(plans, keep, done.checkpoints)) is not None:
        marks[thread_id] = mark
    stored = sum(len(plan.nodes) for plan in plans.values())
    reasons = Counter(reason for plan in plans.values() for reason in plan.reasons.values())
    if done.answers:
        reasons[ANSWERED] += done.answers
    return PrunedSession(
        thread_id,
        done.checkpoints,
        done.writes,
        done.bytes,
        stored - done.checkpoints + done.answers,
        by_number(reasons) if skipped is None else {},
        skipped,
    )


async def plan_with_answers(
    tables: Tables, saver: BaseCheckpointSaver[Any], thread_id: str, keep: Rule
) -> dict[str, NamespacePlan]:
    """Return the plan of each namespace of a thread; inputs with an id whose answer cannot be stored apart are kept.

    A checkpoint that cannot be read raises `UnreadableCheckpointError`, or `DamagedSessionError` if such an input ends
    there.
    """
    namespaces = await tables.load(thread_id)
    nodes = {node.id: node for node in namespaces.get("", ())}

    async def stands_alone(node: Node) -> bool:
        """Whether a checkpoint holds the whole answer of one request, and not of one that continued an input."""
        if node.deltas - node.foldable or not await has_answer(saver, thread_id, node.id):
            return False
        at = node
        for _ in nodes:
            if at.source == "input" or at.parent not in nodes or nodes[at.parent].is_joined:
                break
            at = nodes[at.parent]
            if at.input_id != node.input_id:
                return at.source == "input" or await has_answer(saver, thread_id, at.id)
        return True

    unanswered = [id_ for id_ in keep.answers(nodes.values()) if not await stands_alone(nodes[id_])]
    return plan_thread(namespaces, keep, unanswered)


async def prune_to_newest(
    tables: Tables, saver: BaseCheckpointSaver[Any], thread_ids: Sequence[str], strategy: str
) -> None:
    """Prune as LangGraph's `aprune` does; unknown threads are ignored.

    The strategy `keep_latest` keeps the newest checkpoint of each branch, with those that it is continued with;
    `delete` removes the threads. Raises `TypeError` for a text, `ValueError` for another strategy, and
    `SessionBusyError` if a run of a thread is under way.
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
        pruned = await prune_thread(tables, saver, place, thread_id, rule(), dry_run=False)
        if pruned.skipped is not None:
            raise SessionBusyError(f"Session {thread_id!r} was not pruned: {pruned.skipped}. Try again later.")


class _Progress:
    """Executes the plans of one thread, and counts."""

    def __init__(self, tables: Tables, saver: BaseCheckpointSaver[Any], place: Hashable, *, dry_run: bool) -> None:
        self._tables = tables
        self._saver = saver
        self._place = place
        self._dry_run = dry_run
        self.checkpoints = self.writes = self.bytes = self.answers = 0

    async def store_answer(self, thread_id: str, checkpoint_id: str) -> None:
        """Store the answer of an input apart from the checkpoint that holds it, which is removed later."""
        recorder, statements = self._tables.recorder(self._saver.serde)
        checkpoint, metadata = await answer_of(self._saver, thread_id, checkpoint_id)
        to: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ANSWERS}}
        recorder.put(to, checkpoint, metadata, checkpoint["channel_versions"])
        if not self._dry_run:
            async with self._held(thread_id) as confirm:
                await self._tables.store(statements, confirm)
        self.answers += 1
        rows = [row for _, each in statements for row in each]
        self.bytes -= sum(len(value) for row in rows for value in row if isinstance(value, bytes))

    async def prune(self, at: At, plan: NamespacePlan) -> None:
        """Store the histories that kept checkpoints need, then remove the others, descendants first."""
        if not (plan.removed or plan.joins):
            return
        doomed = plan.nodes.keys() - plan.kept
        # The history of the newest is whole, or the session is damaged, and then nothing of it is changed.
        histories = Histories(self._tables, self._saver, at, plan)
        await histories.check()
        joined = [(group, await histories.join(group)) for group in plan.joins]
        for checkpoint_id, channels in reversed(plan.folds.items()):
            copies = await histories.copy(checkpoint_id, channels)
            async with self._held(at[0]) as confirm:
                self.bytes -= await self._tables.add_copies(
                    at, checkpoint_id, copies, dry_run=self._dry_run, confirm=confirm
                )
        moved = {id_ for group in plan.joins for id_ in group.ids}
        await self._remove_rest(at, plan, [node for node in plan.removed if node.id not in moved], doomed)
        for group, writes in joined:
            head, *gone = (plan.nodes[id_] for id_ in group.ids)
            batch = Batch(group.ids[1:], {group.next: head.id}, (), Joined(head.id, writes))
            await self._remove(at, batch, plan, doomed)
            self._count(gone)
            self.bytes += head.write_bytes - sum(len(value) for _, _, value in writes)
            self.writes += head.writes - len(writes)
        await self.clean(at, doomed - plan.heads)

    async def _remove_rest(self, at: At, plan: NamespacePlan, removed: list[Node], doomed: set[str]) -> None:
        rest = {node.id for node in removed}
        orphans = [id_ for id_ in plan.kept | plan.heads if plan.nodes[id_].parent in rest]
        children = Counter(node.parent for node in plan.nodes.values())
        gone = set[str]()
        leftovers: set[str | None] = {node.id for node in removed if node.is_leftover}
        for start in range(0, len(removed), _BATCH):
            batch = removed[start : start + _BATCH]
            ids = {node.id for node in batch}
            gone.update(ids)
            children.subtract(node.parent for node in batch)
            moved = [id_ for id_ in orphans if plan.nodes[id_].parent in ids]
            parents = {id_: plan.remaining_ancestor(id_, rest) for id_ in moved}
            leftovers |= {node.parent for node in batch if node.parent in rest and not children[node.parent]}
            leftovers -= gone
            await self._remove(at, Batch([*ids], parents, [*filter(None, leftovers)]), plan, doomed)
            self._count(batch)

    async def _remove(self, at: At, batch: Batch, plan: NamespacePlan, doomed: set[str]) -> None:
        if not self._dry_run:
            async with self._held(at[0]) as confirm:
                await self._tables.remove(at, batch, max(plan.nodes), doomed, confirm)
            await asyncio.sleep(_PAUSE_S)

    def _count(self, removed: Sequence[Node]) -> None:
        self.checkpoints += len(removed)
        self.writes += sum(node.writes for node in removed)
        self.bytes += sum(node.size for node in removed)

    async def clean(self, at: At, gone: set[str]) -> None:
        """Remove the stored values that no remaining checkpoint of a namespace refers to."""
        self.bytes += await self._tables.clean(at, gone, dry_run=self._dry_run)

    @asynccontextmanager
    async def _held(self, session_id: str) -> AsyncIterator[Confirm]:
        """Exclude runs of the session, except in a dry run; yield the check that they are still excluded."""
        if self._dry_run:
            yield no_check
            return
        async with maintained(self._place, session_id) as maintenance:
            if not maintenance.is_held:
                raise _SessionInUseError
            yield maintenance.confirm


def total(sessions: Sequence[PrunedSession]) -> tuple[int, int, int]:
    """Return the sums of checkpoints, writes and bytes."""
    return (
        sum(each.checkpoints for each in sessions),
        sum(each.writes for each in sessions),
        sum(each.bytes for each in sessions),
    )


def by_number(reasons: Counter[str]) -> dict[str, int]:
    """Return reasons with their numbers of checkpoints, the largest first; equal numbers in alphabetical order."""
    return dict(sorted(reasons.items(), key=lambda each: (-each[1], each[0])))
