"""Calls that may write are not run twice: what an earlier run may have begun stays as it is.

A run that resumes a wave runs again what had not finished. A call that only reads, that its tool marks as idempotent,
or that waits for a person may be; any other may have taken effect, and its result says that this is not known, unless
it is certain that it was never begun:

- An effect ledger (`LoopConfig.effect_ledger`) notes each writing call beside the wave's checkpoint, in the saver's own
  storage, right before the call runs.
- A run that stops at a step's end, because it is drained or has a breakpoint there, notes what it has not begun.
- A checkpoint that a person has edited dispatches its calls anew. What may have been begun before the edit stays begun;
  what had finished keeps its result. A checkpoint that a person has gone back to has begun nothing by itself.

Once such a call is run after all, it is noted as started first.
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
from langgraph.runtime import Runtime
from langgraph.types import Checkpointer

from graph_agent._compat import answers_at_hand, checkpointer_of
from graph_agent.execution.checkpoints import edited_from, load, put_writes, running_checkpoint
from graph_agent.runs.run import RUN, Run
from graph_agent.types import Call

Write = tuple[str, Any]
"""A state field, and what is written to it."""
_OF_A_RESULT = ("messages", "events", "usage", "arrived")

STARTED = "graph_agent_started"
"""Channel name of the ledger's notes among a checkpoint's writes; no state field has it."""
UNTOUCHED = "graph_agent_untouched"
"""Channel name of the notes of calls that were not begun."""
ANSWERED = "graph_agent_answered"
"""Channel name of the notes that a task went on with a person's answers: `<task id>:<how many answers>` each."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What runs before this one left of a wave."""

    noted: frozenset[str] = frozenset()
    """Ids of the calls that the ledger has as started."""
    asking: frozenset[str] = frozenset()
    """Ids of the tasks that wait for a person."""
    heard: dict[str, int] = field(default_factory=dict)
    """How many answers a task had when it last asked, by its id; absent for one that has asked once."""
    answered: frozenset[str] = frozenset()
    """What `ANSWERED` notes hold."""
    untouched: frozenset[str] = frozenset()
    """Ids of the calls that a run had left alone when it stopped at the end of a step."""
    perhaps: frozenset[str] | None = None
    """Ids of the calls that may have been begun without a note; None where any call may."""
    asked: frozenset[str] = frozenset()
    """Ids of the calls that waited for a person when the checkpoint was edited, and had no answer."""
    finished: Mapping[str, list[Write]] = field(default_factory=dict)
    """What the calls wrote that had finished before the checkpoint was edited, by call id."""

    def is_certain(self, id_: str, *, ledger: bool) -> bool:
        """Whether a call has certainly not been begun.

        Args:
            id_: The call's id.
            ledger: Whether each writing call of the wave is noted before it runs.
        """
        if id_ in self.noted:
            return False
        return ledger or id_ in self.untouched or (self.perhaps is not None and id_ not in self.perhaps)


async def may_begin(call: Call, config: RunnableConfig, runtime: Runtime[Any], run: Run, *, ledger: bool) -> bool:
    """Whether a call that may write can be run now: False when an earlier run may have begun it.

    Args:
        call: The call; it was planned in this run, or in one before it.
        config: The task's config.
        runtime: The task's runtime.
        run: The run.
        ledger: Whether the wave's writing calls are noted before they run.
    """
    if call["id"] in run.planned:
        return True
    begun = await _begun_before(config, runtime, run)
    task = runtime.execution_info.task_id if runtime.execution_info else ""
    if task in begun.asking:
        return await _may_go_on(task, begun, config, runtime, run)
    return call["id"] in begun.asked or begun.is_certain(call["id"], ledger=ledger)


async def finished_before(call: Call, config: RunnableConfig, runtime: Runtime[Any], run: Run) -> list[Write] | None:
    """What a call wrote that had finished before a person edited the checkpoint; None for any other.

    Args:
        call: The call; it was planned in this run, or in one before it.
        config: The task's config.
        runtime: The task's runtime.
        run: The run.
    """
    if call["id"] in run.planned:
        return None
    return (await _begun_before(config, runtime, run)).finished.get(call["id"])


async def _may_go_on(task: str, begun: Begun, config: RunnableConfig, runtime: Runtime[Any], run: Run) -> bool:
    """Whether a call that asked a person can be run again: with the same answers, only to ask the next question."""
    answers = answers_at_hand(config)
    if answers <= begun.heard.get(task, 0):
        return True
    note = f"{task}:{answers}"
    if note in begun.answered:
        # An earlier run went on with this answer, and nothing says how far.
        return False
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is not None and at is not None:
        await put_writes(saver, at, [(ANSWERED, [note])], f"{ANSWERED}:{run.id}:{task}")
    return True


async def may_have_begun(
    call: Call, config: RunnableConfig, runtime: Runtime[Any], run: Run, *, writes: bool, ledger: bool
) -> bool:
    """Whether an earlier run may have begun a call. Ask before this run notes the call as started.

    Args:
        call: The call; it was planned in this run, or in one before it.
        config: The task's config.
        runtime: The task's runtime.
        run: The run.
        writes: Whether the call may write; of those that only read there are no notes.
        ledger: Whether the wave's writing calls are noted before they run.
    """
    if call["id"] in run.planned:
        return False
    begun = await _begun_before(config, runtime, run)
    return not begun.is_certain(call["id"], ledger=writes and ledger)


async def note_started(call: Call, config: RunnableConfig, runtime: Runtime[Any], run: Run) -> None:
    """Note a call as started; returns when the note is stored. Calls that start at the same time share one write.

    Args:
        call: The call, which runs next.
        config: The task's config.
        runtime: The task's runtime.
        run: The run.
    """
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is None or at is None:
        return
    batches = run.shared(f"started:{_wave(runtime)}", lambda: _StartedCalls(saver, at))
    await batches.note(call["id"])


class _StartedCalls:
    """Writes the notes of one wave's started calls, those that wait at the same time together."""

    def __init__(self, saver: BaseCheckpointSaver[Any], at: RunnableConfig) -> None:
        self._saver = saver
        self._at = at
        self._ids: list[str] = []
        self._next: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def note(self, id_: str) -> None:
        self._ids.append(id_)
        if self._next is None:
            self._next = asyncio.create_task(self._write())
        # A call that is cancelled does not take the others' note with it.
        await asyncio.shield(self._next)

    async def _write(self) -> None:
        async with self._writing:
            # The wave's other tasks reach their notes within the same turn of the event loop.
            await asyncio.sleep(0)
            ids, self._ids, self._next = self._ids, [], None
            # A task id of its own: LangGraph takes a task that has writes for finished.
            await put_writes(self._saver, self._at, [(STARTED, ids)], f"{STARTED}:{uuid.uuid4().hex}")


async def _begun_before(config: RunnableConfig, runtime: Runtime[Any], run: Run) -> Begun:
    return await run.once(f"begun:{_wave(runtime)}", lambda: _begun(config, runtime))


async def _begun(config: RunnableConfig, runtime: Runtime[Any]) -> Begun:
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is None or at is None:
        return Begun()
    found = await load(saver, at)
    return begun_in(found, await edited_from(saver, found))


async def note_untouched(run: Run, config: RunnableConfig, checkpointer: Checkpointer) -> None:
    """Note the calls that a run has made ready and not begun, when it stops at the end of a step.

    Args:
        run: The run, which begins nothing any more.
        config: What the run was started with.
        checkpointer: The graph's; a subgraph's run keeps its checkpoints with its parent's.
    """
    saver = checkpointer if isinstance(checkpointer, BaseCheckpointSaver) else checkpointer_of(config)
    if saver is None:
        return
    at = config["configurable"]
    thread = {"thread_id": at.get("thread_id", ""), "checkpoint_ns": at.get("checkpoint_ns", "")}
    if (newest := await load(saver, {"configurable": thread})) is not None:
        stopped_at: RunnableConfig = {"configurable": {**newest.config["configurable"], RUN: run}}
        await put_writes(saver, stopped_at, [(UNTOUCHED, run.untouched)], f"{UNTOUCHED}:{run.id}")


def begun_in(stopped: CheckpointTuple | None, before: Sequence[CheckpointTuple] = ()) -> Begun:
    """Read what a wave's checkpoint tells of it; nothing for None.

    Args:
        stopped: The checkpoint.
        before: The checkpoints that it was edited from, newest first.
    """
    if stopped is None:
        return Begun()
    writes = stopped.pending_writes or []
    notes = [write for at in (stopped, *before) for write in at.pending_writes or []]
    return Begun(
        noted=_ids(STARTED, notes),
        asking=frozenset(task for task, channel, _ in writes if channel == INTERRUPT),
        heard={
            task: len(value) if isinstance(value, list) else 1 for task, channel, value in writes if channel == RESUME
        },
        answered=frozenset(note for _, channel, notes in writes if channel == ANSWERED for note in notes),
        untouched=_ids(UNTOUCHED, notes),
        perhaps=_perhaps_begun(stopped, before),
        # One that has been started since the edit may have gone on without a question.
        asked=next((asked for edited in before if (asked := _asking_only(edited))), frozenset())
        - _ids(STARTED, writes),
        finished=finished_writes([write for edited in reversed(before) for write in edited.pending_writes or []]),
    )


def finished_writes(pending: Sequence[PendingWrite]) -> dict[str, list[Write]]:
    """The writes of the tasks that had answered a call when a run stopped, by call id.

    Args:
        pending: What is stored beside a checkpoint.
    """
    tasks: dict[str, list[Write]] = {}
    for task, channel, value in pending:
        if channel in _OF_A_RESULT:
            tasks.setdefault(task, []).append((channel, value))
    return {
        message.tool_call_id: writes
        for writes in tasks.values()
        # A person's own edit is stored in the same way, and arrives from no call.
        if any(channel == "arrived" for channel, _ in writes)
        for channel, value in writes
        if channel == "messages"
        for message in value
        if isinstance(message, ToolMessage)
    }


def _ids(kind: str, notes: Sequence[PendingWrite]) -> frozenset[str]:
    return frozenset(id_ for _, channel, ids in notes if channel == kind for id_ in ids)


def _perhaps_begun(stopped: CheckpointTuple, before: Sequence[CheckpointTuple]) -> frozenset[str] | None:
    origin = before[-1] if before else stopped
    if origin.metadata.get("source") in ("update", "fork"):
        # Every run that begins here resumes, and notes what it begins.
        return frozenset()
    return _dispatched(origin) if before else None


def _asking_only(edited: CheckpointTuple) -> frozenset[str]:
    """The unfinished calls of a checkpoint where each of them waits for a person's first answer; empty otherwise.

    Interrupts carry task ids, not call ids; which call waits is known only if all do.
    """
    begun = begun_in(edited)
    unfinished = _dispatched(edited) - finished_writes(edited.pending_writes or []).keys()
    return unfinished if len(unfinished) == len(begun.asking) and not begun.heard else frozenset()


def _dispatched(at: CheckpointTuple) -> frozenset[str]:
    return frozenset(call["id"] for call in at.checkpoint["channel_values"].get("ready") or [])


def _wave(runtime: Runtime[Any]) -> str:
    return runtime.execution_info.checkpoint_id if runtime.execution_info else ""
