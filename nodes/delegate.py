"""Runs one delegation, a task that the model hands to another agent: the `delegate` node."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from graph_agent.base._compat import read_state
from graph_agent.base._internal.sync_bridge import await_within
from graph_agent.base.calls import delegate_name
from graph_agent.base.history.call_events import CallResult, fault_result
from graph_agent.base.types import Call
from graph_agent.core.execution.approvals import question_value
from graph_agent.core.execution.delegate_call import (
    ProgressReporter,
    UsageTally,
    checked_result,
    delegation_update,
    logged_failure,
    run_delegate,
    run_through_middleware,
    waiting_task,
)
from graph_agent.core.execution.deps import AgentDeps, Task
from graph_agent.core.execution.run_call import CallTimer, CallToRun, call_to_run, run_in_slot
from graph_agent.core.extensions.delegation import ContinuingDelegate, DelegationResult
from graph_agent.core.extensions.invoke import belongs_to_run


async def delegate_node(call: Call, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps) -> Command[Any]:
    """Run one delegation and return the state update with its result. Errors of the delegate or of middleware become
    results.

    A call may get its result without running, as in `tools_node`. If the delegate asks a person, its task is stored in
    the state, and `plan` sends the call here again. Only this second execution interrupts the graph, because a resume
    runs this node from its start. A waiting task that is not resumed is cancelled.

    Returns:
        An update as a list of pairs (see `plan_node`): the result's message and event, usage, and changes of `remote`.

    Raises:
        GraphInterrupt: The delegate's question has no answer yet, or middleware asks a person.
        InputError: Another graph planned the call, on a thread that this agent continues.
        SessionLostError: This process has lost the session's lock.
    """
    state = read_state(config, ["messages", "loop", "ready", "usage", "remote"])
    task = Task.of(state, config, runtime, deps)
    to_run = await call_to_run(task, call)
    if not isinstance(to_run, CallToRun):
        return Command(update=to_run)
    call, deps, settings = to_run.call, task.deps, task.settings
    waiting = waiting_task(state.get("remote"), call)
    timer = CallTimer()
    progress, tally = ProgressReporter(call, task.step, runtime), UsageTally()
    answer: Any = None

    async def attempt(edited: Call) -> DelegationResult:
        limit_s = settings.delegate_timeout_s or settings.tool_timeout_s
        work = run_delegate(task, edited, answer, progress, tally)
        result = checked_result(await await_within(work, limit_s, f"The delegate {delegate_name(call['name'])!r}"))
        # Counted for each attempt: middleware may run the delegation again.
        tally(result.usage)
        return result

    async def work() -> DelegationResult:
        nonlocal answer
        # Interrupt before anything is sent, and only once for all attempts; not if one has passed the answer on.
        delegate: object = deps.toolbox.delegates.get(call["name"])
        if waiting is not None and not (
            isinstance(delegate, ContinuingDelegate) and await delegate.has_continued(waiting)
        ):
            answer = interrupt(question_value(call, waiting))

        failed = partial(logged_failure, call)
        try:
            if deps.wrap_tool_call is None:
                return await attempt(call)
            return await run_through_middleware(task, deps.wrap_tool_call, call, attempt, failed)
        except BaseException as error:
            if belongs_to_run(error):
                raise
            return failed(error)

    result: CallResult
    with timer:
        if "fault" in call:
            result = fault_result(call)
        else:
            result = await run_in_slot(task, call, timer, work)
        if not isinstance(result, DelegationResult):
            result = DelegationResult(result.content, result.status, stored=result.stored)
            if waiting is not None:
                # The delegate would otherwise wait for an answer that never comes.
                await deps.toolbox.withdraw({call["id"]: waiting})
        timer.report(call["name"], "waiting" if result.waiting is not None else result.status, result.content)
    # The usage of all attempts, including a delegate that was cancelled without a result.
    result = replace(result, usage=tally.usage)
    events = [*to_run.events, *progress.events]
    update = delegation_update(
        call,
        result,
        settings,
        task.step,
        events,
        waited=waiting,
        answer=answer,
        times=timer.fields(task, call, result.status),
    )
    return Command(update=update)
