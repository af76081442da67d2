"""Assembles the agent graph: its dependencies, its four nodes, the nodes of hooks, and its edges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache
from langgraph.graph import END, START
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from graph_agent.base._compat import dual_runnable, read_state, route_by_update, stream_messages
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.base.settings.config import AgentContext, LoopConfig, RunContext, field_names
from graph_agent.base.settings.response_format import ResponseSchema
from graph_agent.base.types import Call
from graph_agent.core.approvals.policy import read_review
from graph_agent.core.deps import AgentDeps, ToolCallWrapper
from graph_agent.core.execution.open_calls import FIELDS, current_wave
from graph_agent.core.hooks.loop_hooks import sort_hooks
from graph_agent.core.hooks.pipeline import MiddlewareNode, MiddlewareNodes
from graph_agent.core.planning.background import wait_tools
from graph_agent.core.planning.middleware_replies import route_of
from graph_agent.core.planning.request_state import agentic_loop_from_env
from graph_agent.core.runs.run import is_running, run_of
from graph_agent.core.state.custom_state import HookedPlanState, custom_state
from graph_agent.core.state.messages import results_in
from graph_agent.core.state.schema import AgentState, LoopState, PlanState
from graph_agent.core.tools.argument_checks import checked_delegates, checked_hooks, checked_tools
from graph_agent.core.tools.read_result import with_read_result
from graph_agent.core.tools.toolbox import Toolbox
from graph_agent.core.waves.reply import PLAN_TOOL
from graph_agent.core.waves.schema import PlanningResult
from graph_agent.models.parsing.call import is_delegation
from graph_agent.models.pool import ModelPool, ModelWrapper, Resolve, leave_unwrapped, require_chat_model
from graph_agent.models.prompts import Prompts
from graph_agent.models.prompts.system_prompt import DEFAULT_SYSTEM_PROMPT, system_prompt_source
from graph_agent.nodes.delegate import delegate_node
from graph_agent.nodes.finalize import finalize_node
from graph_agent.nodes.hook import model_node
from graph_agent.nodes.plan import plan_node
from graph_agent.nodes.tools import tools_node
from graph_agent.session.compiled import AgentStateGraph

if TYPE_CHECKING:
    from graph_agent.core.hooks.middleware import AdmittedMiddleware
    from graph_agent.core.skills.catalog import SkillSet


logger = get_logger("graph_agent.assembly")


class _MiddlewareWrappers(NamedTuple):
    wrap_model_call: ModelWrapper = leave_unwrapped
    wrap_tool_call: ToolCallWrapper | None = None
    whole_replies: bool = False
    """Whether replies may be rewritten after their last token."""
    hook_set: MiddlewareNodes | None = None
    transformers: tuple[Any, ...] = ()


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
) -> AgentStateGraph:
    """Build the graph; arguments and errors as for `build_graph`."""
    context_schema = AgentContext if context_schema is None else context_schema
    field_names(context_schema)
    if config is not None and not isinstance(config, LoopConfig):
        raise ConfigError(f"config must be a LoopConfig, not {config!r}; write LoopConfig(**values).")
    config = config or LoopConfig()
    if config.plan_cache_ttl_s is not None and cache is None:
        raise ConfigError("plan_cache_ttl_s is set and there is no cache; pass e.g. cache=InMemoryCache().")
    plan_schema = PlanningResult if plan_schema is None else plan_schema
    system_prompt = DEFAULT_SYSTEM_PROMPT if system_prompt is None else system_prompt
    is_own = isinstance(context_schema, type) and issubclass(context_schema, AgentContext)
    if not (isinstance(plan_schema, type) and issubclass(plan_schema, PlanningResult)):
        raise ConfigError(f"plan_schema must be PlanningResult or a subclass of it, not {plan_schema!r}.")
    templates = Prompts(prompts)
    registered = sort_hooks([*checked_hooks(hooks), *checked_hooks(middleware, "middleware")])
    admitted = _admitted(registered.middleware)
    jumps = any(one.hooks for one in admitted)
    own = custom_state(state_schema, [one.state_schema for one in admitted], jumps=jumps)
    added = checked_tools([tool for one in admitted for tool in one.tools])
    opened = _skills(skills)
    agents = checked_delegates(delegates)
    given = with_read_result([*added, *checked_tools(tools), *(opened or ()), *wait_tools(agents)], config)
    toolbox = Toolbox(given, agents, templates, registered.offered, own)
    config = _with_approvals(config, toolbox)
    prompt = system_prompt_source(system_prompt, own.current)
    if opened is not None:
        config, prompt = opened.with_limits(config), opened.with_section(prompt)
        warnings = opened.with_warnings(warnings)
    wrappers = _wrappers(admitted, toolbox, templates, config)
    response = ResponseSchema(response_format) if response_format is not None else None
    if response is not None and response.is_enforced and config.structured_output == "auto":
        config = config.with_values({"structured_output": "schema"})
    models = ModelPool(
        model,
        config=config,
        resolve=resolve or require_chat_model,
        schemas=toolbox.schemas,
        plan_schema=_json_schema(plan_schema),
        plan_tool=PLAN_TOOL,
        around=wrappers.wrap_model_call,
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
        response=response,
        plan_schema=plan_schema,
        cache=cache,
        agentic_loop=agentic_loop_from_env(),
        context_schema=context_schema if is_own else RunContext,
        warnings=warnings,
        hooks=registered.hooks,
        rewriters=registered.rewriters,
        wrap_tool_call=wrappers.wrap_tool_call,
        runs_added_tools=any(one.adds_tools for one in admitted),
        whole_replies=wrappers.whole_replies,
        hook_set=wrappers.hook_set,
    )
    inner = [getattr(getattr(delegate, "graph", None), "builder", None) for delegate in toolbox.delegates.values()]
    asks = config.approve is not None or any(getattr(each, "asks", False) for each in [*inner, *admitted])
    return _join(deps, AgentStateGraph(deps, context_schema, wrappers.transformers, asks=asks))


@functools.lru_cache(maxsize=16)
def _json_schema(plan_schema: type[PlanningResult]) -> dict[str, Any]:
    """Return the JSON schema of plans; its generation takes a third of the time to build a graph."""
    return plan_schema.model_json_schema()


def _with_approvals(config: LoopConfig, toolbox: Toolbox) -> LoopConfig:
    """Return the configuration with `approve` set if any call may need approval.

    Raises `ConfigError` for an invalid mark `approve`, or a name in `approve` that no tool or delegate has.
    """
    marks = {name: toolbox.marks(name).get("approve") for name in toolbox.tools}
    by_mark = [name for name, mark in marks.items() if read_review(mark, f"The mark approve of the tool {name!r}")]
    if config.approve is None:
        return config.with_values({"approve": ()}) if by_mark else config
    known = [*toolbox.tools, *toolbox.delegates]
    for rule in config.approval_rules:
        if not isinstance(rule, str) or set(rule) & set("*?["):
            continue
        # A list of tools that may change can add the name later.
        if rule not in known and not toolbox.lists_change:
            raise ConfigError(f"approve: no tool or delegate is named {rule!r}; {did_you_mean(rule, known)}")
    return config


def _skills(folders: Sequence[str | Path]) -> SkillSet | None:
    """Read the skills of some folders, if any; raise `ConfigError` for a folder without one, or an invalid skill."""
    if isinstance(folders, Sequence) and not folders:
        return None
    # Imported here: most agents have no skills.
    from graph_agent.core.skills.catalog import open_skills

    return open_skills(folders)


def _admitted(middleware: Sequence[Any]) -> list[AdmittedMiddleware]:
    """Take middleware apart; raise `ConfigError` if two have the same name."""
    if not middleware:
        return []
    # Imported here: it loads the `langchain` package, which a program without middleware does not need.
    from graph_agent.core.hooks.middleware import admit

    return admit(middleware)


def _wrappers(
    admitted: Sequence[AdmittedMiddleware], toolbox: Toolbox, prompts: Prompts, config: LoopConfig
) -> _MiddlewareWrappers:
    """Make the wrappers and hooks of some middleware; the defaults without any."""
    if not admitted:
        return _MiddlewareWrappers()
    from graph_agent.core.hooks.middleware import ToolMiddleware, hook_set
    from graph_agent.core.hooks.wrap_model_call import ModelMiddleware

    for one in admitted:
        if one.undeclared and not config.stream_before_guards:
            logger.warning(
                "The middleware %r may rewrite replies (%s), so each answer is streamed in one piece, once it has seen "
                "the whole text. If it leaves the text of replies as it is, set `rewrites_replies = False` on it.",
                one.name,
                ", ".join(one.undeclared),
            )
    models = ModelMiddleware(admitted, toolbox.tools, prompts, toolbox.own)
    tools = ToolMiddleware(admitted, toolbox.tools, toolbox.own)
    return _MiddlewareWrappers(
        models.around,
        tools if tools else None,
        any(one.rewrites for one in admitted),
        hook_set([one.hooks for one in admitted]),
        tuple(each for one in admitted for each in one.transformers),
    )


def _session_checked(node: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Wrap a node to raise `SessionLostError` when its process does not hold the session before or after it.

    The node's tool results are streamed, because LangGraph does not stream the messages of a list of pairs.
    """

    @functools.wraps(node)
    async def run(state: Any, config: RunnableConfig, *args: Any, **kwargs: Any) -> Any:
        active_run = run_of(config)
        active_run.stop.check_held()
        update = await node(state, config, *args, **kwargs)
        active_run.stop.check_held()
        stream_messages(config, lambda: results_in(update))
        return update

    return run


def _join(deps: AgentDeps, graph: AgentStateGraph) -> AgentStateGraph:
    nodes: dict[str, tuple[Callable[..., Any], type[Any]]] = {
        "plan": (plan_node, HookedPlanState if deps.hook_set else PlanState),
        "tools": (tools_node, Route),
        "delegate": (delegate_node, Route),
        "finalize": (finalize_node, PlanState),
    }
    if deps.hook_set:
        nodes["model"] = (model_node, PlanState)
    if deps.config.approve is not None:
        # Imported here: only agents with approvals need it.
        from graph_agent.core.tools.toolbox import edit_fault
        from graph_agent.nodes.approve import approve_node

        nodes["approve"] = (approve_node, AgentState)
        graph.edit_fault = functools.partial(edit_fault, deps.toolbox)
    for node_name, (node, schema) in nodes.items():
        ready = _session_checked(functools.wraps(node)(functools.partial(node, deps=deps)))
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
        _add_hooks(graph, deps, deps.hook_set)
        paths = [*_paths_with_hooks(deps.hook_set), *asks]
        graph.add_conditional_edges("plan", _after_plan_with_hooks(deps.hook_set), paths)
        return graph
    if asks:
        router = dual_runnable(None, after_plan_or_ask, "after_plan")
        graph.add_conditional_edges("plan", router, [*PATHS, "approve"])
    else:
        router = dual_runnable(None, after_plan, "after_plan")
        graph.add_conditional_edges("plan", router, PATHS)
    route_by_update(graph, "plan", "after_plan", _after_plan_in_run)
    graph.add_edge("finalize", END)
    return graph


PATHS = ["tools", "delegate", "finalize"]
"""Targets of `after_plan`; LangGraph cannot infer them from a function that returns `Send`s."""


class Route(TypedDict, total=False):
    """The state fields that `after_plan` reads; LangGraph copies no others."""

    ready: list[Call]


async def after_plan(state: Route, config: RunnableConfig) -> list[Send] | Literal["finalize"]:
    """Return one task for each ready call; `finalize` when there is none.

    In a run, `plan` has just written `ready` with its messages. `update_state` may have changed the messages alone, so
    there the calls are read from the messages; if none is left to run, `finalize` returns to `plan`.
    """
    return _tasks_of(state.get("ready", []) if is_running(config) else _calls_after_edit(config), config)


def _after_plan_in_run(update: Any, config: RunnableConfig) -> Sequence[Send | str] | str | None:
    """Behaves like `after_plan_or_ask`, on the update that `plan` returned; None if it does not determine it."""
    if not isinstance(update, Command) or not isinstance(update.update, list) or not is_running(config):
        return None
    if update.goto:
        return []  # the input is answered already
    fields = dict(update.update)
    ready = fields.get("ready")
    if fields.get("loop", {}).get("awaiting_approval"):
        return _asking(ready or [])
    return None if ready is None else _tasks_of(ready, config)


def _tasks_of(calls: Sequence[Call], config: RunnableConfig) -> list[Send] | Literal["finalize"]:
    run_of(config).answering = not calls
    return _sends(calls) or "finalize"


def _asking(calls: Sequence[Call]) -> list[Send | str]:
    """Return the tasks that ask a person: for the agent's own calls, and for delegations that wait for an answer."""
    return [*_sends(calls), "approve"]


def _sends(calls: Sequence[Call]) -> list[Send]:
    return [Send("delegate" if is_delegation(call["name"]) else "tools", call) for call in calls]


class ApprovalRoute(Route, total=False):
    """The state fields that `after_plan_or_ask` reads."""

    loop: LoopState


async def after_plan_or_ask(state: ApprovalRoute, config: RunnableConfig) -> Sequence[Send | str] | Literal["finalize"]:
    """Behaves like `after_plan` for an agent with approvals; returns `approve` if a person must decide."""
    if is_running(config) and "loop" in state and state["loop"].get("awaiting_approval"):
        return _asking(state.get("ready", []))
    return await after_plan(state, config)


def _calls_after_edit(config: RunnableConfig) -> list[Call]:
    state = read_state(config, FIELDS, fresh=True)
    waiting = [call["id"] for call in state["loop"]["waiting"]] if "loop" in state else []
    return current_wave(state).next_calls(waiting)


# The nodes of hooks around the model


class _Jump(TypedDict, total=False):
    """The state field that the edge after a hook reads."""

    jump_to: str | None


def _add_hooks(graph: AgentStateGraph, deps: AgentDeps, hooks: MiddlewareNodes) -> None:
    """Add the nodes of the hooks, and the edges between them, to a graph that has its other nodes."""
    # Imported here: most agents have no hooks.
    from graph_agent.nodes.hook import hook_node

    for hook in hooks:
        run = _session_checked(functools.partial(hook_node, deps=deps, hook=hook))
        graph.add_node(
            hook.node,
            dual_runnable(None, run, hook.node),
            input_schema=deps.toolbox.own.hook_schema,
            trace_policy=hook.trace_policy,
        )
    _chain(graph, hooks.before_agent, hooks.entry, hooks)
    _chain(graph, hooks.before_model, "model", hooks)
    _chain(graph, hooks.after_model, "plan", hooks)
    _chain(graph, hooks.after_agent, "finalize", hooks)
    graph.add_edge("model", hooks.review)
    graph.add_edge("finalize", END)


def _chain(graph: AgentStateGraph, hooks: Sequence[MiddlewareNode], then: str, all_hooks: MiddlewareNodes) -> None:
    for at, hook in enumerate(hooks):
        following = hooks[at + 1].node if at + 1 < len(hooks) else then
        if not hook.jumps or following == "plan":
            graph.add_edge(hook.node, following)
            continue
        targets = {"end": "plan", "tools": "plan", "model": "plan"}
        if hook in all_hooks.after_agent:
            targets["end"] = "finalize"
        elif hook not in all_hooks.after_model:
            targets["model"] = all_hooks.entry
        graph.add_conditional_edges(
            hook.node, _jump(hook, targets, following), sorted({following, *(targets[name] for name in hook.jumps)})
        )


def _jump(hook: MiddlewareNode, targets: dict[str, str], following: str) -> Any:
    async def jump(state: _Jump) -> str:
        jumped = state.get("jump_to")
        return targets[jumped] if jumped in hook.jumps and jumped in targets else following

    return dual_runnable(None, jump, f"{hook.node}.jump")


def _after_plan_with_hooks(hooks: MiddlewareNodes) -> Any:
    """Return the edge after `plan` of an agent with hooks around the model."""
    targets = {"agent": hooks.start, "model": hooks.entry, "review": hooks.review, "exit": hooks.exit}

    async def after_plan(state: ApprovalRoute, config: RunnableConfig) -> Sequence[Send | str] | str:
        if not is_running(config):
            return _sends(_calls_after_edit(config)) or "finalize"
        if state["loop"].get("awaiting_approval"):
            return _asking(state.get("ready", []))
        tasks, target = _sends(state.get("ready", [])), targets[route_of(state["loop"])]
        run_of(config).answering = not tasks and target == hooks.exit
        return tasks or target

    return dual_runnable(None, after_plan, "after_plan")


def _paths_with_hooks(hooks: MiddlewareNodes) -> list[str]:
    review = [hooks.review] if hooks.rewrites else []
    return list(dict.fromkeys(["tools", "delegate", hooks.start, hooks.entry, *review, hooks.exit, "finalize"]))
