"""Composes and streams the answer, and closes the input: the `finalize` node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent.base._compat import is_observed
from graph_agent.base.usage import add_usage
from graph_agent.core.execution.deps import AgentDeps, Task
from graph_agent.core.planning.answer import AnswerUpdate
from graph_agent.core.planning.handoffs import handoff_command
from graph_agent.core.planning.update import PlanUpdate
from graph_agent.core.state.schema import PlanState


async def finalize_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps
) -> dict[str, Any] | Command[Any] | list[dict[str, Any] | Command[Any]]:
    """Answer the input, with a streamed model call if planning gave no answer, and end it.

    Raises `UserError` for a fault of the program's configuration or input.

    Returns:
        An update with the answer, its event and the session's status. If a model failed: status `FAILED`, an `error`
        event, and a message with the failure. A command that leads back to `plan` if an edit left no outcome, or if the
        user sent a message meanwhile (steering); a command to the parent graph for a handoff. If middleware wrote to
        the state, a list of this update and a command with these writes.
    """
    # A person may have edited the state with `as_node`, so that this node runs too early.
    if "loop" not in state or state["loop"]["outcome"] is None:
        return Command(goto="plan")
    if (leaving := handoff_command(state)) is not None:
        return leaving
    answered = await answer_input(Task.of(state, config, runtime, deps))
    update: dict[str, Any] | Command[Any] = answered.fields  # LangGraph streams the messages of no other update
    if answered.steered:
        update = Command(update=update, goto="plan")
    return [update, Command(update=answered.written)] if answered.written else update


class Answered(NamedTuple):
    """The state writes of a pass through `finalize`."""

    fields: dict[str, Any]
    """The state update."""
    written: list[tuple[str, Any]]
    """Pairs of field and value that middleware wrote, which follow the answer."""
    steered: bool
    """Whether the user sent a message meanwhile, so that `plan` is next and the input goes on."""


async def answer_input(task: Task) -> Answered:
    """Produce the answer of an input, and close the input unless the user has sent a message meanwhile."""
    answer = AnswerUpdate(task)
    await answer.run()
    # A message that arrives during the answer belongs to this input.
    if await answer.receive_steering():
        return Answered(answer.update_for_next_plan(), answer.written, steered=True)
    fields = await answer.update()
    answer.exchange = None  # which refers to the answer: without the cycle, the history is freed with the run
    return Answered(fields, answer.written, steered=False)


def may_finalize(update: PlanUpdate) -> bool:
    """Whether `plan` may also do the work of `finalize`, which saves a superstep.

    It may if planning has ended without a handoff, a written message and a change of `remote`, the run stores nothing,
    the agent has no middleware hooks and own state fields, and no reader of the stream distinguishes the two nodes.
    """
    outcome, deps = update.loop["outcome"], update.deps
    if outcome is None or not update.run.is_unobserved or deps.hook_set or deps.toolbox.own.names:
        return False
    # A handoff needs a superstep of its own, and a written message an id from LangGraph.
    is_plain = "handoffs" not in outcome and not update.changes.keys() & {"messages", "remote"}
    return is_plain and not is_observed(update.task.config)


async def finalize_in_plan(update: PlanUpdate) -> Command[Any]:
    """Answer the input that a pass through `plan` ends; return the update of both nodes, which leads to the end or to
    `plan`."""
    planned = dict(update.as_pairs())
    usage = planned.pop("usage", None)
    state = {
        **update.state,
        **planned,
        "events": [*update.state.get("events", ()), *update.events],
        "usage": add_usage(update.state.get("usage"), usage),
        "remaining_steps": update.state["remaining_steps"] - 1,
    }
    task = replace(update.task, state=state, loop=update.loop, settings=update.settings)
    update.run.answering = True
    answered = await answer_input(task)
    fields = {**planned, **answered.fields, "events": [*update.events, *answered.fields["events"]]}
    # Both statuses are written: the channel checks each transition.
    first = [(name, value) for name, value in planned.items() if name == "status" and name in answered.fields]
    if usage is not None:
        first.append(("usage", usage))
    pairs = [*first, *fields.items(), *answered.written]
    return Command(update=pairs, goto="plan" if answered.steered else END)
