"""Plans how one session is trimmed to its first and newest checkpoint, with the history that the newest needs.

A session is one LangGraph thread. A delta channel, such as an agent's messages and events, has no value in most
checkpoints: its value is rebuilt from the writes of the ancestors, back to the last one with a full copy. These writes
are never copied as a whole, because each pruning would then cost as much as the session. They move into *parts*:
removed checkpoints form groups, and the first checkpoint of a group receives the writes of all. A part only holds
history: it is not listed, and nothing can continue it (see `JOINED`). A later pruning adds to the last part and leaves
the others as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from graph_agent.base.input_ids import ANSWERS, INPUT_ID
from graph_agent.core.state.own_checkpoint import BY_A_PERSON
from graph_agent.storage.checkpoints.format import JOINED

NEWEST = "the newest"
"""The constants from here to `ACTIVE` are reasons for which checkpoints remain, as reports show them."""
FIRST = "the first of a session"
HISTORY = "the history of later ones"
RECENT = "of recent inputs with an id, and later"
ANSWERED = "the answer of a recent input with an id"
ACTIVE = "of a delegate or subgraph that has not ended"
PART_BYTES = 2**19
"""Bytes of writes in a part after which another part begins: a page of old events is read in whole parts."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a plan uses of one stored checkpoint."""

    id: str
    parent: str | None
    """Id of the parent checkpoint; None for the first one of a thread."""
    ts: str
    """When it was created: ISO 8601, UTC; empty if unknown."""
    metadata: Mapping[str, Any]
    values: frozenset[str]
    """Channels with a stored value; for a delta channel, this is a full copy."""
    deltas: frozenset[str]
    """Channels that are known to be delta channels."""
    size: int
    """Bytes of the checkpoint and its metadata."""
    writes: Mapping[str, tuple[int, int]]
    """Channel → number and bytes of the pending writes of this checkpoint."""

    @property
    def is_part(self) -> bool:
        """Whether the checkpoint only holds a part of the history."""
        return bool(self.metadata.get(JOINED))

    @property
    def source(self) -> str:
        """What created the checkpoint: `input`, `loop`, `update` or `fork`; empty if unknown."""
        return str(self.metadata.get("source") or "")

    def bytes_of(self, channels: Iterable[str]) -> int:
        """Return the bytes of the writes to some channels; channels without writes count 0."""
        return sum(self.writes.get(name, (0, 0))[1] for name in channels)


Rows = Mapping[str, Row]
"""Id → checkpoint, for all checkpoints of one namespace."""


@dataclass(slots=True)
class CheckpointGroup:
    """A group of checkpoints, of which the first (the head) remains and receives the writes of the others."""

    ids: list[str]
    """Ids of the checkpoints, oldest first; each is the parent of the next."""
    channels: frozenset[str]
    """Delta channels whose writes are still needed. A later full copy replaces the writes of the others."""
    size: int = 0
    """Bytes of these writes."""


@dataclass(slots=True)
class Trim:
    """What a pruning does to the checkpoints of one namespace."""

    rows: Rows
    cut: str | None = None
    """Id of the checkpoint whose ancestors are trimmed; None if all checkpoints remain, or none."""
    kept: set[str] = field(default_factory=set)
    """Ids of the checkpoints that remain as they are."""
    parts: list[CheckpointGroup] = field(default_factory=list)
    """The history that `cut` needs, oldest first."""
    first: str | None = None
    """Id of the session's first checkpoint if it remains in addition to `cut`; None if not."""
    reason: str = NEWEST
    """Why the checkpoints in `kept` remain, except the first."""

    @property
    def removed(self) -> list[str]:
        """Ids of the checkpoints that are removed."""
        remaining = self.kept | {part.ids[0] for part in self.parts}
        return [id_ for id_ in self.rows if id_ not in remaining]

    @property
    def new_parts(self) -> list[CheckpointGroup]:
        """The parts that this pruning changes: they receive writes, or their head becomes one that only holds
        history.
        """
        return [part for part in self.parts if len(part.ids) > 1 or not self.rows[part.ids[0]].is_part]

    def parents(self) -> dict[str, str | None]:
        """Return checkpoint id → new parent, None for no parent, for the checkpoints whose parent changes.

        These are heads of parts and the cut: each becomes the child of the one before it, the oldest the child of
        `first`. Empty without a cut.
        """
        if self.cut is None:
            return {}
        below = self.first
        found: dict[str, str | None] = {}
        for id_ in [*(part.ids[0] for part in self.parts), self.cut]:
            if id_ != self.first and self.rows[id_].parent != below and (below or self.rows[id_].parent in self.rows):
                found[id_] = below
            below = id_
        return found

    def parents_first(self) -> list[str]:
        """Return the ids of the checkpoints that remain, each after its remaining ancestors."""
        remaining = self.rows.keys() - {*self.removed}
        order: dict[str, None] = {}
        for id_ in sorted(remaining):  # ids do not always grow along a branch
            path: dict[str, None] = {}
            at: str | None = id_
            while at is not None and at in self.rows and at not in order and at not in path:
                path[at] = None
                at = self.rows[at].parent
            order |= dict.fromkeys(reversed(path))
        return [each for each in order if each in remaining]

    def metadata_of(self, id_: str) -> Mapping[str, Any]:
        """Return the metadata that a checkpoint has after the pruning.

        That of the head of a part gets the mark `JOINED` and loses the id of its input; any other is unchanged.
        """
        metadata = self.rows[id_].metadata
        if id_ not in {part.ids[0] for part in self.parts}:
            return metadata
        # Without the input's id: a search for the input must not find a part.
        return {**{name: value for name, value in metadata.items() if name != INPUT_ID}, JOINED: True}

    def reasons(self) -> dict[str, str]:
        """Return checkpoint id → why it remains, for each remaining checkpoint.

        `HISTORY` for one that only holds history, `FIRST` for the first, and `reason` for the others; if that is
        `RECENT`, the newest one has `NEWEST`.
        """
        parts = dict.fromkeys((part.ids[0] for part in self.parts), HISTORY)
        stored = {id_: HISTORY for id_ in self.kept if self.rows[id_].is_part}
        first = {self.first: FIRST} if self.first is not None else {}
        newest = {max(self.kept): NEWEST} if self.kept and self.reason == RECENT else {}
        return {**dict.fromkeys(self.kept, self.reason), **newest, **first, **parts, **stored}


def lineage(rows: Rows, id_: str | None) -> list[Row]:
    """Return the checkpoint with an id and its stored ancestors, newest first; an empty list for None or an unknown id.

    `rows` are the checkpoints of a namespace, by id.
    """
    path: dict[str, Row] = {}
    while id_ is not None and id_ in rows and id_ not in path:
        path[id_] = rows[id_]
        id_ = rows[id_].parent
    return [*path.values()]


def descendants(rows: Rows, id_: str) -> set[str]:
    """Return the ids of a checkpoint, itself included, and of all checkpoints that continue it, directly or not."""
    children: dict[str, list[str]] = {}
    for row in rows.values():
        if row.parent is not None:
            children.setdefault(row.parent, []).append(row.id)
    found, waiting = set[str](), [id_]
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += children.get(at, ())
    return found


def cut_candidates(rows: Rows, since: str) -> list[str]:
    """Return the ids of checkpoints to which a namespace may be trimmed, newest first; empty without a checkpoint.

    They are on the newest branch, and not newer than the last checkpoint of any input with an id that has a checkpoint
    since the time `since` (ISO 8601, UTC), so that the answers to these inputs remain.
    """
    listed = {id_: row for id_, row in rows.items() if not row.is_part}
    if not listed:
        return []
    path = [row.id for row in lineage(listed, max(listed))]
    position = {id_: number for number, id_ in enumerate(path)}
    answers = {row.metadata[INPUT_ID]: row for _, row in sorted(listed.items()) if row.metadata.get(INPUT_ID)}
    begin = 0
    for row in answers.values():
        if row.ts >= since:
            meets = next((position[each.id] for each in lineage(listed, row.id) if each.id in position), len(path))
            begin = max(begin, meets)
    return path[begin:]


def trim(rows: Rows, cut: str, *, is_root: bool) -> Trim | None:
    """Return how a namespace is trimmed to the checkpoint `cut`, and what continues it; None if it cannot be trimmed.

    In the root namespace (`is_root`) the session's first checkpoint remains, too. It cannot be trimmed if a person's
    edit would remain without the checkpoint before it, with which it is compared, or, in other namespaces, if another
    branch is newer than the cut.
    """
    kept = descendants(rows, cut)
    path = lineage(rows, cut)[1:]
    newer = sorted(id_ for id_, row in rows.items() if not row.is_part)
    for before, id_ in pairwise(newer):
        if id_ > cut and id_ in kept and rows[id_].source in BY_A_PERSON and before not in kept:
            return None
    if not is_root and any(id_ > cut and id_ not in kept for id_ in newer):
        return None
    oldest = path[-1] if path else rows[cut]
    first = oldest.id if is_root and oldest.source == "input" and not oldest.is_part else None
    needed = frozenset(name for row in (rows[cut], *path) for name in row.deltas) - rows[cut].values
    members: list[tuple[Row, frozenset[str], bool]] = []
    for row in path:
        if row.id == first or not needed:
            break
        members.append((row, needed, bool(needed & row.values)))
        needed -= row.values
    found = Trim(rows, cut, kept | ({first} if first is not None else set()), _parts(members), first)
    found.reason = NEWEST if len(kept) == 1 else RECENT
    return found


def _parts(members: list[tuple[Row, frozenset[str], bool]]) -> list[CheckpointGroup]:
    """Group checkpoints into parts, of which only the first checkpoint will remain; oldest part first.

    A part begins at a full copy, at a part of an earlier pruning, and when the part before has `PART_BYTES`.

    Args:
        members: Newest first: each checkpoint, the channels that it is needed for, and whether it has a full copy of
            one.
    """
    parts: list[CheckpointGroup] = []
    for row, channels, is_copy in reversed(members):
        # A full copy begins a part, because the head keeps it. So does an earlier part: its writes are not moved again.
        if not parts or is_copy or row.is_part or parts[-1].size >= PART_BYTES:
            parts.append(CheckpointGroup([], channels))
        parts[-1].ids.append(row.id)
        parts[-1].size += row.bytes_of(channels)
    return parts


def is_obsolete(namespace: str, rows: Rows, root: Trim) -> bool:
    """Whether a namespace belongs only to calls of checkpoints that the plan of the root namespace removes.

    The name of such a namespace has a task's id. Without one, it is the namespace of a subgraph that continues from
    call to call, which is never obsolete.
    """
    callers = {(row.metadata.get("parents") or {}).get("") for row in rows.values()}
    return ":" in namespace and None not in callers and callers.isdisjoint(root.kept)


def answers(rows: Rows, since: str) -> Trim:
    """Return the plan of the namespace `ANSWERS`, in which an earlier version stored the results of pruned inputs.

    Its checkpoints since the time `since` (ISO 8601, UTC) remain.
    """
    return Trim(rows, kept={id_ for id_, row in rows.items() if row.ts >= since}, reason=ANSWERED)


def untouched(rows: Rows, reason: str) -> Trim:
    """Return a plan by which all checkpoints of a namespace remain for a reason."""
    return Trim(rows, kept={*rows}, reason=reason)


def depends_on_time(namespace: str, plan: Trim) -> bool:
    """Whether a later pruning would remove more of a namespace, even if nothing is added until then."""
    return bool(plan.kept) and (namespace == ANSWERS or plan.reason == RECENT)
