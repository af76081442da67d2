"""Calls that may write are not run twice: what an earlier run may have begun stays as it is.

A run that resumes a wave runs again what had not finished. A call that only reads, that its tool marks as idempotent,
or that waits for a person may be; any other may have taken effect, and its result says that this is not known. An
effect ledger (`LoopConfig.effect_ledger`) tells those that had been begun from those that had not: the wave's writing
calls are noted beside its checkpoint, in the saver's own storage, before the first of them runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.runtime import Runtime

from graph_agent._compat import checkpointer_of
from graph_agent.checkpoints import load, put_writes, running_checkpoint
from graph_agent.runs import Run
from graph_agent.types import Call

STARTED = "graph_agent_started"
"""Channel name of the ledger's notes among a checkpoint's writes; no state field has it."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What runs before this one left of a wave."""

    noted: frozenset[str] = frozenset()
    """Ids of the calls that the ledger has as started."""
    asking: frozenset[str] = frozenset()
    """Ids of the tasks that wait for a person."""
    resumed: frozenset[str] = frozenset()
    """Ids of the tasks that a person's answer has set going again."""


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
    return ledger and call["id"] not in begun.noted


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
    return not ledger or call["id"] in begun.noted or task in begun.asking


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
    return begun_in(found.pending_writes or () if found else ())


def begun_in(writes: Iterable[tuple[str, str, Any]]) -> Begun:
    """Read what a checkpoint's pending writes tell of its wave.

    Args:
        writes: Each `(task id, channel, value)`.
    """
    writes = list(writes)
    return Begun(
        noted=frozenset(id_ for _, channel, ids in writes if channel == STARTED for id_ in ids),
        asking=frozenset(task for task, channel, _ in writes if channel == INTERRUPT),
        resumed=frozenset(task for task, channel, _ in writes if channel == RESUME),
    )


def _wave(runtime: Runtime[Any]) -> str:
    return runtime.execution_info.checkpoint_id if runtime.execution_info else ""
