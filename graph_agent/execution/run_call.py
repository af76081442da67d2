"""Execution of one call of a wave: at most once if it may write, within the slots and the deadline of the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio.lowlevel
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent._compat import read_state
from graph_agent.config import LoopConfig
from graph_agent.deps import AgentDeps
from graph_agent.errors import InputError
from graph_agent.events.calls import CallResult, announce, answer_event, result_event, since_plan
from graph_agent.events.types import StoredEvent
from graph_agent.execution.approvals import needs_approval
from graph_agent.execution.current_wave import FIELDS, current_wave
from graph_agent.execution.ledger import finished_before, may_have_started, may_start, note_started
from graph_agent.execution.settlement import UNKNOWN
from graph_agent.runs.run import run_of
from graph_agent.runs.spending import work_left_s
from graph_agent.state.schema import INITIAL_BOOKKEEPING, Bookkeeping
from graph_agent.tools.idempotency import current_call
from graph_agent.tools.output import cut_short
from graph_agent.types import Call, is_delegation

T = TypeVar("T")
_FIELDS = frozenset({"id", "name", "arguments"})
Update = list[tuple[str, Any]]
"""A node's update, as pairs of field and value."""


@dataclass(frozen=True, slots=True)
class CallToRun:
    """A call after edits by a person, and the events that its task adds to the history."""

    call: Call
    events: list[StoredEvent]
    """The call's event if the history has none, or one with other arguments; else empty."""


async def call_to_run(call: Call, config: RunnableConfig, runtime: Runtime[Any], deps: AgentDeps) -> CallToRun | Update:
    """Return the call that a task runs: the one it received, unless a person has edited it since planning.

    Args:
        call: The call that the task received.
        config: The task's config.
        runtime: The task's runtime.
        deps: The agent.

    Returns:
        The call; or the task's update if there is nothing to run, because the call has a result or was removed.

    Raises:
        InputError: If the task was created by another graph, whose thread this agent continues.
    """
    if not isinstance(call, dict) or not call.keys() >= _FIELDS:
        raise InputError(
            "This session was stopped in the middle of calls that another graph had planned, which this agent cannot "
            "resume. Send new input: the open calls are then settled as unknown, and the conversation continues."
        )
    run = run_of(config)
    run.started_tasks.add(call["id"])
    if call["id"] in run.planned:
        return CallToRun(call, [])
    state = read_state(config, FIELDS)
    wave, step = current_wave(state), state.get("loop", INITIAL_BOOKKEEPING)["step"]
    current = wave.ready.get(call["id"])
    if current in state.get("ready", ()) and (kept := await finished_before(call, config, runtime, run)) is not None:
        return kept
    if (answer := wave.answered.get(call["id"])) is not None:
        return [("events", [answer_event(*answer, step)]), ("arrived", True)]
    events = since_plan(state.get("events", ()))
    if (
        current is not None
        and is_delegation(current["name"]) == is_delegation(call["name"])
        and not await needs_approval(current, events, config, runtime, state, deps)
    ):
        return CallToRun(current, announce([current], events, step, runtime.stream_writer))
    is_open = any(other["id"] == call["id"] for other in wave.open)
    writes = deps.toolbox.writes(call["name"]) and not deps.toolbox.repeatable(call["name"])
    ledger = state.get("loop", INITIAL_BOOKKEEPING).get("ledger", False)
    if is_open and writes and not await may_start(call, config, runtime, run, ledger=ledger):
        message = ToolMessage(UNKNOWN, tool_call_id=call["id"], name=call["name"], status="error")
        result = result_event(call["id"], call["name"], "unknown", UNKNOWN, step)
        return [("messages", [message]), ("events", [result]), ("arrived", True)]
    # `plan` handles the rest of the call after the wave.
    return [("arrived", True)]


async def run_in_slot(
    call: Call,
    config: RunnableConfig,
    runtime: Runtime[Any],
    state: dict[str, Any],
    settings: LoopConfig,
    deps: AgentDeps,
    work: Callable[[], Awaitable[T]],
) -> T | CallResult:
    """Run a call when a slot is free, unless an earlier run may have started it.

    Args:
        call: The call.
        config: The task's config.
        runtime: The task's runtime.
        state: The state's `loop`.
        settings: The configuration in force.
        deps: The agent.
        work: Executes the call.

    Returns:
        The result of `work`; or the call's result if it was not run, or stopped by an abort or a deadline.
    """
    run, loop = run_of(config), state.get("loop", INITIAL_BOOKKEEPING)
    writes, ledger = deps.toolbox.writes(call["name"]), loop.get("ledger", False)
    # Outside the scope: a run that is aborted at its start must still report calls of earlier runs correctly.
    started = call["id"] not in run.planned and await may_have_started(
        call, config, runtime, run, writes=writes, ledger=ledger
    )
    done: T | CallResult = CallResult(UNKNOWN, "unknown")
    with run.interruptible(work_left_s(run, loop, settings)) as scope:
        async with deps.slots.of_wave(runtime, settings.max_parallel_calls):
            # Otherwise the call would run until its first await, or interrupt again.
            if scope.cancel_called:
                await anyio.lowlevel.checkpoint_if_cancelled()
            if writes:
                repeatable = deps.toolbox.repeatable(call["name"])
                if not repeatable and not await may_start(call, config, runtime, run, ledger=ledger):
                    return done
                if ledger or call["id"] not in run.planned:
                    await note_started(call, config, runtime, run)
            await run.confirm_held()
            started = True
            run.started_calls.add(call["id"])
            with current_call(run.session_id, call, _wave(config, loop)):
                done = await work()
    if not scope.cancelled_caught:
        return done
    return cut_short("abort" if run.aborted else "deadline", started=started, writes=writes)


def _wave(config: RunnableConfig, loop: Bookkeeping) -> str:
    """Return an id of a call's wave: unique within the session, and stable across resumes."""
    graph = config["configurable"].get("checkpoint_ns", "").rpartition("|")[0]
    return f"{graph}/{loop['last_input_id']}/{loop['turn']}/{loop['step']}"
