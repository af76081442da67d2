"""Estimated size of the request that an input would send to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime

from graph_agent.context import coerce_context, effective_config, set_fields
from graph_agent.deps import AgentDeps, deps_of_run
from graph_agent.planning.active_model import ActiveModel, planner_of
from graph_agent.planning.prompt import PreparedHistory, closing, plan_request
from graph_agent.planning.requests import ModelRequests
from graph_agent.planning.summary import use_summary
from graph_agent.state.schema import bookkeeping_of_new_input


async def estimate_request(
    deps: AgentDeps,
    state: Mapping[str, Any],
    messages: Sequence[AnyMessage],
    context: Mapping[str, Any],
    session_id: str,
) -> int:
    """Estimate the tokens of the first request of an input, with the counter that budgets and compaction use.

    The request has the system prompt, the tools, and the history with the summary in force. It is counted before hooks
    and middleware, and before a summary or a compaction that the input itself would cause.

    Args:
        deps: The agent.
        state: The values of the session's state; empty for a new session.
        messages: All messages of the session, and those of the input.
        context: The run's context, as fields of `AgentContext`.
        session_id: The session's thread.

    Raises:
        ConfigError: If the agent's system prompt is a function that fails outside a run.
    """
    deps = deps_of_run(deps, Runtime(context=context))
    await deps.prepare()
    own = coerce_context(context, deps.context_schema)
    loop = bookkeeping_of_new_input(state.get("loop", {}), set_fields(own) if own is not None else {})
    settings = effective_config(deps.config, context, deps.context_schema, loop.get("changed"), loop.get("approve", ()))
    planner, chain = planner_of(session_id, settings, deps.agentic_loop), await deps.models.chain(settings)
    active = ActiveModel(deps, chain, settings, messages, loop, planner, PreparedHistory())
    use_summary(ModelRequests(active, lambda *_: None), state.get("events", ()))
    request: list[AnyMessage] = list(
        plan_request(active.deps, active.prepared_history, settings, active.mode, active.planner)
    )
    if not deps.plans:
        request += closing(active.deps, active.mode)
    # In the other modes, the system prompt describes the tools.
    tools: list[BaseTool | dict[str, Any]] = [*active.deps.client.schemas] if active.mode == "native" else []
    return count_tokens_approximately(request, tools=tools or None)
