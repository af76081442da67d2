"""Reads the state of each call of a session's newest input, also while a wave runs and after a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from langgraph.checkpoint.base import CheckpointTuple, PendingWrite
from langgraph.types import StateSnapshot

from graph_agent.execution.ledger import WaveRecovery, wave_recovery
from graph_agent.runs.run import Run
from graph_agent.session.results import TrackedCall, planned_calls, since_last_input
from graph_agent.state.call_events import OUTCOMES
from graph_agent.state.events import StoredEvent
from graph_agent.state.schema import INITIAL_LOOP

CallProgress = Literal["planned", "started", "finished", "failed", "skipped", "unknown"]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call and its state."""

    id: str
    name: str
    """The tool's name, or `delegate_to_<name>`."""
    state: CallProgress
    """`planned`: not started; `started`: started, without a result yet; `finished` and `failed`: it has its result;
    `skipped`: it was never run; `unknown`: it may have run and taken effect."""


def call_records(
    snapshot: StateSnapshot,
    stored: CheckpointTuple | None,
    before: Sequence[CheckpointTuple],
    run: Run | None,
    *,
    idle: bool,
    writes: Callable[[str], bool] | None,
) -> list[CallRecord]:
    """Return the calls of the newest input, in the order they were planned.

    Args:
        stored: Its checkpoint; None if there is none.
        before: The checkpoints before the latest edits (`edit_ancestors`), newest first.
        run: The session's run in this process; None if there is none.
        idle: Whether no run is under way anywhere.
        writes: Whether a call may write, by name; None if unknown.
    """
    events = since_last_input(snapshot.values.get("events", []))
    ledger = snapshot.values.get("loop", INITIAL_LOOP).get("ledger", False)
    recovery = wave_recovery(stored, before)
    pending = [("", *write) for writes in recovery.finished.values() for write in writes]
    pending += (stored.pending_writes if stored else None) or []
    interrupted = _interrupted(snapshot, recovery)

    def state(call: TrackedCall) -> CallProgress:
        id_, name = call.planned["id"], call.planned["name"]
        if call.result is not None:
            return OUTCOMES[call.result["status"]]
        if not call.ready or (run is not None and id_ in run.planned and id_ not in run.started_calls):
            return "planned"
        if id_ in recovery.noted or id_ in interrupted or not idle:
            return "started"
        in_ledger = ledger and (writes is None or writes(name))
        return "planned" if recovery.is_certainly_unstarted(id_, ledger=in_ledger) else "unknown"

    calls = planned_calls([*events, *_events_in(pending)])
    return [CallRecord(call.planned["id"], call.planned["name"], state(call)) for call in calls]


def _interrupted(snapshot: StateSnapshot, recovery: WaveRecovery) -> set[str]:
    """Return the ids of the calls whose tasks wait for a person."""
    waiting = {task.id for task in snapshot.tasks if task.interrupts or task.id in recovery.asking}
    return {id_ for id_, task in _tasks_of_calls(snapshot) if task in waiting}


def _tasks_of_calls(snapshot: StateSnapshot) -> list[tuple[str, str]]:
    """Return call id and task id of the tasks that run calls: one per ready call, in order."""
    tasks = [task.id for task in snapshot.tasks if task.name in ("tools", "delegate")]
    return list(zip([call["id"] for call in snapshot.values.get("ready", [])], tasks, strict=False))


def _events_in(pending: Sequence[PendingWrite]) -> list[StoredEvent]:
    return [entry for _, channel, value in pending if channel == "events" for entry in value]
