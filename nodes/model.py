"""The `model` node of an agent with hooks around the model: ask for the next wave, or for the answer."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent.deps import AgentDeps, deps_of_run
from graph_agent.nodes.finalize import AnswerUpdate
from graph_agent.nodes.plan import ask_before_deadline
from graph_agent.planning.hook_results import hold_answer, hold_reply, is_failed
from graph_agent.planning.update import PlanUpdate
from graph_agent.runs.run import run_of
from graph_agent.state.schema import LoopOutcome, PlanState


async def model_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps
) -> Command[Any]:
    """Ask the model, and leave its reply in the history, where hooks see it; `plan` then acts on it.

    Returns:
        An update as a list of pairs (see `plan_node`).
    """
    deps = deps_of_run(deps, runtime)
    loop = state["loop"]
    # A drain waits until `plan` has read the reply: it may be the answer, of which the client has received the text.
    run_of(config).answering = True
    if loop["outcome"] is None:
        update = PlanUpdate(state, deps, config, runtime)
        await ask_before_deadline(update)
        hold_reply(update)
        return Command(update=[*update.as_pairs(), ("arrived", True)])
    if is_failed(loop):
        return Command(update=[("arrived", True)])
    answer = AnswerUpdate(state, deps.settings(runtime, config, loop), deps, config)
    await answer.produce()
    return Command(update=[*hold_answer(_composed(answer)), ("arrived", True)])


def _composed(answer: AnswerUpdate) -> dict[str, Any]:
    """The state update with an answer that `finalize` closes the input with."""
    draft = answer.partial if answer.error is not None else answer.answer
    outcome: LoopOutcome = {**answer.outcome, "stop_reason": answer.reason, "composed": True}
    if answer.error is not None:
        outcome["failed"] = True
    elif answer.requests is not None and answer.requests.stream.text:
        outcome["shown"] = True
    if draft is not None:
        outcome["draft"] = draft
    return {"events": answer.events, "loop": {**answer.loop, "outcome": outcome}, "usage": answer.usage}
