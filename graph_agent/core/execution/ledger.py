"""Prevents repeated writes: a writing call that an earlier run may have started is not run again.

A run that resumes a wave repeats its unfinished calls. That is safe for a call that reads, that its tool marks as
idempotent, or that waits for a person. Any other call may have taken effect, so its result is *unknown* unless the call
certainly never started:

- An effect ledger (`LoopConfig.effect_ledger`) stores a note for each writing call with the wave's checkpoint right
  before the call runs.
- A run that stops at a step's end, because of a drain or a breakpoint, stores a note for each call it has not started.
- A checkpoint edited or copied by a person dispatches its calls again. A call that may have started before still counts
  as started, and a finished call keeps its result. A checkpoint that a person went back to has no started calls.

Before such a call runs, a note is stored that it started.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, PendingWrite
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.types import Checkpointer

from graph_agent.base._compat import checkpointer_of, count_resume_values
from graph_agent.base.approvals.requests import is_single_call
from graph_agent.base.types import Call
from graph_agent.core.execution.deps import Task
from graph_agent.core.state.own_checkpoint import (
    BY_A_PERSON,
    edit_ancestors,
    load,
    load_running,
    put_writes,
    running_checkpoint,
)
from graph_agent.core.state.run import AgentHandle, Run, with_handle
from graph_agent.core.state.schema import INITIAL_LOOP, PlanState

Write = tuple[str, Any]
"""A state field and the value written to it."""
_RESULT_FIELDS = ("messages", "events", "usage", "wave_finished")
"""State fields that the task of a finished call writes."""
_INTERNAL = ("__", "branch:", "graph_agent_")
"""Prefixes of channel names that are not state fields: those of LangGraph and of this ledger."""

STARTED = "graph_agent_started"
"""Channel name of the notes about started calls among a checkpoint's pending writes; no state field has this name."""
UNTOUCHED = "graph_agent_untouched"
"""Channel name of the notes about calls that a stopped run had not started."""
ANSWER_NOTES = "graph_agent_answered"
"""Channel name of the notes about tasks that a run continued with an answer: `<task id>:<number of answers>:<run
id>`."""
REFUSED_CHANNEL = "graph_agent_refused"
"""Channel name of the notes about refused answers. Such a note equals the `ANSWER_NOTES` note of the same answer."""


@dataclass(frozen=True, slots=True)
class WaveRecovery:
    """What earlier runs did with the calls of a wave (the calls of one plan), read from the wave's checkpoint."""

    noted: frozenset[str] = frozenset()
    """Ids of the calls whose start was recorded in a note."""
    asking: frozenset[str] = frozenset()
    """Ids of the LangGraph tasks that wait for a person's answer."""
    answer_counts: dict[str, int] = field(default_factory=dict)
    """Task id → number of answers that the task had received when it asked its newest question.

    Absent for a task that has asked only one question.
    """
    answered: frozenset[str] = frozenset()
    """`<task id>:<number of answers>` of the tasks that a run continued with that answer, unless the answer was
    refused."""
    undecided: frozenset[str] = frozenset()
    """Ids of the calls about which LangChain's approval middleware asks before they run, and that no person has decided
    yet."""
    untouched: frozenset[str] = frozenset()
    """Ids of the calls that a run had noted as not started when it stopped at the end of a superstep."""
    possibly_started: frozenset[str] | None = None
    """Ids of the only calls that may have started without a note. None if every call may have, as without an edit."""
    awaiting_first_answer: frozenset[str] = frozenset()
    """Ids of the calls that waited for a person's first answer when the checkpoint was edited.

    They had not run further.
    """
    finished: Mapping[str, list[Write]] = field(default_factory=dict)
    """Call id → state writes of the call, for calls that had finished before a person edited the checkpoint."""

    def is_certainly_unstarted(self, id_: str, *, ledger: bool) -> bool:
        """Whether a call has certainly not started in an earlier run. The first rule that applies decides:

        - False if a note of its start is stored.
        - True if the effect ledger (notes of started calls) was on, or a stopped run noted the call as not started.
        - After a person's edit, True for calls that are not in `possibly_started`; without one, False.

        Args:
            id_: Id of the call.
            ledger: Whether the effect ledger records the start of this call before it runs.
        """
        if id_ in self.noted:
            return False
        if ledger or id_ in self.untouched:
            return True
        return self.possibly_started is not None and id_ not in self.possibly_started


async def may_start(task: Task, call: Call) -> bool:
    """Whether a call that may write can run now; False if an earlier run may have started it.

    A call planned in this run can always start. A call that asked a person can run again until it has an answer, and
    once with each answer: a note of the answer is stored before True is returned. Any other call can start if it waited
    for its first answer when a person edited the checkpoint, or if the notes show that no earlier run has started it.

    Args:
        task: The call's task.
        call: The call.
    """
    # No earlier run can have started a call that this run has planned.
    if call["id"] in task.run.calls.planned:
        return True
    recovery = await _wave_recovery(task)
    if task.id in recovery.asking:
        return await _may_continue(task, recovery)
    unstarted = recovery.is_certainly_unstarted(call["id"], ledger=task.records)
    return call["id"] in recovery.awaiting_first_answer or unstarted


async def finished_before(task: Task, call: Call) -> list[Write] | None:
    """Return the state writes of a call that had finished before a person edited the checkpoint.

    None for any other call.
    """
    if call["id"] in task.run.calls.planned:
        return None
    return (await _wave_recovery(task)).finished.get(call["id"])


async def _may_continue(task: Task, recovery: WaveRecovery) -> bool:
    """Whether a call that asked a person may run again.

    Without a new answer it may, since it only repeats its question. With a new answer, a note is stored that this run
    continues with it, and the number of answers is kept in the run; but if an earlier run stored such a note, False is
    returned, since how far that run got is unknown.

    Args:
        task: The call's task.
        recovery: What earlier runs did with the wave.
    """
    answers = count_resume_values(task.config)
    if answers <= recovery.answer_counts.get(task.id, 0):
        return True
    if f"{task.id}:{answers}" in recovery.answered:
        # An earlier run continued with this answer; its progress is unknown.
        return False
    await _note_answer(task, ANSWER_NOTES, answers)
    task.run.calls.answered_tasks[task.id] = answers
    return True


async def note_refused(task: Task) -> None:
    """Store a note that middleware raised on the newest answer of a task before the call ran.

    A further answer may then continue the task. Nothing is stored if this run did not continue the task with an answer.
    """
    if (answers := task.run.calls.answered_tasks.get(task.id)) is not None:
        await _note_answer(task, REFUSED_CHANNEL, answers)


async def _note_answer(task: Task, kind: str, answers: int) -> None:
    """Store a note about a person's answer among the writes of the task's checkpoint.

    Does nothing without a checkpoint.

    Args:
        task: The task that was answered.
        kind: Channel name of the note: `ANSWER_NOTES` or `REFUSED_CHANNEL`.
        answers: Number of answers that the task has received so far.
    """
    saver, at = checkpoint_of(task)
    if saver is not None and at is not None:
        note = f"{task.id}:{answers}:{task.run.identity.id}"
        await put_writes(saver, at, [(kind, [note])], f"{kind}:{task.run.identity.id}:{note}")


async def may_have_started(task: Task, call: Call, *, writes: bool) -> bool:
    """Whether an earlier run may have started a call; False for a call planned in this run.

    Call this before `note_started`, whose note would count.

    Args:
        task: The call's task.
        call: The call, planned in this run or an earlier one.
        writes: Whether the call may write. The ledger has notes only of calls that may.
    """
    if call["id"] in task.run.calls.planned:
        return False
    recovery = await _wave_recovery(task)
    return not recovery.is_certainly_unstarted(call["id"], ledger=writes and task.records)


async def note_started(task: Task, call: Call) -> None:
    """Store a note that a call has started, and wait until it is committed. Does nothing in a run without checkpoints.

    Calls that start at the same time share one write. Errors of the checkpointer are raised.
    """
    saver, at = checkpoint_of(task)
    if saver is None or at is None:
        return
    batches = task.run.shared(f"started:{task.wave}", lambda: _StartedCalls(saver, at))
    await batches.note(call["id"])


class _StartedCalls:
    """Stores notes about started calls of one wave.

    Notes made in the same iteration of the event loop are one write.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], at: RunnableConfig) -> None:
        self._saver = saver
        self._at = at
        self._ids: list[str] = []
        self._next: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def note(self, id_: str) -> None:
        """Store the note of a call and wait until it is committed.

        If the write fails, its error is raised to all calls that share it. Cancelling one waiting call does not cancel
        the write.
        """
        self._ids.append(id_)
        if self._next is None:
            self._next = asyncio.create_task(self._write())
        # A cancelled call must not cancel the shared write.
        await asyncio.shield(self._next)

    async def _write(self) -> None:
        """Write the notes collected so far in one write, after any earlier one; notes added in the same iteration of
        the event loop are included.
        """
        async with self._writing:
            # The wave's other tasks add their notes in the same iteration of the event loop.
            await asyncio.sleep(0)
            ids, self._ids, self._next = self._ids, [], None
            # A separate task id, because LangGraph treats a task with writes as finished.
            await put_writes(self._saver, self._at, [(STARTED, ids)], f"{STARTED}:{uuid.uuid4().hex}")


def checkpoint_of(task: Task) -> tuple[BaseCheckpointSaver[Any] | None, RunnableConfig | None]:
    """Return a task's checkpointer, and the config of the checkpoint that the task runs from.

    None for each that is missing.
    """
    return checkpointer_of(task.config), running_checkpoint(task.config, task.runtime)


async def _wave_recovery(task: Task) -> WaveRecovery:
    """Return what earlier runs did with the task's wave.

    It is read from the checkpointer once in a run, then cached.
    """
    return await task.run.once(f"recovery:{task.wave}", lambda: _load_recovery(task))


async def _load_recovery(task: Task) -> WaveRecovery:
    """Read what earlier runs did with the task's wave.

    An empty `WaveRecovery` without a checkpointer or a checkpoint.
    """
    saver, at = checkpoint_of(task)
    if saver is None or at is None:
        return WaveRecovery()
    found = await load_running(saver, at)
    return wave_recovery(found, await edit_ancestors(saver, found))


async def note_unstarted(run: Run, config: RunnableConfig, checkpointer: Checkpointer) -> None:
    """Store a note of the planned calls that a run has not started, after it stopped at the end of a superstep.

    A later run may then start these calls safely. Does nothing without a checkpointer or a checkpoint. The note is
    stored at the newest checkpoint of the run's thread.

    Args:
        run: The run that stopped; `run.calls.untouched` has the call ids.
        config: The config of the run.
        checkpointer: The graph's checkpointer; True or None in a subgraph, whose run uses that of its parent.
    """
    # For a subgraph, the value is True or None.
    saver = checkpointer if isinstance(checkpointer, BaseCheckpointSaver) else checkpointer_of(config)
    if saver is None:
        return
    configurable = config["configurable"]
    thread = {"thread_id": configurable.get("thread_id", ""), "checkpoint_ns": configurable.get("checkpoint_ns", "")}
    if (newest := await load(saver, {"configurable": thread})) is not None:
        stopped_at: RunnableConfig = {"configurable": with_handle(newest.config["configurable"], AgentHandle(run))}
        await put_writes(saver, stopped_at, [(UNTOUCHED, run.calls.untouched)], f"{UNTOUCHED}:{run.identity.id}")


def wave_recovery(stopped: CheckpointTuple | None, before: Sequence[CheckpointTuple] = ()) -> WaveRecovery:
    """Collect what earlier runs recorded about the calls of a wave: which started, asked a person, were answered, or
    finished.

    It is read from pending writes: questions and answers from those of `stopped`, starts and finished calls also from
    those of the checkpoints before.

    Args:
        stopped: The checkpoint at which the last run stopped; None gives an empty `WaveRecovery`.
        before: The checkpoints that it was edited or copied from, newest first, as `edit_ancestors` returns them.
    """
    if stopped is None:
        return WaveRecovery()
    writes = stopped.pending_writes or []
    notes = [write for at in (stopped, *before) for write in at.pending_writes or []]
    return WaveRecovery(
        noted=_ids(STARTED, notes),
        asking=frozenset(task for task, channel, _ in writes if channel == INTERRUPT),
        answer_counts={
            task: len(value) if isinstance(value, list) else 1 for task, channel, value in writes if channel == RESUME
        },
        answered=frozenset(
            note.rpartition(":")[0] for note in _ids(ANSWER_NOTES, writes) - _ids(REFUSED_CHANNEL, writes)
        ),
        undecided=_undecided(writes),
        untouched=_ids(UNTOUCHED, notes),
        possibly_started=_possibly_started(stopped, before),
        # A call started since the edit may have run without a question.
        awaiting_first_answer=next((ids for edited in before if (ids := _awaiting_first_answer(edited))), frozenset())
        - _ids(STARTED, writes),
        finished=finished_writes([write for edited in reversed(before) for write in edited.pending_writes or []]),
    )


def calls_gone_back_to(stopped: CheckpointTuple | None, before: Sequence[CheckpointTuple]) -> frozenset[str]:
    """Return the ids of the calls of a wave that a person returned to (time travel), because the branch that the person
    left may have run them.

    The oldest of the given checkpoints decides: the calls are those that it has sent and those that wait there. Empty
    if that checkpoint was not stored by a person, or if there is none.

    Args:
        stopped: The checkpoint of the wave; None if there is none.
        before: The checkpoints that it was edited or copied from, newest first, as `edit_ancestors` returns them.
    """
    origin = before[-1] if before else stopped
    if origin is None or origin.metadata.get("source") not in BY_A_PERSON:
        return frozenset()
    waiting = origin.checkpoint["channel_values"].get("loop", INITIAL_LOOP)["waiting"]
    return _dispatched(origin) | {call["id"] for call in waiting}


def is_own_field(channel: str) -> bool:
    """Whether a channel is a field that the agent's author declared in `state_schema`, not one of this package or
    LangGraph."""
    return channel not in PlanState.__annotations__ and not channel.startswith(_INTERNAL)


def finished_writes(pending: Sequence[PendingWrite]) -> dict[str, list[Write]]:
    """Return the writes of the calls that had finished when a run stopped: call id → `(field, value)` pairs.

    The fields are those of a call's result and those of the agent's `state_schema`. A task counts as finished if it has
    written `wave_finished`, which a person's edit does not write.

    Args:
        pending: Pending writes of a checkpoint.
    """
    tasks: dict[str, list[Write]] = {}
    for task, channel, value in pending:
        if channel in _RESULT_FIELDS or is_own_field(channel):
            tasks.setdefault(task, []).append((channel, value))
    return {
        message.tool_call_id: writes
        for writes in tasks.values()
        # A person's edit is stored in the same form, but does not write `wave_finished`.
        if any(channel == "wave_finished" for channel, _ in writes)
        for channel, value in writes
        if channel == "messages"
        for message in value
        if isinstance(message, ToolMessage)
    }


def _ids(kind: str, notes: Sequence[PendingWrite]) -> frozenset[str]:
    """Return the union of the ids in all notes on one channel.

    Args:
        kind: The channel's name, such as `STARTED`.
        notes: Pending writes; those on other channels are ignored.
    """
    return frozenset(id_ for _, channel, ids in notes if channel == kind for id_ in ids)


def _undecided(writes: Sequence[PendingWrite]) -> frozenset[str]:
    """Return the ids of calls whose tasks wait for the first answer to LangChain's approval of a single call.

    An answer counts whether LangGraph's resume or a note in the inbox gave it; a refused answer does not count.
    """
    answered = {task for task, channel, _ in writes if channel == RESUME}
    answered |= {note.partition(":")[0] for note in _ids(ANSWER_NOTES, writes) - _ids(REFUSED_CHANNEL, writes)}
    return frozenset(
        str(one.value["tool_call_id"])
        for task, channel, asked in writes
        if channel == INTERRUPT and task not in answered
        for one in asked
        if is_single_call(one.value)
    )


def _possibly_started(stopped: CheckpointTuple, before: Sequence[CheckpointTuple]) -> frozenset[str] | None:
    """Return the ids of the only calls that may have started without a note of the start; None if every call may have.

    - If a person stored the oldest of the checkpoints (went back in time): empty, because every run from there stores
      notes.
    - After another edit or copy: the calls that the oldest edited checkpoint dispatches.
    - Without an edit: None.

    Args:
        stopped: The checkpoint at which the last run stopped.
        before: The checkpoints that it was edited or copied from, newest first.
    """
    origin = before[-1] if before else stopped
    if origin.metadata.get("source") in BY_A_PERSON:
        # Every run from here is a resume, and stores notes of the calls it starts.
        return frozenset()
    return _dispatched(origin) if before else None


def _awaiting_first_answer(edited: CheckpointTuple) -> frozenset[str]:
    """Return the ids of a checkpoint's unfinished calls if each waits for a person's first answer.

    Otherwise an empty set.

    Interrupts carry task ids, not call ids, so the waiting calls are known only if all of them wait.
    """
    recovery = wave_recovery(edited)
    unfinished = _dispatched(edited) - finished_writes(edited.pending_writes or []).keys()
    return unfinished if len(unfinished) == len(recovery.asking) and not recovery.answer_counts else frozenset()


def _dispatched(at: CheckpointTuple) -> frozenset[str]:
    """Return the ids of the calls that the superstep after a checkpoint runs."""
    return frozenset(call["id"] for call in at.checkpoint["channel_values"].get("ready") or [])
