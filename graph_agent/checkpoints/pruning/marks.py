"""Records what a pruning has left of a session, so that it is skipped without a read while it is unchanged.

A mark is a stored write without a checkpoint, which every saver removes with its thread.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import LiteralString

from graph_agent.checkpoints.pruning.plan import ANSWERED, UNANSWERED, YOUNG, NamespacePlan, Rule

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
    """Return the mark of a thread that was pruned; None if answers remain in it, which expire.

    Args:
        plans: What has happened to each namespace.
        removed: Number of checkpoints removed.
    """
    reasons = Counter(reason for plan in plans.values() for reason in plan.reasons.values())
    ids = [id_ for plan in plans.values() for id_ in plan.nodes]
    if not ids or reasons.keys() & {ANSWERED, UNANSWERED} or any(plan.answers for plan in plans.values()):
        return None
    young = [plan.nodes[id_].ts for plan in plans.values() for id_, reason in plan.reasons.items() if reason == YOUNG]
    return Mark(max(ids), len(ids) - removed, keep.keep_last, min(young, default=None), dict(reasons))
