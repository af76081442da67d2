"""Summarizes the trials of an evaluation as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graph_agent.evaluation.runner import Plan, Trial

FORMAT = 1
"""Version of the JSON; a change that breaks readers increases it."""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of an evaluation."""

    plan: Plan
    trials: Sequence[Trial]

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as plain JSON."""
        return {
            "format": FORMAT,
            "agent": self.plan.agents[0].name,
            "db": self.plan.db,
            "passed": sum(trial.passed for trial in self.trials),
            "failed": sum(not trial.passed for trial in self.trials),
            "trials": [trial_object(trial) for trial in self.trials],
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of a plain report."""
        width = max(len(trial.case.name) for trial in self.trials)
        for trial in self.trials:
            took = trial.measures
            mark = "pass" if trial.passed else "FAIL"
            yield f"{mark}  {trial.case.name:<{width}}  {took.steps} steps  {took.tokens} tokens  {took.seconds:.2f} s"
            for failure in trial.failures:
                yield f"      {failure}"
        passed = sum(trial.passed for trial in self.trials)
        stored = sum(trial.is_stored for trial in self.trials)
        before = f"; {stored} had run before (--fresh runs them again)" if stored else ""
        yield f"{passed} of {len(self.trials)} passed{before}"


def report(plan: Plan, trials: Sequence[Trial]) -> Report:
    """Return the report of an evaluation."""
    return Report(plan, trials)


def trial_object(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain JSON."""
    last = trial.results[-1] if trial.results else None
    return {
        "case": trial.case.name,
        "trial": trial.number,
        "session_id": trial.session_id,
        "passed": trial.passed,
        "failures": [asdict(failure) for failure in trial.failures],
        "answer": last.answer if last else "",
        "status": last.status.value if last else None,
        "stop_reason": last.stop_reason if last else None,
        "calls": [asdict(call) for call in trial.calls],
        **asdict(trial.measures),
    }
