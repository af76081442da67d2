"""Running one call of a wave in its turn: not twice where it may write, and no longer than the run may last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio.lowlevel
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent.config import LoopConfig
from graph_agent.cut_short import cut_short
from graph_agent.effects import may_begin, may_have_begun, note_started
from graph_agent.events import ResultStatus
from graph_agent.idempotency import current_call
from graph_agent.parts import AgentParts
from graph_agent.runs import run_of
from graph_agent.settlement import UNKNOWN
from graph_agent.spending import work_left_s
from graph_agent.state import Bookkeeping
from graph_agent.types import Call

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NotDone:
    """What is known of a call that was not run to its end."""

    content: str
    status: ResultStatus


async def in_turn(
    call: Call,
    config: RunnableConfig,
    runtime: Runtime[Any],
    state: dict[str, Any],
    settings: LoopConfig,
    parts: AgentParts,
    work: Callable[[], Awaitable[T]],
) -> T | NotDone:
    """Do the work of a call when a slot is free, unless an earlier run may have done it.

    Args:
        call: The call.
        config: The task's config.
        runtime: The task's runtime.
        state: The state's `loop` and `ready`.
        settings: The configuration in force.
        parts: The agent.
        work: What the call is.

    Returns:
        What `work` returned; or what there is to say where it was not done, or was cut short by an abort or a deadline.
    """
    run, loop = run_of(config), state["loop"]
    writes, ledger = parts.toolbox.writes(call["name"]), loop.get("ledger", False)
    run.taken_up.add(call["id"])
    # Asked outside the scope: a run that is stopped from its start must not deny what an earlier one did.
    begun = await may_have_begun(call, config, runtime, run, writes=writes, ledger=ledger)
    done: T | NotDone = NotDone(UNKNOWN, "unknown")
    with run.interruptible(work_left_s(run, loop, settings)) as scope:
        async with parts.slots.of_wave(runtime, settings.max_parallel_calls):
            # A call would run on to its first wait otherwise, or ask a person once more.
            if scope.cancel_called:
                await anyio.lowlevel.checkpoint_if_cancelled()
            if writes:
                repeatable = parts.toolbox.repeatable(call["name"])
                if not repeatable and not await may_begin(call, config, runtime, run, ledger=ledger):
                    return done
                if ledger or call["id"] not in run.planned:
                    wave = [other for other in state["ready"] if parts.toolbox.writes(other["name"])]
                    await note_started(wave, config, runtime, run)
            await run.confirm_held()
            begun = True
            run.begun.add(call["id"])
            with current_call(run.session_id, call, _wave(config, loop)):
                done = await work()
    if not scope.cancelled_caught:
        return done
    return NotDone(*cut_short("abort" if run.aborted else "deadline", begun=begun, writes=writes))


def _wave(config: RunnableConfig, loop: Bookkeeping) -> str:
    """Names the wave a call is of, the same however often it is resumed, and no other wave of the session."""
    graph = config["configurable"].get("checkpoint_ns", "").rpartition("|")[0]
    return f"{graph}/{loop['last_input_id']}/{loop['turn']}/{loop['step']}"
