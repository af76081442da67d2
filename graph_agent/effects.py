"""Calls that may write are not run twice: what an earlier run may have begun stays as it is.

A run that resumes a wave runs again what had not finished. A call that only reads, that its tool marks as idempotent,
or that waits for a person may be; any other may have taken effect, and its result says that this is not known, unless
it is certain that it was never begun:

- An effect ledger (`LoopConfig.effect_ledger`) has the wave's writing calls noted beside its checkpoint, in the saver's
  own storage, before the first of them runs.
- A run that stops at a step's end, because it is drained or has a breakpoint there, notes what it has not begun.
- A checkpoint that a person has edited, or has gone back to, has begun nothing by itself. What had been begun before
  it was edited stays begun, as long as the edit leaves the call as it was; what had finished keeps its result.

Once such a call is run after all, it is noted as started first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.runtime import Runtime
from langgraph.types import Checkpointer

from graph_agent._compat import answers_at_hand, checkpointer_of
from graph_agent.checkpoints import load, put_writes, running_checkpoint
from graph_agent.edited import Write, edited_from, finished_writes
from graph_agent.runs import RUN, Run
from graph_agent.state import NOT_BEGUN
from graph_agent.types import Call

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
    anew: bool = False
    """Whether the checkpoint is a person's: edited, or gone back to."""
    perhaps: Sequence[Call] = ()
    """The calls that may have been begun before the checkpoint was edited."""
    asked: Sequence[Call] = ()
    """Those of them that waited for a person then, and had heard nothing."""
    finished: Sequence[tuple[Call, list[Write]]] = ()
    """The calls that had finished before the checkpoint was edited, with what they wrote."""

    def is_certain(self, call: Call, *, ledger: bool) -> bool:
        """Whether a call that is not `noted` has certainly not been begun."""
        return call not in self.perhaps and (ledger or self.anew or call["id"] in self.untouched)


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
    return call["id"] not in begun.noted and (call in begun.asked or begun.is_certain(call, ledger=ledger))


async def finished_before(call: Call, config: RunnableConfig, runtime: Runtime[Any], run: Run) -> list[Write] | None:
    """What a call wrote that had finished before a person edited the checkpoint; None for any other.

    Args:
        call: The call, as it is now.
        config: The task's config.
        runtime: The task's runtime.
        run: The run.
    """
    if call["id"] in run.planned:
        return None
    begun = await _begun_before(config, runtime, run)
    return next((writes for finished, writes in begun.finished if finished == call), None)


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
    """Whether an earlier run may have begun a call. Ask before any call of the wave is noted as started.

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
    return not begun.is_certain(call, ledger=writes and ledger) or call["id"] in begun.noted


async def note_started(calls: Sequence[Call], config: RunnableConfig, runtime: Runtime[Any], run: Run) -> None:
    """Note a wave's writing calls as started; awaited by each of them, done once.

    Args:
        calls: The wave's calls that may write.
        config: The task's config.
        runtime: The task's runtime.
        run: The run.
    """
    await run.once(f"noted:{_wave(runtime)}", lambda: _note([call["id"] for call in calls], config, runtime, run))


async def _note(ids: list[str], config: RunnableConfig, runtime: Runtime[Any], run: Run) -> None:
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is not None and at is not None:
        # A task id of its own: LangGraph takes a task that has writes for finished.
        await put_writes(saver, at, [(STARTED, ids)], f"{STARTED}:{run.id}")


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
    edits = [_left_by(edited) for edited in before]
    return Begun(
        noted=frozenset(id_ for _, channel, ids in writes if channel == STARTED for id_ in ids),
        asking=frozenset(task for task, channel, _ in writes if channel == INTERRUPT),
        heard={
            task: len(value) if isinstance(value, list) else 1 for task, channel, value in writes if channel == RESUME
        },
        answered=frozenset(note for _, channel, notes in writes if channel == ANSWERED for note in notes),
        untouched=frozenset(id_ for _, channel, ids in writes if channel == UNTOUCHED for id_ in ids).union(
            *(left.untouched for left in edits)
        ),
        anew=stopped.metadata.get("source") in ("update", "fork"),
        perhaps=[call for left in edits for call in left.perhaps],
        asked=[call for left in edits for call in left.asked],
        finished=[kept for left in edits for kept in left.finished],
    )


def _left_by(edited: CheckpointTuple) -> Begun:
    """What a checkpoint leaves to one that is edited from it."""
    begun, values = begun_in(edited), edited.checkpoint["channel_values"]
    ready: list[Call] = values.get("ready") or []
    noted = begun.anew or values.get("loop", NOT_BEGUN).get("ledger", False)
    finished = finished_writes(edited.pending_writes or [])
    perhaps = [call for call in ready if call["id"] in begun.noted or not (noted or call["id"] in begun.untouched)]
    unfinished = [call for call in ready if call["id"] not in finished]
    # A task is not told by its call: only where all wait is it known of each.
    all_wait = len(unfinished) == len(begun.asking) and not begun.heard
    return Begun(
        untouched=begun.untouched,
        perhaps=perhaps,
        asked=unfinished if all_wait else (),
        finished=[(call, finished[call["id"]]) for call in ready if call["id"] in finished],
    )


def _wave(runtime: Runtime[Any]) -> str:
    return runtime.execution_info.checkpoint_id if runtime.execution_info else ""
