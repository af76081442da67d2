"""The summary of a conversation outside a session, requested in the same way as that of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AnyMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

from graph_agent.context import AgentContext, coerce_context, effective_config
from graph_agent.deps import AgentDeps
from graph_agent.hooks.pipeline import NodeHook
from graph_agent.planning.active_model import ActiveModel, planner_of
from graph_agent.planning.hooked_requests import HookedRequests
from graph_agent.planning.prompt import PreparedHistory
from graph_agent.planning.requests import ModelRequests
from graph_agent.planning.summary import request_summary
from graph_agent.state.schema import INITIAL_BOOKKEEPING
from graph_agent.types import Usage

_WINDOW_SHARE = 0.75
"""Share of the model's context window that the conversation may fill in the request for the summary."""
_LEAST_TOKENS = 5_000
"""Tokens for which the summary has room, at least; a short conversation may need a long summary."""


class StoppedByHookError(Exception):
    """A hook has ended the request before the model; the argument is the hook's node."""


async def summarize_conversation(
    deps: AgentDeps, messages: Sequence[AnyMessage], instructions: str | None, context: AgentContext
) -> tuple[str, Usage]:
    """Have the agent's model summarize a conversation.

    The hooks before the model see the messages, loop hooks rewrite the tool results, and middleware wraps the request.

    Args:
        deps: The agent.
        messages: The conversation, each call directly followed by its results.
        instructions: System message of the request; None for none.
        context: Context of the run.

    Returns:
        The summary, and the usage of all model calls.

    Raises:
        StoppedByHookError: If a hook jumps.
        NoSummaryError: If the model gives no summary.
        HookError: If a hook with `on_error = "fail"` fails.
        Exception: An error of the model's provider or of middleware.
    """
    own, found = deps.toolbox.own, list[tuple[str, Usage]]()

    async def summarize(state: dict[str, Any], runtime: Runtime[Any]) -> dict[str, Any]:
        given = coerce_context(runtime.context, deps.context_schema)
        settings = effective_config(deps.config, given, deps.context_schema)
        chain = await deps.models.chain(settings)
        planner = planner_of("", settings, deps.agentic_loop)
        active = ActiveModel(deps, chain, settings, state["messages"], INITIAL_BOOKKEEPING, planner, PreparedHistory())
        requests = ModelRequests(active, lambda *_: None)
        await HookedRequests(requests, "").rewrite_results()
        tokens = max(count_tokens_approximately(active.history), _LEAST_TOKENS)
        if active.window is not None:
            tokens = min(tokens, int(active.window * _WINDOW_SHARE))
        text = await request_summary(requests, active.history, tokens, instructions)
        found.append((text, requests.usage))
        return {}

    # A graph, so that hooks and middleware have a state and a runtime, as in a run.
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(
        own.state_schema, context_schema=deps.context_schema, input_schema=own.input_schema
    )
    last = START
    for hook in (*deps.hook_set.before_agent, *deps.hook_set.before_model):
        graph.add_node(hook.node, _node_of(hook), input_schema=own.hook_schema)
        graph.add_edge(last, hook.node)
        last = hook.node
    graph.add_node("summarize", summarize, input_schema=own.state_schema)
    graph.add_edge(last, "summarize")
    await graph.compile().ainvoke({"messages": list(messages)}, context=context)
    return found[0]


def _node_of(hook: NodeHook) -> Callable[..., Any]:
    async def run(state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        update = await hook.run(state, config)
        if update.pop("jump_to", None):
            raise StoppedByHookError(hook.node)
        return update

    return run
