"""Plans the removal of one thread's checkpoints, so that the others read as before, and marks pruned threads.

The checkpoints of a namespace are a tree. A delta channel has no value in most checkpoints: its value is rebuilt from
the writes of the ancestors, back to the last one with a full copy. A kept checkpoint whose parent is removed therefore
receives full copies (a *fold*). Only channels with a known reducer can be folded; for any other delta channel the
ancestors are kept, back to its last full copy.

A long history is not copied, as each pruning would then cost as much as the whole session. It stays where it is: the
removed ancestors form groups, and the first of a group receives the writes of all (a *join*). Such a checkpoint only
holds a part of the history: it is not listed, and nothing can continue it (see `JOINED`).

A run of an agent that continues a checkpoint settles the calls of earlier runs. It reads the checkpoint of a wave that
has just ended, the one before an input that no plan has read, and those that a person edited (`execution.open_calls`,
`runs.own_checkpoint`), so these are kept, too. This holds for each kept checkpoint, as each may be continued.

Answers of inputs with an id are stored apart from the checkpoints that produced them, which can then be removed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, LiteralString

from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, CheckpointTuple

from graph_agent.base._compat.checkpoints import delta_snapshot, replay_delta
from graph_agent.base.input_ids import ANSWERS
from graph_agent.core.state.channels import GrowingDelta, MessagesChannel
from graph_agent.core.state.events import append_events
from graph_agent.core.state.lengths import COUNTERS, LENGTHS, removed
from graph_agent.storage.checkpoints.format import has_tasks, part_of_history

NEWEST, YOUNG = "the newest", "younger than the limit"
BRANCH, FIRST = "the end of a branch", "the first of a session"
REPLAYED, READ_WITH = "the start of a subgraph", "read with another one"
SHARED = "shared by many branches, of which copies would take more space"
HISTORY = "the history of later ones"
ANSWERED = "the answer of a recent input with an id"
UNANSWERED = "of a recent input with an id that waits or was continued"
NO_CHANNELS: frozenset[str] = frozenset()
_OWN_SENDS = 4
"""The first format of checkpoints that do not read pending sends from their parent."""
_BY_A_PERSON = ("update", "fork")
"""Sources of checkpoints that a person has made from others."""
COPIED_BYTES = 2**20
"""Bytes from which a history is no longer copied."""
GROUP = 500
"""Maximum checkpoints of a group."""
_GROUP_BYTES = 2**20
"""Bytes of a group's writes from which another group begins."""


@dataclass(frozen=True, slots=True)
class Node:
    """One stored checkpoint."""

    id: str
    parent: str | None
    """The id of its parent; None for a first checkpoint."""
    ts: str
    """Its time: ISO 8601, with its offset."""
    within: str | None = None
    """The checkpoint of the surrounding graph whose task made it; None in the root namespace, or if not recorded."""
    version: int = 4
    """The format of the checkpoint."""
    source: str = ""
    """What made it: `input`, `loop`, `update` or `fork`."""
    is_agent: bool = False
    """Whether it is one of an agent of this package."""
    has_sends: bool = False
    """Whether tasks that start from it have sent others."""
    ends_wave: bool = False
    """Whether the tasks that start from it are the calls of an agent's wave, and one has ended."""
    holds_input: bool = False
    """Whether it holds the graph's input, as the first checkpoint of a thread does."""
    deltas: frozenset[str] = NO_CHANNELS
    """Delta channels whose values are rebuilt from ancestors."""
    foldable: frozenset[str] = NO_CHANNELS
    """Those of `deltas` whose reducer is known."""
    stored: frozenset[str] = NO_CHANNELS
    """Channels with a value of their own; only those that are a delta channel somewhere matter."""
    input_id: str | None = None
    """The id of its input, by which a repeated request is recognized; None without one."""
    is_leftover: bool = False
    """Whether a pruning that was interrupted has removed its descendants, so that it is no branch."""
    size: int = 0
    """Bytes of the checkpoint and its writes."""
    writes: int = 0
    """Number of its stored writes."""
    write_bytes: int = 0
    """Bytes of its writes."""
    delta_bytes: int = 0
    """Bytes of its writes to delta channels, its full copies included."""
    is_joined: bool = False
    """Whether it holds the writes of removed descendants."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which checkpoints to keep; the newest of each branch is kept in any case.

    Kept are the newest `keep_last` of each namespace, those from `not_before` on (ISO 8601, UTC), and the answers of
    inputs with an id since `answers_since`.
    """

    keep_last: int = 1
    not_before: str | None = None
    answers_since: str | None = None
    joins: bool = True
    """Whether long histories are joined; an export has copies of them."""

    def keeps(self, newest_first: list[Node]) -> Iterator[tuple[str, str]]:
        """Yield the ids of the checkpoints to keep by age or position, each with the reason."""
        for position, node in enumerate(newest_first):
            if position < self.keep_last:
                yield node.id, NEWEST
            elif self.not_before is not None and node.ts >= self.not_before:
                yield node.id, YOUNG

    def answers(self, nodes: Iterable[Node]) -> list[str]:
        """Return the newest checkpoint of each input whose answer is kept, oldest first."""
        since = self.answers_since
        found = {
            node.input_id: node.id
            for node in sorted(nodes, key=lambda node: node.id)
            if node.input_id is not None and since is not None and node.ts >= since
        }
        return sorted(found.values())


@dataclass(frozen=True, slots=True)
class Join:
    """A group of removed checkpoints, of which the first receives the writes of all."""

    ids: Sequence[str]
    """The checkpoints, oldest first; each is the parent of the next."""
    next: str
    """The checkpoint whose parent is the last of them."""
    channels: frozenset[str]
    """Delta channels whose writes are still needed; a later full copy replaces those of the others."""


@dataclass(slots=True)
class NamespacePlan:
    """What happens to one namespace."""

    nodes: dict[str, Node]
    """All checkpoints, by id."""
    kept: set[str] = field(default_factory=set)
    """Ids of the checkpoints that remain."""
    folds: dict[str, frozenset[str]] = field(default_factory=dict)
    """Kept checkpoint → channels of which it receives a full copy."""
    joins: list[Join] = field(default_factory=list)
    """The groups whose writes are joined, oldest first on each branch."""
    heads: set[str] = field(default_factory=set)
    """Ids of the first checkpoints of all groups, which remain only for the history."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Remaining checkpoint → why it remains."""
    answers: list[str] = field(default_factory=list)
    """Removed checkpoints that hold the answers of inputs, which are stored apart (see `ANSWERS`)."""

    @property
    def removed(self) -> list[Node]:
        """The checkpoints to remove, each after its descendants."""
        remaining = self.kept | self.heads
        return [self.nodes[id_] for id_ in _descendants_first(self.nodes) if id_ not in remaining]

    def parents_first(self) -> list[str]:
        """Return the ids of all checkpoints, each after its ancestors."""
        return _descendants_first(self.nodes)[::-1]

    def remaining_ancestor(self, node_id: str, removed: set[str]) -> str | None:
        """Return the nearest ancestor that is not among those removed so far; None if there is none."""
        at, passed = self.nodes[node_id].parent, {node_id}
        while at is not None and at in removed and at not in passed:
            passed.add(at)
            at = self.nodes[at].parent
        return None if at in passed else at


def plan_thread(
    namespaces: Mapping[str, Iterable[Node]], rule: Rule, unanswered: Collection[str] = ()
) -> dict[str, NamespacePlan]:
    """Return the plan of each namespace of a thread, nested namespaces first.

    The checkpoints `unanswered` of the root namespace hold no answer and remain.
    """
    plans: dict[str, NamespacePlan] = {}
    for namespace in sorted(namespaces, key=lambda each: each.count("|") + bool(each)):
        plan = NamespacePlan({node.id: node for node in namespaces[namespace]})
        outer = max((each for each in plans if _is_within(namespace, each)), key=len, default=None)
        around = plans[outer] if outer is not None else None
        if namespace == ANSWERS:
            plan.reasons = {id_: ANSWERED for id_, node in plan.nodes.items() if node.ts >= (rule.answers_since or "")}
            plan.kept = set(plan.reasons)
        elif around is None or not _is_obsolete(namespace.removeprefix(outer or ""), plan, around):
            _keep(plan, rule, around, unanswered, is_root=not namespace)
        plans[namespace] = plan
    return dict(reversed(plans.items()))


def _keep(
    plan: NamespacePlan, rule: Rule, around: NamespacePlan | None, unanswered: Collection[str], *, is_root: bool
) -> None:
    nodes = plan.nodes
    newest_first = sorted(
        (node for node in nodes.values() if not node.is_joined), key=lambda node: node.id, reverse=True
    )
    parents = {node.parent for node in nodes.values()}
    chosen = dict(rule.keeps(newest_first))
    ends = [node.id for node in newest_first if node.id not in parents and not node.is_leftover]
    first = [node for node in newest_first if node.parent is None or node.parent not in nodes]
    for reason, ids in (
        (BRANCH, ends),
        (REPLAYED, _replayed(newest_first, around) if around is not None else ()),
        # The first checkpoint of a session holds its title and its position in the list of sessions.
        (FIRST, [node.id for node in first if is_root and node.holds_input]),
        (UNANSWERED, nodes.keys() & unanswered if is_root else ()),
    ):
        chosen = {**dict.fromkeys(ids, reason), **chosen}
    older = {node.id: before.id for node, before in pairwise(newest_first)}
    plan.kept = _with_chains(nodes, chosen, older)
    if (
        is_root
        and len([id_ for id_ in plan.kept if plan.remaining_ancestor(id_, nodes.keys() - plan.kept) is None]) > 1
    ):
        # A session is listed once for each checkpoint without a parent.
        plan.kept = _with_chains(nodes, plan.kept | {node.id for node in first}, older)
    plan.reasons = {id_: chosen.get(id_, READ_WITH) for id_ in plan.kept}
    plan.folds = _folds(plan)
    copies = _copied_bytes(plan)
    if rule.joins:
        _join_long_histories(plan, copies)
    if len(plan.folds) > 1 and sum(map(copies.__getitem__, plan.folds)) >= sum(node.size for node in plan.removed):
        # Many branches share most of their history: to copy it for each would take more space than it frees.
        plan.reasons = {id_: plan.reasons.get(id_, SHARED) for id_ in nodes}
        plan.kept, plan.folds, plan.joins, plan.heads = set(nodes), {}, [], set()
    if is_root:
        plan.answers = [id_ for id_ in rule.answers(nodes.values()) if id_ not in plan.kept]


def _is_obsolete(inner: str, plan: NamespacePlan, around: NamespacePlan) -> bool:
    """Whether a namespace, inside that of the graph around it, belongs to tasks of removed checkpoints only."""
    if not around.kept:
        return True
    if ":" not in inner:
        return False  # without a task's id, it is the namespace of a subgraph that continues from call to call
    return all(node.within in around.nodes and node.within not in around.kept for node in plan.nodes.values())


def _replayed(newest_first: list[Node], around: NamespacePlan) -> set[str]:
    """Return the checkpoints that a subgraph starts from if a run replays a kept checkpoint of the graph around it."""
    found, position = set[str](), 0
    for replayed in sorted(around.kept, reverse=True):
        while position < len(newest_first) and newest_first[position].id >= replayed:
            position += 1
        if position < len(newest_first):
            found.add(newest_first[position].id)
    return found


def _reads_parent(node: Node, parent: Node) -> bool:
    """Whether a run that continues a checkpoint reads its parent."""
    if node.source in _BY_A_PERSON or (node.version < _OWN_SENDS and parent.has_sends):
        return True
    return node.is_agent and (node.source == "input" or parent.source in ("input", *_BY_A_PERSON) or parent.ends_wave)


def _with_chains(nodes: Mapping[str, Node], chosen: Iterable[str], older: Mapping[str, str]) -> set[str]:
    """Add the checkpoints that chosen ones, and those added, are read with; `older` may be on another branch."""
    kept = set(chosen)
    waiting = [*kept]
    while waiting:
        node = nodes[waiting.pop()]
        missing = set(node.deltas - node.foldable)
        at = nodes.get(node.parent or "")
        needed = set[str]()
        if at is not None and _reads_parent(node, at):
            needed.add(at.id)
        if node.source in _BY_A_PERSON and node.id in older:
            # Whether the parent was the newest checkpoint distinguishes an edit from a return to an older one.
            needed.add(older[node.id])
        waiting += needed - kept
        kept |= needed
        passed = {node.id}
        while missing and at is not None and at.id not in passed:
            passed.add(at.id)
            missing = (missing - at.stored) & at.deltas  # a channel without either had no value there
            if at.id in kept and missing <= at.deltas - at.foldable:
                break  # its own chain holds the rest
            if at.id not in kept:
                kept.add(at.id)
                waiting.append(at.id)
            at = nodes.get(at.parent or "")
    return kept


def _folds(plan: NamespacePlan) -> dict[str, frozenset[str]]:
    return {
        id_: node.foldable
        for id_ in sorted(plan.kept)
        if (node := plan.nodes[id_]).foldable and node.parent in plan.nodes and node.parent not in plan.kept
    }


def _copied_bytes(plan: NamespacePlan) -> dict[str, int]:
    """Estimate the bytes of each fold: those of the writes that it replaces."""
    total: dict[str | None, int] = {}
    for id_ in reversed(_descendants_first(plan.nodes)):
        node = plan.nodes[id_]
        total[id_] = node.delta_bytes + (0 if node.stored else total.get(node.parent, 0))
    return {id_: total.get(plan.nodes[id_].parent, 0) for id_ in plan.folds}


def _join_long_histories(plan: NamespacePlan, copies: Mapping[str, int]) -> None:
    """Replace the folds of long histories by joins, where no other branch needs the removed checkpoints."""
    paths = {id_: _removed_ancestors(plan, id_) for id_ in plan.folds}
    needed = Counter(id_ for path in paths.values() for id_ in path)
    for id_, path in paths.items():
        nodes = [plan.nodes[each] for each in path]
        if copies[id_] < COPIED_BYTES or any(needed[each] > 1 for each in path):
            continue
        groups = _groups(nodes, plan.folds.pop(id_))
        ends = [*(group[0].id for group, _ in groups[1:]), id_]
        for (group, channels), end in zip(groups, ends, strict=True):
            plan.heads.add(group[0].id)
            plan.reasons[group[0].id] = HISTORY
            if len(group) > 1 or not group[0].is_joined:
                plan.joins.append(Join([node.id for node in group], end, channels))


def _removed_ancestors(plan: NamespacePlan, node_id: str) -> list[str]:
    """Return the ancestors of a checkpoint up to the first that is kept, oldest first."""
    path: dict[str, None] = {}
    at = plan.nodes[node_id].parent
    while at in plan.nodes and at not in plan.kept and at not in path:
        path[at] = None
        at = plan.nodes[at].parent
    return [*path][::-1]


def _groups(path: list[Node], channels: frozenset[str]) -> list[tuple[list[Node], frozenset[str]]]:
    """Divide the ancestors that a history needs, oldest first; each group has the channels of which it holds writes.

    A checkpoint with the last full copy of a channel begins a group, as does each that was joined before. Of the joined
    ones, only the last may receive more writes, so that a pruning does not write the others again.
    """
    copied = {name: max((at for at, node in enumerate(path) if name in node.stored), default=-1) for name in channels}
    joined = [at for at, node in enumerate(path) if node.is_joined]
    groups: list[tuple[list[Node], frozenset[str]]] = []
    size, is_closed = 0, True
    for at in range(max(0, min(copied.values())), len(path)):
        node = path[at]
        if is_closed or node.is_joined or at in copied.values() or size >= _GROUP_BYTES or len(groups[-1][0]) >= GROUP:
            groups.append(([], frozenset(name for name in channels if at >= copied[name])))
            size = 0
        groups[-1][0].append(node)
        size += node.delta_bytes
        is_closed = node.is_joined and at != joined[-1]
    return groups


def _descendants_first(nodes: Mapping[str, Node]) -> list[str]:
    """Return the ids such that each follows its descendants; ids do not always grow along a branch."""
    depth: dict[str, int] = {}
    for id_ in nodes:
        path: list[str] = []
        at: str | None = id_
        while at is not None and at in nodes and at not in depth:
            depth[at] = -1  # marks the path, so that a loop of parents ends
            path.append(at)
            at = nodes[at].parent
        base = depth.get(at, -1) if at is not None else -1
        for offset, each in enumerate(reversed(path), 1):
            depth[each] = base + offset
    return sorted(nodes, key=lambda id_: (-depth[id_], id_))


def _is_within(namespace: str, outer: str) -> bool:
    return bool(namespace) if not outer else namespace.startswith(f"{outer}|")


CHANNELS: Mapping[str, DeltaChannel[Any]] = {"messages": MessagesChannel(), "events": GrowingDelta(append_events)}
"""The delta channels of an agent's state."""
_MARK = "loop"
"""A channel that only an agent's state has."""

At = tuple[str, str]
"""A thread and a checkpoint namespace."""

Copies = Mapping[str, tuple[str, bytes]]
"""Channel → the type and the bytes of a serialized full copy."""


def agent_deltas(versions: Iterable[str]) -> frozenset[str]:
    """Return the delta channels of which this module can make copies, if these versions are an agent's."""
    names = frozenset(versions)
    return names & CHANNELS.keys() if _MARK in names else frozenset()


async def delta_values(
    saver: BaseCheckpointSaver[Any], at: At, checkpoint_id: str, channels: Iterable[str]
) -> dict[str, Any]:
    """Return the values at a checkpoint of delta channels in `CHANNELS` that have no stored value in it."""
    names = sorted(channels)
    histories = await saver.aget_delta_channel_history(config=config_at(at, checkpoint_id), channels=names)
    return {name: replay_delta(CHANNELS[name], histories[name]) for name in names}


_INTERNAL = ("__", "branch:")
"""Prefixes of LangGraph's own channels."""


async def has_answer(saver: BaseCheckpointSaver[Any], thread_id: str, checkpoint_id: str) -> bool:
    """Whether an input ended with a checkpoint of the root namespace, so that no task starts from it."""
    found = await saver.aget_tuple(config_at((thread_id, ""), checkpoint_id))
    return found is not None and not has_tasks(found.checkpoint)


async def answer_of(
    saver: BaseCheckpointSaver[Any], thread_id: str, checkpoint_id: str
) -> tuple[Checkpoint, CheckpointMetadata]:
    """Return an input's last checkpoint as the namespace of answers has it: with the input's own history only."""
    found = await saver.aget_tuple(config_at((thread_id, ""), checkpoint_id))
    if found is None:
        raise removed(thread_id, checkpoint_id)
    own = {name: delta_snapshot(value) for name, value in (await _own_history(saver, thread_id, found)).items()}
    values = {name: each for name, each in found.checkpoint["channel_values"].items() if not name.startswith(_INTERNAL)}
    values = {**values, **own}
    versions = {name: found.checkpoint["channel_versions"][name] for name in values}
    checkpoint: Any = {**found.checkpoint, "channel_values": values, "channel_versions": versions, "versions_seen": {}}
    metadata: Any = {name: each for name, each in found.metadata.items() if name not in (COUNTERS, LENGTHS)}
    return checkpoint, metadata


async def _own_history(saver: BaseCheckpointSaver[Any], thread_id: str, found: CheckpointTuple) -> dict[str, list[Any]]:
    """Return the messages and events of the input that a checkpoint ends, from its user message on."""
    first_id = (found.checkpoint["channel_values"].get("loop") or {}).get("last_input_id")
    steps: list[list[tuple[str, str, Any]]] = []
    at: CheckpointTuple | None = found
    while at is not None and at.parent_config is not None:
        at = await saver.aget_tuple(part_of_history(at.parent_config))
        steps.append([write for write in (at.pending_writes or () if at is not None else ()) if write[1] in CHANNELS])
        if not _only_adds(steps[-1]):
            break
        if any(getattr(message, "id", None) == first_id for message in _entries(steps[-1], "messages")):
            writes = [write for step in reversed(steps) for write in step]
            histories: Any = {name: {"writes": [each for each in writes if each[1] == name]} for name in CHANNELS}
            entries = {name: replay_delta(channel, histories[name]) for name, channel in CHANNELS.items()}
            if (own := _since_input(entries, first_id)) is not None:
                return own
    at_end = (thread_id, ""), found.checkpoint["id"]
    stored = {name: getattr(found.checkpoint["channel_values"].get(name), "value", None) for name in CHANNELS}
    whole = await delta_values(saver, *at_end, [name for name, value in stored.items() if value is None])
    entries = {name: value for name, value in {**stored, **whole}.items() if value is not None}
    return _since_input(entries, first_id) or entries


def _since_input(entries: dict[str, list[Any]], first_id: str | None) -> dict[str, list[Any]] | None:
    """Return the entries from the user message of the newest input on; None if they do not reach back to it."""
    events, messages = entries["events"], entries["messages"]
    begun = [at for at, event in enumerate(events) if event["type"] == "user_message"]
    sent = [at for at, message in enumerate(messages) if message.id == first_id]
    return {"events": events[begun[-1] :], "messages": messages[sent[-1] :]} if begun and sent else None


def _only_adds(writes: list[tuple[str, str, Any]]) -> bool:
    """Whether writes only add entries, so that they can be replayed without the entries before them."""
    added = _entries(writes, "messages")
    return all(isinstance(each, BaseMessage) and not isinstance(each, RemoveMessage) for each in added) and all(
        isinstance(event, dict) for event in _entries(writes, "events")
    )


def _entries(writes: list[tuple[str, str, Any]], channel: str) -> list[Any]:
    written = [value for _, name, value in writes if name == channel]
    return [each for value in written for each in (value if isinstance(value, list) else [value])]


def config_at(at: At, checkpoint_id: str) -> RunnableConfig:
    """Return the config that addresses a checkpoint."""
    return {"configurable": {"thread_id": at[0], "checkpoint_ns": at[1], "checkpoint_id": checkpoint_id}}


MARK: LiteralString = "graph_agent_pruned"
"""Task id and channel of marks."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a pruning has left of a thread."""

    newest: str
    """The highest checkpoint id of all namespaces."""
    number: int
    """Number of checkpoints."""
    keep_last: int
    """The rule's number of checkpoints to keep."""
    young_since: str | None
    """Time of the oldest checkpoint that remains because of its age: ISO 8601, UTC; None if there is none."""
    reasons: Mapping[str, int]
    """Reason → number of checkpoints that remain for it."""

    def to_json(self) -> bytes:
        """Return the mark as it is stored."""
        return json.dumps(asdict(self)).encode()

    def covers(self, keep: Rule) -> bool:
        """Whether a rule removes nothing else, if the thread has not changed."""
        if keep.keep_last < self.keep_last:
            return False
        return self.young_since is None or (keep.not_before is not None and keep.not_before <= self.young_since)


@dataclass(frozen=True, slots=True)
class ThreadState:
    """The checkpoints of a thread, as a pruning of many threads compares them."""

    id: str
    newest: str
    number: int
    mark: bytes | None
    """Its stored mark; None without one."""

    def unchanged_since(self, keep: Rule) -> Mark | None:
        """Return the mark if a pruning by the rule would remove nothing; None if the thread must be read."""
        try:
            mark = Mark(**json.loads(self.mark)) if self.mark else None
        except (ValueError, TypeError):
            return None  # a mark of another version
        unchanged = mark is not None and (mark.newest, mark.number) == (self.newest, self.number)
        return mark if mark is not None and unchanged and mark.covers(keep) else None


def mark_of(plans: Mapping[str, NamespacePlan], keep: Rule, removed: int) -> Mark | None:
    """Return the mark of a thread that was pruned by these plans; None if answers remain in it, which expire."""
    reasons = Counter(reason for plan in plans.values() for reason in plan.reasons.values())
    ids = [id_ for plan in plans.values() for id_ in plan.nodes]
    if not ids or reasons.keys() & {ANSWERED, UNANSWERED} or any(plan.answers for plan in plans.values()):
        return None
    young = [plan.nodes[id_].ts for plan in plans.values() for id_, reason in plan.reasons.items() if reason == YOUNG]
    return Mark(max(ids), len(ids) - removed, keep.keep_last, min(young, default=None), dict(reasons))
