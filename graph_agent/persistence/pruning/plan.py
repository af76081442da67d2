"""Which checkpoints of one thread are removed, and what the remaining ones need to read as before. Pure functions.

The checkpoints of a namespace are a tree. A delta channel has no value in most checkpoints: its value is rebuilt from
the writes of the ancestors, back to the last one with a full copy. A kept checkpoint whose parent is removed therefore
receives full copies (a *fold*). Only channels with a known reducer can be folded; for any other delta channel the
ancestors are kept, back to its last full copy.

A run of an agent that continues a checkpoint settles the calls of earlier runs. It reads the checkpoint of a wave that
has just ended, the one before an input that no plan has read, and those that a person edited (`execution.settlement`,
`execution.checkpoints`), so these are kept, too. This holds for each kept checkpoint, as each may be continued.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

NO_CHANNELS: frozenset[str] = frozenset()
_OWN_SENDS = 4
"""The first format of checkpoints that do not read pending sends from their parent."""
_BY_A_PERSON = ("update", "fork")
"""Sources of checkpoints that a person has made from others."""


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
    has_input_id: bool = False
    """Whether it belongs to an input with an id, by which a repeated request is recognized."""
    is_leftover: bool = False
    """Whether a pruning that was interrupted has removed its descendants, so that it is no branch."""
    size: int = 0
    """Bytes of the checkpoint and its writes."""
    writes: int = 0
    """Number of its stored writes."""
    delta_bytes: int = 0
    """Bytes of its writes to delta channels, its full copies included."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which checkpoints to keep. The newest of each branch is kept in any case.

    Args:
        keep_last: Number of the newest checkpoints of each namespace to keep.
        not_before: Keep checkpoints from this time on: ISO 8601, UTC; None for no such rule.
        input_ids_since: Keep checkpoints from the first one on that belongs to an input with an id and is not older
            than this; None for no such rule.
    """

    keep_last: int = 1
    not_before: str | None = None
    input_ids_since: str | None = None

    def keeps(self, newest_first: list[Node]) -> Iterable[str]:
        """Return the ids of the checkpoints to keep by age or position."""
        since = self.input_ids_since
        repeatable = [node.id for node in newest_first if node.has_input_id and since is not None and node.ts >= since]
        for position, node in enumerate(newest_first):
            is_young = self.not_before is not None and node.ts >= self.not_before
            if position < self.keep_last or is_young or (repeatable and node.id >= repeatable[-1]):
                yield node.id


@dataclass(slots=True)
class NamespacePlan:
    """What happens to one namespace."""

    nodes: dict[str, Node]
    """All checkpoints, by id."""
    kept: set[str] = field(default_factory=set)
    """Ids of the checkpoints that remain."""
    folds: dict[str, frozenset[str]] = field(default_factory=dict)
    """Kept checkpoint → channels of which it receives a full copy."""

    @property
    def removed(self) -> list[Node]:
        """The checkpoints to remove, each after its descendants."""
        return [self.nodes[id_] for id_ in _descendants_first(self.nodes) if id_ not in self.kept]

    def parents_first(self) -> list[str]:
        """Return the ids of all checkpoints, each after its ancestors."""
        return _descendants_first(self.nodes)[::-1]

    def remaining_ancestor(self, node_id: str, removed: set[str]) -> str | None:
        """Return the nearest ancestor that is not removed; None if there is none.

        Args:
            node_id: The checkpoint.
            removed: Ids of the checkpoints that are removed so far.
        """
        at, passed = self.nodes[node_id].parent, {node_id}
        while at is not None and at in removed and at not in passed:
            passed.add(at)
            at = self.nodes[at].parent
        return None if at in passed else at


def plan_thread(namespaces: Mapping[str, Iterable[Node]], rule: Rule) -> dict[str, NamespacePlan]:
    """Return the plan of each namespace of a thread, nested namespaces first.

    Args:
        namespaces: Namespace → its checkpoints, in any order.
        rule: Which checkpoints to keep.
    """
    plans: dict[str, NamespacePlan] = {}
    for namespace in sorted(namespaces, key=lambda each: each.count("|") + bool(each)):
        plan = NamespacePlan({node.id: node for node in namespaces[namespace]})
        outer = max((each for each in plans if _is_within(namespace, each)), key=len, default=None)
        around = plans[outer] if outer is not None else None
        if around is None or not _is_obsolete(namespace.removeprefix(outer or ""), plan, around):
            _keep(plan, rule, around, is_root=not namespace)
        plans[namespace] = plan
    return dict(reversed(plans.items()))


def _keep(plan: NamespacePlan, rule: Rule, around: NamespacePlan | None, *, is_root: bool) -> None:
    nodes = plan.nodes
    newest_first = sorted(nodes.values(), key=lambda node: node.id, reverse=True)
    parents = {node.parent for node in nodes.values()}
    chosen = {
        *rule.keeps(newest_first),
        *(id_ for id_, node in nodes.items() if id_ not in parents and not node.is_leftover),
    }
    if around is not None:
        chosen |= _replayed(newest_first, around)
    first = [node for node in nodes.values() if node.parent is None or node.parent not in nodes]
    if is_root:
        # The first checkpoint of a session holds its title and its position in the list of sessions.
        chosen |= {node.id for node in first if node.holds_input}
    older = {node.id: before.id for node, before in pairwise(newest_first)}
    plan.kept = _with_chains(nodes, chosen, older)
    if (
        is_root
        and len([id_ for id_ in plan.kept if plan.remaining_ancestor(id_, nodes.keys() - plan.kept) is None]) > 1
    ):
        # A session is listed once for each checkpoint without a parent.
        plan.kept = _with_chains(nodes, plan.kept | {node.id for node in first}, older)
    plan.folds = _folds(plan)
    if len(plan.folds) > 1 and _fold_bytes(plan) >= sum(node.size for node in plan.removed):
        # Many branches share most of their history: to copy it for each would take more space than it frees.
        plan.kept, plan.folds = set(nodes), {}


def _is_obsolete(inner: str, plan: NamespacePlan, around: NamespacePlan) -> bool:
    """Whether a namespace belongs to tasks of removed checkpoints only.

    Args:
        inner: The namespace without that of the graph around it.
        plan: Its checkpoints.
        around: The checkpoints of the graph around it.
    """
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
    """Add the checkpoints that chosen ones, and those added, are read with.

    Args:
        nodes: All checkpoints.
        chosen: Ids of the chosen ones.
        older: Checkpoint → the next older one, which may be on another branch.
    """
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


def _fold_bytes(plan: NamespacePlan) -> int:
    """Estimate the bytes of all folds: those of the writes that they replace."""
    total: dict[str | None, int] = {}
    for id_ in reversed(_descendants_first(plan.nodes)):
        node = plan.nodes[id_]
        total[id_] = node.delta_bytes + (0 if node.stored else total.get(node.parent, 0))
    return sum(total.get(plan.nodes[id_].parent, 0) for id_ in plan.folds)


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
