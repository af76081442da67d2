"""Asks a person for decisions on the calls of a wave that need approval: the `approve` node.

A wave is the calls of one plan of the model. The node `plan` puts those that need approval into the loop state.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from graph_agent.base._compat import checkpointer_of
from graph_agent.base.approvals.decisions import read_decisions
from graph_agent.base.approvals.requests import request_for
from graph_agent.base.errors import ConfigError, DecisionError
from graph_agent.base.history.approval_events import decision_event
from graph_agent.base.history.events import is_own
from graph_agent.core.execution.deps import AgentDeps, Task
from graph_agent.core.extensions.toolbox import edit_fault
from graph_agent.core.state.schema import AgentState


async def approve_node(
    state: AgentState, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps
) -> dict[str, Any]:
    """Interrupt the graph with a request for decisions on the held calls; once there is an answer, record the decisions
    as events.

    The held calls are `awaiting_approval` of the loop state. If there is none, or the run was aborted, the node neither
    interrupts nor records anything. On a resume, LangGraph runs the node from its start, and `interrupt` returns the
    person's answer. An answer that does not fit the request is not raised: the graph is interrupted again, with the
    reason in the request's `error`. The decisions take effect in `plan`, which runs next.

    Args:
        state: The whole state.
        config: LangGraph's config of the node.
        runtime: LangGraph's runtime of the node.
        deps: The agent's parts.

    Returns:
        An update with `wave_finished`, and one `approval_decision` event for each decision.

    Raises:
        GraphInterrupt: There is no usable answer yet.
        ConfigError: There is no checkpointer, which an interrupt needs.
    """
    task = Task.of(state, config, runtime, deps)
    asked = task.loop.get("awaiting_approval", [])
    if task.run.stop.aborted or not asked:
        return {"wave_finished": True}
    if checkpointer_of(config) is None:
        raise ConfigError(
            f"The call {asked[0]['name']!r} needs a person's approval, and there is no checkpointer, so the run could "
            "not be resumed. Pass checkpointer=... to the agent."
        )
    toolbox = task.deps.toolbox
    error: str | None = None
    while True:
        answer = interrupt(request_for(asked, error))
        try:
            # In a thread: the schema of a tool may take seconds.
            decided = await asyncio.to_thread(read_decisions, asked, answer, partial(edit_fault, toolbox))
        except DecisionError as fault:
            # Not raised: LangGraph has stored the answer, and would use it again for every later resume.
            error = str(fault)
        else:
            requests = (entry for entry in reversed(state["events"]) if is_own(entry, "approval_request"))
            # The newest request: an earlier one asked about other calls.
            asked_at = next(requests)["ts"]
            decisions = [decision_event(each, task.step, asked_at=asked_at) for each in decided]
            return {"events": decisions, "wave_finished": True}
