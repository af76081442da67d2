"""Compacts a conversation to its user messages and one item with a summary, and estimates tokens of requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.errors import ConfigError, HookError
from graph_agent.base.settings.config import AgentContext, coerce_context, effective_config, set_fields
from graph_agent.base.types import HIDDEN_ID_PREFIX, Usage
from graph_agent.core.deps import AgentDeps, deps_of_run
from graph_agent.core.hooks.copies import hook_error
from graph_agent.core.hooks.pipeline import MiddlewareNode
from graph_agent.core.planning.compaction import is_note
from graph_agent.core.planning.hooked_requests import prepare
from graph_agent.core.planning.request_state import PreparedHistory, RequestState, closing, plan_request, planner_of
from graph_agent.core.planning.requests import ModelRequests
from graph_agent.core.planning.summary import NoSummaryError, request_summary, use_summary
from graph_agent.core.state.schema import INITIAL_LOOP, loop_of_new_input
from graph_agent.core.tools.invoke import belongs_to_run
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome
from graph_agent.interfaces.server.chat.schemas import ChatRequest, new_messages
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.parameters import Services
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError, problem_of_run
from graph_agent.interfaces.server.responses.chain import Chains, items_of, messages_of
from graph_agent.interfaces.server.responses.output import usage_of as response_usage_of
from graph_agent.interfaces.server.responses.records import Records, item_id, new_token, response_id
from graph_agent.interfaces.server.responses.schemas import CompactResponse, encoded_summary, read_items
from graph_agent.models.errors import classify_model_error

_WINDOW_SHARE = 0.75
"""Share of the model's context window that the conversation may fill in the request for the summary."""
_LEAST_TOKENS = 5_000
"""Tokens for which the summary has room, at least; a short conversation may need a long summary."""


class StoppedByHookError(Exception):
    """A hook has ended the request before the model; the argument is the hook's node."""


async def summarize_conversation(
    deps: AgentDeps, messages: Sequence[AnyMessage], instructions: str | None, context: AgentContext
) -> tuple[str, Usage]:
    """Have the agent's model summarize a conversation; return the summary, and the usage of all model calls.

    The hooks before the model see the messages, each call directly followed by its results; loop hooks rewrite the tool
    results, and middleware wraps the request.

    Raises `StoppedByHookError` if a hook jumps, `NoSummaryError` without a summary, `HookError` if a hook with
    `on_error = "fail"` or a middleware fails, and errors of the model's provider.
    """
    own, found = deps.toolbox.own, list[tuple[str, Usage]]()

    async def summarize(state: dict[str, Any], runtime: Runtime[Any]) -> dict[str, Any]:
        given = coerce_context(runtime.context, deps.context_schema)
        settings = effective_config(deps.config, given, deps.context_schema)
        chain = await deps.models.chain(settings)
        planner = planner_of("", settings, deps.agentic_loop)
        active = RequestState(deps, chain, settings, state["messages"], INITIAL_LOOP, planner, PreparedHistory())
        requests = ModelRequests(active, lambda *_: None)
        await prepare(requests, (), may_summarize=False)
        tokens = max(estimated_tokens(active.history), _LEAST_TOKENS)
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
    for hook in (*deps.hook_set.before_agent, *deps.hook_set.before_model) if deps.hook_set else ():
        graph.add_node(hook.node, _node_of(hook), input_schema=own.hook_schema)
        graph.add_edge(last, hook.node)
        last = hook.node
    graph.add_node("summarize", summarize, input_schema=own.state_schema)
    graph.add_edge(last, "summarize")
    await graph.compile().ainvoke({"messages": list(messages)}, context=context)
    return found[0]


def _node_of(hook: MiddlewareNode) -> Callable[..., Any]:
    async def run(state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        try:
            update = await hook.run(state, config)
        except Exception as error:
            if belongs_to_run(error):
                raise
            raise hook_error(hook.node, error) from error
        if update.pop("jump_to", None):
            raise StoppedByHookError(hook.node)
        return update

    return run


async def compact(server: Services, caller: Caller, body: CompactResponse) -> dict[str, Any]:
    """Return the compaction of a stored conversation that is not empty."""
    server.check_body(body)
    host = server.chat.runs.host
    with server.chat.limits.slot(caller.name):
        messages = await _conversation(host, Records(host, caller), body)
        text, usage = await _summary(host, messages, body.instructions)
    input_tokens = usage["input_tokens"] or estimated_tokens(messages)
    output_tokens = usage["output_tokens"] or estimated_tokens([AIMessage(text)])
    server.chat.runs.metrics.count_tokens(input_tokens, output_tokens)
    outcome = ChatOutcome(text, [], "stop", None, input_tokens, output_tokens, "COMPLETED")
    token = new_token()
    kept = [message for message in messages if isinstance(message, HumanMessage) and _is_of_user(message)]
    output = [_user_item(message, item_id("msg", token, index)) for index, message in enumerate(kept)]
    summary = encoded_summary(text)
    output.append({"id": item_id("cmp", token, len(kept)), "type": "compaction", "encrypted_content": summary})
    return {
        "id": response_id(token),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": output,
        "usage": response_usage_of(outcome),
    }


async def _conversation(host: Host, records: Records, body: CompactResponse) -> list[AnyMessage]:
    items = await items_of(body.input or [], records)
    before: list[AnyMessage] = []
    if body.previous_response_id is not None:
        before = await Chains(host, records).history(await records.previous(body.previous_response_id))
    messages = [*before, *read_items(items).messages]
    if not messages:
        raise InvalidRequestError("There is no conversation to compact; send input.", "input")
    return messages


async def _summary(host: Host, messages: list[AnyMessage], instructions: str | None) -> tuple[str, Usage]:
    builder = host.kept.builder
    identified = [message if message.id else message.model_copy(update={"id": str(uuid4())}) for message in messages]
    context = AgentContext(credentials=dict(builder.credentials))
    try:
        return await summarize_conversation(builder.deps, identified, instructions, context)
    except NoSummaryError:
        message = "The model gave no summary of the conversation; send the request again."
        raise ProblemError("upstream", message, category="empty_answer") from None
    except StoppedByHookError:
        raise ProblemError("filtered", "A hook of the agent has stopped the request.") from None
    except HookError as error:
        raise problem_of_run("hook") from error
    except Exception as error:  # a provider may raise anything
        raise problem_of_run(classify_model_error(error)) from error


def _is_of_user(message: HumanMessage) -> bool:
    """Whether a message has the user's words; an earlier summary and notices of this package are in the new summary."""
    return not is_note(message) and not (message.id or "").startswith(HIDDEN_ID_PREFIX)


def _user_item(message: BaseMessage, id_: str) -> dict[str, Any]:
    blocks = [message.content] if isinstance(message.content, str) else message.content
    content = [part for block in blocks if (part := _part(block)) is not None]
    return {"id": id_, "type": "message", "role": "user", "status": "completed", "content": content}


def _part(block: str | dict[Any, Any]) -> dict[str, Any] | None:
    if isinstance(block, str):
        return {"type": "input_text", "text": block}
    url = block.get("url") or f"data:{block.get('mime_type')};base64,{block.get('base64')}"
    match block.get("type"):
        case "text":
            return {"type": "input_text", "text": block["text"]}
        case "image":
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case "file":
            return {"type": "input_file", "file_data": url, "filename": block.get("filename")}
    return None


async def estimate_request(
    deps: AgentDeps,
    state: Mapping[str, Any],
    messages: Sequence[AnyMessage],
    context: Mapping[str, Any],
    session_id: str,
) -> int:
    """Estimate the tokens of an input's first request, with the counter that budgets and compaction use.

    The request has the system prompt, the tools, and the history with the current summary. It is counted before hooks
    and middleware, and before a summary or a compaction that the input itself would cause.

    `messages` are all of the session and the input, `state` is empty for a new session. Raises `ConfigError` if the
    agent's system prompt is a function that fails outside a run.
    """
    deps = deps_of_run(deps, Runtime(context=context))
    await deps.prepare()
    own = coerce_context(context, deps.context_schema)
    loop = loop_of_new_input(state.get("loop", {}), set_fields(own) if own is not None else {})
    settings = effective_config(
        deps.config, context, deps.context_schema, loop.get("config_overrides"), loop.get("approve", ())
    )
    planner, chain = planner_of(session_id, settings, deps.agentic_loop), await deps.models.chain(settings)
    active = RequestState(deps, chain, settings, messages, loop, planner, PreparedHistory())
    use_summary(active, state.get("events", ()))
    request: list[AnyMessage] = list(
        plan_request(active.deps, active.prepared_history, settings, active.mode, active.planner)
    )
    if not deps.plans:
        request += closing(active.deps, active.mode)
    # In the other modes, the system prompt describes the tools.
    tools: list[BaseTool | dict[str, Any]] = [*active.deps.client.schemas] if active.mode == "native" else []
    return estimated_tokens(request, tools=tools or None)


async def count_input_tokens(host: Host, caller: Caller, request: ChatRequest) -> int:
    """Estimate the tokens of the first model request, without a model; refuse a prompt that needs a run."""
    builder = host.kept.builder
    host.check_client_tools([tool["function"]["name"] for tool in request.client_tools])
    thread = caller.thread(request.session_id or "")
    state = await host.kept.aget_state({"configurable": {"thread_id": thread}})
    new = request.messages if request.adds_all or not state.values else new_messages(request.messages)
    messages = [*messages_of(state), *new]
    try:
        return await estimate_request(builder.deps, state.values, messages, request.context(), thread)
    except ConfigError:
        message = "The tokens cannot be counted: the agent's system prompt depends on the state of a run."
        raise InvalidRequestError(message) from None
