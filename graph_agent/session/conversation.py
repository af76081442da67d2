"""Asks the agent's model for the summary of a conversation, and estimates the tokens of a request, without a run.

A hook is user code around the requests of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.errors import HookError
from graph_agent.base.model_error_text import ModelErrorKind
from graph_agent.base.settings.config import AgentContext, coerce_context, effective_config, set_fields
from graph_agent.base.types import Usage
from graph_agent.core.execution.deps import AgentDeps, deps_of_run
from graph_agent.core.extensions.hook_failures import hook_error
from graph_agent.core.extensions.hook_pipeline import MiddlewareNode
from graph_agent.core.extensions.invoke import belongs_to_run
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.hooked_requests import prepare
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.summary import EmptySummaryError, request_summary, use_summary
from graph_agent.core.state.schema import INITIAL_LOOP, loop_of_new_input
from graph_agent.models.errors import classify_model_error

_WINDOW_SHARE = 0.75
"""Share of the model's context window that the request for the summary may fill with the conversation."""
_LEAST_TOKENS = 5_000
"""Minimum of the tokens that the summary may have, because a short conversation may need a long summary."""


class NoSummaryError(Exception):
    """A conversation could not be summarized.

    Args:
        kind: `stopped` if a hook ended the request before the model, `hook` if a hook with `on_error = "fail"` or a
            middleware failed, `empty_answer` if the reply has no text or is a refusal; otherwise the kind of the
            provider's error, which is the `__cause__`.
    """

    def __init__(self, kind: ModelErrorKind | Literal["stopped", "hook", "empty_answer"]) -> None:
        super().__init__(kind)
        self.kind = kind


async def summarize_conversation(
    deps: AgentDeps, messages: Sequence[AnyMessage], instructions: str | None, context: AgentContext
) -> tuple[str, Usage]:
    """Summarize a conversation with the agent's model; return the summary, and the usage of all model calls.

    Nothing is stored.

    Hooks and middleware apply as in a run: hooks before the model receive the messages, loop hooks may rewrite the
    results, and middleware wraps the request. In the messages, each call is directly followed by its result.

    Args:
        deps: The agent.
        messages: The conversation, oldest message first.
        instructions: What to keep in the summary; None for the default prompt alone.
        context: Overrides and credentials, as in a run.

    Raises:
        NoSummaryError: A hook or the provider prevents the summary, the reply has no text, or anything else fails, such
            as an invalid setting in `context`.
    """
    own, found = deps.toolbox.own, list[tuple[str, Usage]]()

    async def summarize(state: dict[str, Any], runtime: Runtime[Any]) -> dict[str, Any]:
        """Node that requests the summary of the messages that the hooks have left; the state does not change.

        Adds the text and the usage of the request to `found`.
        """
        given = coerce_context(runtime.context, deps.context_schema)
        settings = effective_config(deps.config, given, deps.context_schema)
        chain = await deps.models.chain(settings)
        conversation = state["messages"]
        exchange = Exchange(
            NextRequest(agent=deps, chain=chain, settings=settings, conversation=conversation, loop=INITIAL_LOOP)
        )
        await prepare(exchange, (), may_summarize=False)
        request = exchange.request
        tokens = max(estimated_tokens(request.history), _LEAST_TOKENS)
        if request.window is not None:
            tokens = min(tokens, int(request.window * _WINDOW_SHARE))
        text = await request_summary(exchange, request.history, tokens, instructions)
        found.append((text, exchange.usage))
        return {}

    # A graph, so that hooks and middleware have a state and a runtime, as in a run.
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(
        own.state_schema, context_schema=deps.context_schema, input_schema=own.input_schema
    )
    last = START
    for hook in (*deps.hook_set.before_agent, *deps.hook_set.before_model) if deps.hook_set else ():
        graph.add_node(hook.node, _node_of(hook), input_schema=own.hook_schema)
        graph.add_edge(last, hook.node)
        last = hook.node
    graph.add_node("summarize", summarize, input_schema=own.state_schema)
    graph.add_edge(last, "summarize")
    try:
        await graph.compile().ainvoke({"messages": list(messages)}, context=context)
    except NoSummaryError:
        raise
    except EmptySummaryError:
        raise NoSummaryError("empty_answer") from None
    except HookError as error:
        raise NoSummaryError("hook") from error
    except Exception as error:  # a provider may raise anything
        raise NoSummaryError(classify_model_error(error)) from error
    return found[0]


def _node_of(hook: MiddlewareNode) -> Callable[..., Any]:
    """Return a node that runs a hook.

    The node raises `HookError` if the hook fails, and `NoSummaryError("stopped")` if the hook jumps. Errors that belong
    to the run, such as interrupts, pass unchanged.
    """

    async def run(state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        """Run the hook, and return its update of the state.

        Raises `HookError` if it fails, and `NoSummaryError` if it jumps.
        """
        try:
            update = await hook.run(state, config)
        except Exception as error:
            if belongs_to_run(error):
                raise
            raise hook_error(hook.node, error) from error
        if update.pop("jump_to", None):
            raise NoSummaryError("stopped")
        return update

    return run


async def estimate_request(
    deps: AgentDeps,
    state: Mapping[str, Any],
    messages: Sequence[AnyMessage],
    context: Mapping[str, Any],
    session_id: str,
) -> int:
    """Estimate the tokens of an input's first model request, as budgets and compaction count them. No request is sent,
    but tools and delegates are refreshed.

    The request has the system prompt, the tools, and the history with the current summary. Changes by hooks and
    middleware, and a summary or compaction that the input itself would cause, are not considered.

    Args:
        deps: The agent.
        state: The stored state of the session; empty for a new session.
        messages: All messages of the session and the input.
        context: The context of the run.
        session_id: Id of the session.

    Raises:
        ConfigError: The agent's system prompt is a function that fails outside a run, or a setting in `context` is
            invalid.
    """
    deps = deps_of_run(deps, Runtime(context=context))
    await deps.prepare()
    own = coerce_context(context, deps.context_schema)
    loop = loop_of_new_input(state.get("loop", {}), set_fields(own) if own is not None else {})
    settings = effective_config(
        deps.config, context, deps.context_schema, loop.get("config_overrides"), loop.get("approve", ())
    )
    chain = await deps.models.chain(settings)
    request = NextRequest(
        agent=deps, chain=chain, settings=settings, conversation=messages, loop=loop, thread_id=session_id
    )
    request = use_summary(request, state.get("events", ()))
    sent = request.messages() if deps.plans else request.answer_messages()
    # In the other modes, the system prompt describes the tools.
    tools: list[BaseTool | dict[str, Any]] = [*request.deps.client.schemas] if request.mode == "native" else []
    return estimated_tokens(sent, tools=tools or None)
