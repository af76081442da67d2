"""The nodes and edges of an agent with hooks around the model: `model`, and one node for each hook."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END
from langgraph.types import Send
from typing_extensions import TypedDict

from graph_agent._compat import dual_runnable
from graph_agent._internal.sync_bridge import blocking
from graph_agent.compiled import AgentStateGraph
from graph_agent.deps import AgentDeps
from graph_agent.hooks.pipeline import HookSet, NodeHook
from graph_agent.nodes.hook import hook_node
from graph_agent.planning.hook_results import route_of
from graph_agent.runs.run import is_running, run_of
from graph_agent.state.schema import Bookkeeping
from graph_agent.types import Call


class HookRoute(TypedDict, total=False):
    """The state fields that the edge after `plan` reads."""

    ready: list[Call]
    loop: Bookkeeping


class Jump(TypedDict, total=False):
    """The state field that the edge after a hook reads."""

    jump_to: str | None


def add_hooks(graph: AgentStateGraph, deps: AgentDeps, checked: Callable[[Any], Any]) -> None:
    """Add the nodes of the hooks, and the edges between them.

    Args:
        graph: The graph, which has its other nodes.
        deps: The agent.
        checked: Wraps a node's function.
    """
    hooks = deps.hook_set
    for hook in hooks:
        run = checked(functools.partial(hook_node, deps=deps, hook=hook))
        graph.add_node(
            hook.node, dual_runnable(blocking(run), run, hook.node), input_schema=deps.toolbox.own.hook_schema
        )
    _chain(graph, hooks.before_agent, hooks.entry, hooks)
    _chain(graph, hooks.before_model, "model", hooks)
    _chain(graph, hooks.after_model, "plan", hooks)
    _chain(graph, hooks.after_agent, "finalize", hooks)
    graph.add_edge("model", hooks.review)
    graph.add_edge("finalize", END)


def _chain(graph: AgentStateGraph, hooks: Sequence[NodeHook], then: str, all_hooks: HookSet) -> None:
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


def _jump(hook: NodeHook, targets: dict[str, str], following: str) -> Any:
    async def jump(state: Jump) -> str:
        jumped = state.get("jump_to")
        return targets[jumped] if jumped in hook.jumps and jumped in targets else following

    return dual_runnable(blocking(jump), jump, f"{hook.node}.jump")


def route_after_plan(
    hooks: HookSet, calls_after_edit: Callable[[RunnableConfig], list[Call]], send: Callable[[list[Call]], list[Send]]
) -> Any:
    """Return the edge after `plan`.

    Args:
        hooks: The hooks.
        calls_after_edit: Returns the calls to run outside a run, after an edit by `update_state`.
        send: Makes the tasks of calls.
    """
    targets = {"agent": hooks.start, "model": hooks.entry, "review": hooks.review, "exit": hooks.exit}

    async def after_plan(state: HookRoute, config: RunnableConfig) -> list[Send] | str:
        if not is_running(config):
            return send(calls_after_edit(config)) or "finalize"
        if state["loop"].get("asked"):
            return "approve"
        tasks = send(state.get("ready", []))
        target = targets[route_of(state["loop"])]
        run_of(config).answering = not tasks and target == hooks.exit
        return tasks or target

    return dual_runnable(blocking(after_plan), after_plan, "after_plan")


def paths_after_plan(hooks: HookSet) -> list[str]:
    """Return the targets of the edge after `plan`."""
    review = [hooks.review] if hooks.rewrites else []
    return list(dict.fromkeys(["tools", "delegate", hooks.start, hooks.entry, *review, hooks.exit, "finalize"]))
