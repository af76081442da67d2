"""Adds the nodes of middleware hooks around the model to an agent's graph, and the edges between them.

A hook may jump: it sets `jump_to` in the state to `end`, `tools` or `model`, and skips what lies between.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END
from langgraph.types import Send
from typing_extensions import TypedDict

from graph_agent.base._compat import dual_runnable
from graph_agent.core.execution.deps import AgentDeps
from graph_agent.core.extensions.hook_pipeline import MiddlewareNode, MiddlewareNodes
from graph_agent.core.planning.middleware_replies import route_of
from graph_agent.core.state.run import is_running, run_of
from graph_agent.nodes.hook import hook_node
from graph_agent.session.compiled import AgentStateGraph
from graph_agent.session.routing import ApprovalRoute, asking_tasks, calls_after_edit, sends_of, session_checked


class _Jump(TypedDict, total=False):
    """The state field that the edge after a hook reads, if the hook may jump."""

    jump_to: str | None


def add_hooks(graph: AgentStateGraph, deps: AgentDeps, hooks: MiddlewareNodes) -> None:
    """Add the nodes of hooks, and the edges between them, to the graph of an agent, in place.

    The other nodes must be there already.
    """
    for hook in hooks:
        run = session_checked(functools.partial(hook_node, deps=deps, hook=hook))
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
    """Add the edges from each hook to the next one, from the last one to the node `then`, and for the jumps of hooks.

    A jump leads to `plan`, which decides what follows, with two exceptions: a jump to `end` of a hook after the agent
    leads to `finalize`, and a jump to `model` of a hook before the model leads to the first hook (`all_hooks.entry`).

    Args:
        hooks: The hooks of one kind, in order.
        then: Node after the last hook.
        all_hooks: All hooks of the agent.
    """
    for at, hook in enumerate(hooks):
        following = hooks[at + 1].node if at + 1 < len(hooks) else then
        # Before `plan` is the last hook after the model, and every jump of those leads to `plan` as well.
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
    """Return the conditional edge after a hook that may jump: a runnable that returns the next node.

    Args:
        targets: Value of `jump_to` → node to which it leads.
        following: The node that follows without a jump.
    """

    async def jump(state: _Jump) -> str:
        """Return the node that follows the hook."""
        jumped = state.get("jump_to")
        return targets[jumped] if jumped in hook.jumps and jumped in targets else following

    return dual_runnable(None, jump, f"{hook.node}.jump")


def after_plan_with_hooks(hooks: MiddlewareNodes) -> Any:
    """Return the conditional edge after `plan` for an agent with hooks around the model.

    It leads to the approval of calls if the plan waits for one, else to the ready calls if there are any, else to the
    node of the route that `plan` has chosen: the hooks before the model, the review of the reply, or the end.
    """
    targets = {"agent": hooks.start, "model": hooks.entry, "review": hooks.review, "exit": hooks.exit}

    async def after_plan(state: ApprovalRoute, config: RunnableConfig) -> Sequence[Send | str] | str:
        """Return the ready calls as tasks; without any, the node of the route that `plan` has stored in the loop state.

        If calls await approval, their tasks of the node `approve` are returned instead. Sets `answering` of the run,
        which is True if its next node ends the input. Without a run, after an edit of the state, returns the remaining
        calls, or `finalize`.
        """
        # `update_state` runs this edge as well, without a run and without what it knows.
        if not is_running(config):
            return sends_of(calls_after_edit(config)) or "finalize"
        if state["loop"].get("awaiting_approval"):
            return asking_tasks(state.get("ready", []))
        tasks, target = sends_of(state.get("ready", [])), targets[route_of(state["loop"])]
        run_of(config).answering = not tasks and target == hooks.exit
        return tasks or target

    return dual_runnable(None, after_plan, "after_plan")


def paths_with_hooks(hooks: MiddlewareNodes) -> list[str]:
    """Return the names of all nodes to which `after_plan_with_hooks` may lead, except `approve`."""
    review = [hooks.review] if hooks.rewrites else []
    return list(dict.fromkeys(["tools", "delegate", hooks.start, hooks.entry, *review, hooks.exit, "finalize"]))
