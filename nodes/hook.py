"""Runs one `before_` or `after_` hook of middleware as a node of the graph, and asks the model between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent.base._compat import read_state
from graph_agent.base.errors import HookError, UserError
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.core.execution.approvals import answered_approvals
from graph_agent.core.execution.deps import AgentDeps, Task, work_left_s
from graph_agent.core.execution.uncertain_calls import with_uncertain_calls
from graph_agent.core.extensions.hook_failures import hook_error
from graph_agent.core.extensions.hook_pipeline import MiddlewareNode
from graph_agent.core.extensions.invoke import belongs_to_run
from graph_agent.core.planning.answer import AnswerUpdate
from graph_agent.core.planning.failures import failure_event
from graph_agent.core.planning.middleware_replies import hold_answer, hold_reply, is_failed, message_changes, skips
from graph_agent.core.planning.update import PlanUpdate, limit_event
from graph_agent.core.state.custom_state import RESERVED, CustomState
from graph_agent.core.state.messages import messages_fault, value_fault
from graph_agent.core.state.run import WorkStoppedError
from graph_agent.core.state.schema import LoopOutcome, PlanState
from graph_agent.nodes.plan import ask_before_deadline

_OPEN = ("messages", "jump_to", "structured_response")
"""Fields of the agent's own state that every hook may write."""


async def hook_node(
    state: Mapping[str, Any], config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps, hook: MiddlewareNode
) -> Command[Any]:
    """Run one `before_` or `after_` hook of an `AgentMiddleware`, unless `skips` excludes it, as after a failure of the
    input.

    An exception of the hook, or an update that the hook may not make, makes the input fail: it is logged, and an
    `error` event is added. An abort or the deadline cancels the hook and ends the input. A `jump_to` that the hook has
    not declared is ignored.

    Args:
        state: The state that the hook receives, by the agent's `hook_schema`.
        config: LangGraph's config of the node.
        runtime: LangGraph's runtime of the node.
        deps: The agent's parts.
        hook: The hook.

    Returns:
        An update as a list of pairs (see `plan_node`): the hook's own fields, a `middleware` event if it changes the
        messages or jumps, and the events of approvals that the hook asked for.

    Raises:
        UserError: The hook raised one, about an error of the program's configuration or input.
        GraphInterrupt: The hook asks a person. Calls in the request that may repeat an earlier effect are marked.
    """
    task = Task.of(read_state(config, ["loop"]), config, runtime, deps)
    loop, run = task.loop, task.run
    if skips(hook, loop):
        return Command(update=[("wave_finished", True)])
    # Copied: LangChain's middleware changes the list of its message.
    planned = _planned(state.get("messages", ()))
    try:
        # An answer that has been found may use the time that is kept back for it.
        left_s = None if loop["outcome"] is not None else work_left_s(run, loop, task.settings)
        update = await run.stop.stoppable(hook.run(state, config), f"The hook {hook.node}", left_s)
        _check(update, deps.toolbox.own)
        if update.get("jump_to") not in hook.jumps:
            update.pop("jump_to", None)  # as in LangChain, a jump that `can_jump_to` does not declare has no effect
        changes = _events(update, state, hook, loop["step"])
    except GraphInterrupt as asked:
        raise with_uncertain_calls(asked, task) from None
    # The developer must fix it, so the caller gets the exception itself.
    except UserError:
        raise
    except WorkStoppedError:
        return _stopped(task, hook)
    except BaseException as error:
        if belongs_to_run(error):
            raise
        ended = hook_error(hook.node, error)
        run.record_cause(ended)
        failed = failure_event(ended, loop["step"], "")
        outcome = {"stop_reason": "failed"}
        return Command(update=[("wave_finished", True), ("events", [failed]), ("loop", {**loop, "outcome": outcome})])
    approvals = await answered_approvals(task, planned, hook.owner)
    return Command(update=[*update.items(), ("wave_finished", True), ("events", [*approvals, *changes])])


def _stopped(task: Task, hook: MiddlewareNode) -> Command[Any]:
    """Return the update after an abort or the deadline has stopped a hook: it ends the input with the stop reason
    `aborted` or `deadline`.

    It has a `warning` event, and for the deadline a `limit` event, too. A reply that the hooks have not processed is
    not used.
    """
    message = f"The hook {hook.node} was stopped before its end."
    outcome: LoopOutcome = {"stop_reason": "aborted" if task.run.stop.aborted else "deadline"}
    if not task.run.stop.aborted and task.settings.deadline_s is not None:
        outcome["limit"] = task.settings.deadline_s
    events = [event("warning", task.step, message=message)]
    if "limit" in outcome:
        events.append(limit_event(task.deps.prompts, task.step, "deadline", outcome["limit"]))
    return Command(update=[("wave_finished", True), ("events", events), ("loop", {**task.loop, "outcome": outcome})])


def _planned(messages: Sequence[AnyMessage]) -> list[ToolCall]:
    """Return a copy of the list of calls of the model's newest message; empty if it has none, or if there is no such
    message.
    """
    newest = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    return [*newest.tool_calls] if newest is not None else []


def _check(update: Mapping[str, Any], own: CustomState) -> None:
    """Raise `HookError` if a hook's update writes a field that hooks may not write, or an invalid value.

    `jump_to`, `messages`, `structured_response` and the fields of `own` may be written; `messages` must be messages,
    and every value must be one that a checkpoint can store.

    Args:
        update: The update that the hook returned.
        own: The fields of the agent's `state_schema`.

    Raises:
        HookError: A field or value is refused; the message names the field, the reason and the fix.
    """
    for name, value in update.items():
        if name == "jump_to":
            continue
        if name == "messages":
            fault = messages_fault(value)
        elif name == "structured_response":
            fault = value_fault(value)
        elif name in own.names:
            if (own_fault := own.fault(name, value)) is not None:
                raise HookError(f"it wrote what it may not: {own_fault}.")
            continue
        elif name in RESERVED:
            fault = f"it belongs to the agent itself; a hook may write {', '.join(_OPEN)} and own fields"
        else:
            fault = "it is not declared; add it to the `state_schema` of the middleware or of the agent"
        if fault is not None:
            raise HookError(f"it wrote the state field {name!r}: {fault}.")


def _events(update: Mapping[str, Any], state: Mapping[str, Any], hook: MiddlewareNode, step: int) -> list[StoredEvent]:
    """Return one `middleware` event if a hook's update changes the messages or jumps; otherwise an empty list.

    Args:
        update: The hook's update, already checked.
        state: The state that the hook received, with the messages before the update.
        hook: The hook, whose middleware and point the event names.
        step: Number of the plan.
    """
    fields: dict[str, Any] = {}
    if "messages" in update:
        fields = message_changes(state.get("messages", ()), update["messages"])
    if jump := update.get("jump_to"):
        fields["jump_to"] = jump
    return [event("middleware", step, name=hook.owner, hook=hook.point, **fields)] if fields else []


async def model_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps
) -> Command[Any]:
    """Ask the model for a plan or the answer, and put the reply into the history, so that middleware hooks process it
    before `plan` acts on it.

    If planning is over (the loop state has an outcome), the model is asked for the answer, and the reply is kept as a
    draft. After a failure, nothing is asked. The run's `answering` is set, so that a drain does not stop the run before
    `plan` has read the reply.

    Returns:
        An update as a list of pairs (see `plan_node`).

    Raises:
        UserError: The program's configuration or input is at fault.
    """
    task = Task.of(state, config, runtime, deps)
    # A drain waits until `plan` has read the reply: it may be the answer, of which the client has received the text.
    task.run.answering = True
    if task.loop["outcome"] is None:
        update = PlanUpdate(task)
        await ask_before_deadline(update)
        hold_reply(update)
        return Command(update=[*update.as_pairs(), ("wave_finished", True)])
    if is_failed(task.loop):
        return Command(update=[("wave_finished", True)])
    answer = AnswerUpdate(task)
    await answer.produce()
    return Command(update=[*hold_answer(_composed(answer)), *answer.written, ("wave_finished", True)])


def _composed(answer: AnswerUpdate) -> dict[str, Any]:
    """Return the state update with the answer that was produced as the outcome's `draft`, with which `finalize` ends
    the input later.

    After a failure, the draft is the part that was streamed, and the outcome has `failed`. Otherwise the outcome has
    `shown` if a part of the answer was streamed.
    """
    draft = answer.partial if answer.error is not None else answer.answer
    outcome: LoopOutcome = {**answer.outcome, "stop_reason": answer.reason, "composed": True}
    if answer.error is not None:
        outcome["failed"] = True
    elif answer.exchange is not None and answer.exchange.stream.text:
        outcome["shown"] = True
    if draft is not None:
        outcome["draft"] = draft
    return {"events": answer.events, "loop": {**answer.loop, "outcome": outcome}, "usage": answer.usage}
