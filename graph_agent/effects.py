"""Calls that may write are not run twice: what an earlier run may have begun stays as it is.

A run that resumes a wave runs again what had not finished. A call that only reads, that its tool marks as idempotent,
or that waits for a person may be; any other may have taken effect, and its result says that this is not known, unless
it is certain that it was never begun:

- An effect ledger (`LoopConfig.effect_ledger`) has the wave's writing calls noted beside its checkpoint, in the saver's
  own storage, before the first of them runs.
- A run that stops at a step's end, because it is drained or has a breakpoint there, notes what it has not begun.
- A checkpoint that a person has edited, or has gone back to, has begun nothing by itself.

Once such a call is run after all, it is noted as started first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.runtime import Runtime
from langgraph.types import Checkpointer

from graph_agent._compat import checkpointer_of
from graph_agent.checkpoints import load, put_writes, running_checkpoint
from graph_agent.runs import Run
from graph_agent.types import Call

STARTED = "graph_agent_started"
"""Channel name of the ledger's notes among a checkpoint's writes; no state field has it."""
UNTOUCHED = "graph_agent_untouched"
"""Channel name of the notes of calls that were not begun."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What runs before this one left of a wave."""

    noted: frozenset[str] = frozenset()
    """Ids of the calls that the ledger has as started."""
    asking: frozenset[str] = frozenset()
    """Ids of the tasks that wait for a person."""
    resumed: frozenset[str] = frozenset()
    """Ids of the tasks that a person's answer has set going again."""
    untouched: frozenset[str] = frozenset()
    """Ids of the calls that a run had left alone when it stopped at the end of a step."""
    anew: bool = False
    """Whether the checkpoint is a person's: edited, or gone back to."""

    def is_certain(self, call: Call, *, ledger: bool) -> bool:
        """Whether a call that is not `noted` has certainly not been begun."""
        return ledger or self.anew or call["id"] in self.untouched


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
    begun = await run.once(f"begun:{_wave(runtime)}", lambda: _begun(config, runtime))
    task = runtime.execution_info.task_id if runtime.execution_info else ""
    if task in begun.asking:
        # An answer given to an earlier run may have let the call go on, and nothing says how far.
        return run.answers or task not in begun.resumed
    return begun.is_certain(call, ledger=ledger) and call["id"] not in begun.noted


async def may_have_begun(call: Call, config: RunnableConfig, runtime: Runtime[Any], run: Run, *, ledger: bool) -> bool:
    """Whether an earlier run may have begun a call, one that only reads or that waits for a person included.

    Args:
        call: As for `may_begin`.
        config: As there.
        runtime: As there.
        run: As there.
        ledger: As there.
    """
    if call["id"] in run.planned:
        return False
    begun = await run.once(f"begun:{_wave(runtime)}", lambda: _begun(config, runtime))
    task = runtime.execution_info.task_id if runtime.execution_info else ""
    return not begun.is_certain(call, ledger=ledger) or call["id"] in begun.noted or task in begun.asking


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


async def _begun(config: RunnableConfig, runtime: Runtime[Any]) -> Begun:
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    found = await load(saver, at) if saver is not None and at is not None else None
    return begun_in(found)


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
        await put_writes(saver, newest.config, [(UNTOUCHED, run.untouched)], f"{UNTOUCHED}:{run.id}")


def begun_in(stopped: CheckpointTuple | None) -> Begun:
    """Read what a wave's checkpoint tells of it; nothing for None."""
    if stopped is None:
        return Begun()
    writes = stopped.pending_writes or []
    return Begun(
        noted=frozenset(id_ for _, channel, ids in writes if channel == STARTED for id_ in ids),
        asking=frozenset(task for task, channel, _ in writes if channel == INTERRUPT),
        resumed=frozenset(task for task, channel, _ in writes if channel == RESUME),
        untouched=frozenset(id_ for _, channel, ids in writes if channel == UNTOUCHED for id_ in ids),
        anew=stopped.metadata.get("source") in ("update", "fork"),
    )


def _wave(runtime: Runtime[Any]) -> str:
    return runtime.execution_info.checkpoint_id if runtime.execution_info else ""
