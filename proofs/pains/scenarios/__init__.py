"""All scenarios, in the order of the table."""

from __future__ import annotations

from proofs.pains.scenario import Scenario
from proofs.pains.scenarios import approvals, concurrency, crashes, limits, replies, results

SCENARIOS: tuple[type[Scenario], ...] = (
    *crashes.ALL,
    *results.ALL,
    *replies.ALL,
    *limits.ALL,
    *concurrency.ALL,
    *approvals.ALL,
)
