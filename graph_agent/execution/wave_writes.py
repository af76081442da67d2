"""Writes of own state fields by the parallel calls of one wave, which a reducer may refuse only together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent._compat import checkpointer_of
from graph_agent.events.calls import CallResult
from graph_agent.execution.checkpoints import load, running_checkpoint
from graph_agent.execution.ledger import finished_writes, is_own_field
from graph_agent.runs.run import run_of
from graph_agent.state.own_fields import OwnFields
from graph_agent.types import Call


async def with_accepted_writes(
    output: CallResult, call: Call, config: RunnableConfig, runtime: Runtime[Any], own: OwnFields
) -> CallResult:
    """Return a call's result, or an error if its writes do not fit those of the wave's earlier calls.

    Args:
        output: The result.
        call: The call.
        config: The task's config.
        runtime: The task's runtime.
        own: The agent's own state fields.
    """
    if not any(name in own.reduced for name, _ in output.writes):
        return output
    run = run_of(config)
    wave = runtime.execution_info.checkpoint_id if runtime.execution_info else ""

    async def stored() -> dict[str, list[Any]]:
        return {} if call["id"] in run.planned else await _stored_writes(config, runtime)

    accepted = await run.once(f"own writes:{wave}", stored)
    # No other call can write between this check and the changes below, as nothing is awaited.
    if (fault := _fault(output.writes, accepted, own)) is not None:
        return CallResult(
            f"The tool ran, but its changes do not fit those of the other calls of this step: {fault}. None of its "
            "changes was kept.",
            "error",
        )
    for name, value in output.writes:
        accepted.setdefault(name, []).append(value)
    return output


def _fault(writes: Sequence[tuple[str, Any]], accepted: dict[str, list[Any]], own: OwnFields) -> str | None:
    faults = (own.fault(name, value, accepted[name]) for name, value in writes if accepted.get(name))
    return next((fault for fault in faults if fault is not None), None)


async def _stored_writes(config: RunnableConfig, runtime: Runtime[Any]) -> dict[str, list[Any]]:
    """Return the writes of the wave's calls that had finished in an earlier run, by field."""
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    found = await load(saver, at) if saver is not None and at is not None else None
    ended = finished_writes(found.pending_writes or []) if found is not None else {}
    fields: dict[str, list[Any]] = {}
    for writes in ended.values():
        for name, value in writes:
            if is_own_field(name):
                fields.setdefault(name, []).append(value)
    return fields
