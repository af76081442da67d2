"""Assembles the agent graph: its dependencies, its four nodes, the nodes of hooks, and its edges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.cache.base import BaseCache
from langgraph.graph import END, START

from graph_agent.base._compat import dual_runnable, route_by_update
from graph_agent.base.settings.config import AgentContext, LoopConfig, RunContext, field_names
from graph_agent.base.settings.response_format import ResponseSchema
from graph_agent.base.tool_names import PLAN_TOOL
from graph_agent.base.waves.schema import PlanningResult
from graph_agent.core.execution.deps import AgentDeps
from graph_agent.core.extensions.argument_checks import checked_delegates, checked_hooks, checked_tools
from graph_agent.core.extensions.loop_hooks import sort_hooks
from graph_agent.core.extensions.memory import AgentMemory
from graph_agent.core.extensions.read_result import with_read_result
from graph_agent.core.extensions.toolbox import Toolbox
from graph_agent.core.planning.planner import agentic_loop_from_env
from graph_agent.core.planning.wait_tool import wait_tools
from graph_agent.core.state.custom_state import HookedPlanState, custom_state
from graph_agent.core.state.schema import AgentState, PlanState
from graph_agent.models.pool import ModelPool, Resolve, require_chat_model
from graph_agent.models.prompts import Prompts
from graph_agent.models.system_prompt import DEFAULT_SYSTEM_PROMPT, system_prompt_source, text_of_source
from graph_agent.nodes.finalize import finalize_node
from graph_agent.nodes.hook import model_node
from graph_agent.nodes.plan import plan_node
from graph_agent.session import agent_parts
from graph_agent.session.graph_agent import GraphAgentBuilder
from graph_agent.session.routing import PATHS, Route, after_plan, after_plan_in_run, after_plan_or_ask, session_checked


def assemble(
    model: BaseChatModel,
    tools: object = (),
    *,
    delegates: object = (),
    hooks: object = (),
    middleware: object = (),
    system_prompt: object = None,
    prompts: Mapping[str, str] | None = None,
    response_format: Any = None,
    config: LoopConfig | None = None,
    context_schema: type[Any] | None = None,
    plan_schema: type[PlanningResult] | None = None,
    state_schema: type[Any] | None = None,
    cache: BaseCache[Any] | None = None,
    warnings: Callable[[], Sequence[str]] = tuple,
    resolve: Resolve | None = None,
    skills: Sequence[str | Path] = (),
    memory: AgentMemory | None = None,
) -> GraphAgentBuilder:
    """Build an agent's graph from ready objects; arguments, errors and result are those of `build_graph`."""
    # An iterator would be empty for the second of its readers.
    tools, provided = agent_parts.split_provider_tools([*tools] if isinstance(tools, Iterator) else tools)
    context_schema = AgentContext if context_schema is None else context_schema
    field_names(context_schema)
    config, plan_schema = agent_parts.checked_config(config, cache), agent_parts.checked_plan_schema(plan_schema)
    system_prompt = DEFAULT_SYSTEM_PROMPT if system_prompt is None else system_prompt
    is_own = isinstance(context_schema, type) and issubclass(context_schema, AgentContext)
    templates = Prompts(prompts)
    registered = sort_hooks([*checked_hooks(hooks), *checked_hooks(middleware, "middleware")])
    admitted = agent_parts.admitted_middleware(registered.middleware)
    jumps = any(one.hooks for one in admitted)
    own = custom_state(state_schema, [one.state_schema for one in admitted], jumps=jumps)
    added = checked_tools([tool for one in admitted for tool in one.tools])
    opened = agent_parts.opened_skills(skills)
    agents = checked_delegates(delegates)
    others = [*(opened or ()), *(memory.tools if memory else ()), *wait_tools(agents)]
    given = with_read_result([*added, *checked_tools(tools), *others], config)
    toolbox = Toolbox(given, agents, templates, registered.offered, own)
    config = agent_parts.with_approvals(config, toolbox, provided)
    prompt = system_prompt_source(system_prompt, own.current)
    if opened is not None:
        config, prompt = opened.with_limits(config), opened.with_section(prompt)
        warnings = opened.with_warnings(warnings)
    wrappers = agent_parts.middleware_wrappers(admitted, toolbox, templates, config)
    response = ResponseSchema(response_format) if response_format is not None else None
    if response is not None and response.is_enforced and config.structured_output == "auto":
        config = config.with_values({"structured_output": "schema"})
    models = ModelPool(
        model,
        config=config,
        resolve=resolve or require_chat_model,
        schemas=toolbox.schemas,
        plan_schema=agent_parts.json_schema_of(plan_schema),
        plan_tool=PLAN_TOOL,
        around=wrappers.wrap_model_call,
        provider_tools=provided,
    )
    deps = AgentDeps(
        models=models,
        client=models.first.client,
        toolbox=toolbox,
        prompts=templates,
        config=config,
        planner=models.first.planner,
        tool_calling=models.first.tool_calling,
        system_prompt=prompt,
        system_text=text_of_source(system_prompt),
        response=response,
        plan_schema=plan_schema,
        cache=cache,
        agentic_loop=agentic_loop_from_env(),
        context_schema=context_schema if is_own else RunContext,
        memory=memory,
        warnings=warnings,
        hooks=registered.hooks,
        rewriters=registered.rewriters,
        wrap_tool_call=wrappers.wrap_tool_call,
        runs_added_tools=any(one.adds_tools for one in admitted),
        whole_replies=wrappers.whole_replies,
        hook_set=wrappers.hook_set,
        past_inputs=agent_parts.past_inputs(config),
    )
    inner = [getattr(getattr(delegate, "graph", None), "builder", None) for delegate in toolbox.delegates.values()]
    asks = config.approve is not None or any(getattr(each, "asks", False) for each in [*inner, *admitted])
    return _join(deps, GraphAgentBuilder(deps, context_schema, wrappers.transformers, asks=asks))


def _join(deps: AgentDeps, graph: GraphAgentBuilder) -> GraphAgentBuilder:
    """Add the nodes and the edges to `graph`, in place, and return it.

    The nodes are `plan`, `tools`, `delegate` and `finalize`; `model` and those of hooks if middleware has hooks; and
    `approve` if `config.approve` is set. In that case `graph.edit_fault` is set, too.
    """
    nodes: dict[str, tuple[Callable[..., Any], type[Any]]] = {
        "plan": (plan_node, HookedPlanState if deps.hook_set else PlanState),
        **{name: (node, Route) for name, node in agent_parts.call_nodes(deps).items()},
        "finalize": (finalize_node, PlanState),
    }
    if deps.hook_set:
        nodes["model"] = (model_node, PlanState)
    if deps.config.approve is not None:
        # Imported here: only agents with approvals need it.
        from graph_agent.core.extensions.toolbox import edit_fault
        from graph_agent.nodes.approve import approve_node

        nodes["approve"] = (approve_node, AgentState)
        graph.edit_fault = functools.partial(edit_fault, deps.toolbox)
    for node_name, (node, schema) in nodes.items():
        ready = session_checked(functools.wraps(node)(functools.partial(node, deps=deps)))
        # For drawing only: `finalize` returns to `plan` after an edit or after steering.
        destinations = ("plan", END) if node_name == "finalize" else None
        graph.add_node(node_name, dual_runnable(None, ready, node_name), input_schema=schema, destinations=destinations)
    graph.add_edge(START, "plan")
    graph.add_edge("tools", "plan")
    graph.add_edge("delegate", "plan")
    asks = ["approve"] if "approve" in nodes else []
    if asks:
        graph.add_edge("approve", "plan")
    if deps.hook_set:
        # Imported here: most agents have no hooks.
        from graph_agent.session.hook_edges import add_hooks, after_plan_with_hooks, paths_with_hooks

        add_hooks(graph, deps, deps.hook_set)
        paths = [*paths_with_hooks(deps.hook_set), *asks]
        graph.add_conditional_edges("plan", after_plan_with_hooks(deps.hook_set), paths)
        return graph
    if asks:
        router = dual_runnable(None, after_plan_or_ask, "after_plan")
        graph.add_conditional_edges("plan", router, [*PATHS, "approve"])
    else:
        router = dual_runnable(None, after_plan, "after_plan")
        graph.add_conditional_edges("plan", router, PATHS)
    route_by_update(graph, "plan", "after_plan", after_plan_in_run)
    graph.add_edge("finalize", END)
    return graph
