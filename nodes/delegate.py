"""The `delegate` node: run one delegation to another agent."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent._compat import read_state
from graph_agent._internal.exception_text import exception_text
from graph_agent._internal.failure_log import log_failure
from graph_agent._internal.text import as_text, clean
from graph_agent.budgets import RemainingBudget, budget_for_delegates, has_budget
from graph_agent.config import LoopConfig
from graph_agent.delegation import DEPTH_LEFT, Delegation, DelegationResult
from graph_agent.deps import AgentDeps, deps_of_run
from graph_agent.errors import did_you_mean
from graph_agent.execution.delegate_call import (
    ProgressReporter,
    UsageTally,
    ask_person,
    checked_result,
    conversation_id_of,
    delegation_update,
    has_continued,
    resume_delegate,
    run_through_middleware,
    waiting_task,
)
from graph_agent.execution.run_call import CallToRun, call_to_run, run_in_slot
from graph_agent.models.usage import add_usage
from graph_agent.runs.run import WATCHED, run_of
from graph_agent.runs.spending import spent
from graph_agent.state.messages import CONTEXT_MARK, without_failure_report
from graph_agent.state.schema import INITIAL_BOOKKEEPING
from graph_agent.tools.invoke import belongs_to_run
from graph_agent.types import HIDDEN_ID_PREFIX, Call, Usage, delegate_name, is_delegation

logger = logging.getLogger(__name__)


async def delegate_node(call: Call, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps) -> Command[Any]:
    """Run one delegation and add its result; an error is a result too.

    If a delegate asks a person, its task is stored in the state, and `plan` sends the call here again. Only that second
    run interrupts the graph, because resuming runs this node from its start.

    Returns:
        An update with the result's message and event, as a list of pairs (see `plan_node`).
    """
    deps = deps_of_run(deps, runtime)
    to_run = await call_to_run(call, config, runtime, deps)
    if not isinstance(to_run, CallToRun):
        return Command(update=to_run)
    call = to_run.call
    state = {"loop": INITIAL_BOOKKEEPING, **read_state(config, ["messages", "loop", "ready", "usage", "remote"])}
    settings = deps.settings(runtime, config, state["loop"])
    waiting = waiting_task(state.get("remote"), call)
    progress, tally = ProgressReporter(call, state["loop"]["step"], runtime), UsageTally()
    answer: Any = None

    async def attempt(edited: Call, answer: Any) -> DelegationResult:
        result = checked_result(await _run(edited, answer, config, state, settings, deps, progress, tally))
        tally(result.usage)
        return result

    async def work() -> DelegationResult:
        if "fault" in call:
            return _error(call["fault"])
        nonlocal answer
        # Interrupt before anything is sent, and only once for all attempts.
        if waiting is not None and not await has_continued(deps.toolbox.delegates.get(call["name"]), waiting):
            answer = ask_person(call, waiting)

        def failed(error: BaseException) -> DelegationResult:
            name = delegate_name(call["name"])
            log_failure(logger, f"The delegate {name!r}", error, level=logging.WARNING)
            return _error(clean(f"The delegate {name!r} failed: {exception_text(error)}"))

        try:
            if deps.around_tool is None:
                return await attempt(call, answer)
            return await run_through_middleware(
                deps.around_tool, call, config, runtime, lambda edited: attempt(edited, answer), failed
            )
        except BaseException as error:
            if belongs_to_run(error):
                raise
            return failed(error)

    result = await run_in_slot(call, config, runtime, state, settings, deps, work)
    if not isinstance(result, DelegationResult):
        result = DelegationResult(result.content, result.status)
        if waiting is not None:
            await deps.toolbox.withdraw({call["id"]: waiting})
    # The usage of all attempts, including a delegate that was cancelled without a result.
    result = replace(result, usage=tally.usage)
    events = [*to_run.events, *progress.events]
    update = delegation_update(call, result, settings, state["loop"]["step"], events, waited=waiting, answer=answer)
    return Command(update=update)


async def _run(
    call: Call,
    answer: Any,
    config: RunnableConfig,
    state: dict[str, Any],
    settings: LoopConfig,
    deps: AgentDeps,
    progress: ProgressReporter,
    tally: UsageTally,
) -> DelegationResult:
    """Run one attempt; `answer` is the person's answer to the delegate's question, if there was one."""
    delegate = deps.toolbox.delegates.get(call["name"])
    if delegate is None:
        return _error(f"Unknown delegate {call['name']!r}; {did_you_mean(call['name'], deps.toolbox.names)}")
    task = call["arguments"].get("task")
    if task is not None and not isinstance(task, str):
        # A reference in a plan may resolve to any JSON.
        task = as_text(task)
    if not isinstance(task, str) or not task.strip():
        return _error(f"A delegation takes the task as text: {{'task': '…'}}, not {task!r}.")
    depth_left = min(
        settings.max_delegation_depth, config["configurable"].get(DEPTH_LEFT, settings.max_delegation_depth)
    )
    if depth_left < 1:
        return _error("This agent may not delegate further: the delegation depth is used up. Do the task yourself.")
    delegation = Delegation(
        id=call["id"],
        task=task,
        context=_context(state["messages"], settings.context_messages),
        session_id=config["configurable"].get("thread_id", ""),
        depth_left=depth_left - 1,
        budget=_share(config, state, settings, tally.usage),
        prices=settings.prices,
        context_id=conversation_id_of(state.get("remote"), delegate.name),
        report_progress=progress,
        watch=progress.pass_on if config["configurable"].get(WATCHED) else None,
        record_usage=tally,
    )
    if waiting := waiting_task(state.get("remote"), call):
        return await resume_delegate(delegate, delegation, waiting, answer)
    return await delegate.run(delegation)


def _share(config: RunnableConfig, state: dict[str, Any], settings: LoopConfig, attempts: Usage) -> RemainingBudget:
    """One delegation's share of the remaining budget, after its earlier attempts; equal for all of the wave."""
    if not has_budget(settings):
        return RemainingBudget()
    usage = add_usage(state["usage"], attempts)
    used = spent(run_of(config), state["loop"], usage, state["messages"], settings)
    delegations = sum(is_delegation(call["name"]) for call in state["ready"])
    return budget_for_delegates(used, settings).shared_by(max(1, delegations))


def _context(messages: list[AnyMessage], count: int) -> list[AnyMessage]:
    """The last messages with text; calls and results are omitted, as they have no meaning outside this run."""
    context: list[AnyMessage] = []
    for message in reversed(messages):
        if len(context) == count:
            break
        if (message.id or "").startswith(HIDDEN_ID_PREFIX):
            continue
        if isinstance(message, HumanMessage | AIMessage) and (text := without_failure_report(message).text):
            kind = HumanMessage if isinstance(message, HumanMessage) else AIMessage
            context.append(kind(content=text, additional_kwargs={CONTEXT_MARK: True}))
    return context[::-1]


def _error(content: str) -> DelegationResult:
    return DelegationResult(content, "error")
