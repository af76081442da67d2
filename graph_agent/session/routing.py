"""Routes the agent's graph from `plan` to the ready calls or to the answer, and guards each node.

A ready call is one of the newest plan that waits for no other call. Calls of tools go to the node `tools`, delegations
to `delegate`; a person decides in `approve`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from graph_agent.base._compat import read_state, stream_messages
from graph_agent.base.calls import is_delegation
from graph_agent.base.types import Call
from graph_agent.core.execution.open_calls import FIELDS, current_wave
from graph_agent.core.state.messages import results_in
from graph_agent.core.state.run import Run, handle_of, is_running, run_of
from graph_agent.core.state.schema import LoopState


def session_checked(node: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Wrap a node so that it raises `SessionLostError` if its process has lost the session before or after it.

    The wrapper also streams the tool results in the node's update.
    """

    @functools.wraps(node)
    async def run(state: Any, config: RunnableConfig, *args: Any, **kwargs: Any) -> Any:
        """Run the node between two checks that the session's lock is held, and stream the tool results in its update.

        Raises `SessionLostError` if the lock is lost; the update is then not stored.
        """
        active_run = run_of(config)
        active_run.stop.check_held()
        update = await node(state, config, *args, **kwargs)
        active_run.stop.check_held()
        # LangGraph does not stream the messages of a list of pairs.
        stream_messages(config, lambda: results_in(update))
        return update

    return run


PATHS = ["tools", "delegate", "finalize"]
"""Targets of `after_plan`, which LangGraph cannot infer from a function that returns `Send`s."""


class Route(TypedDict, total=False):
    """The state fields that `after_plan` reads. LangGraph copies only these."""

    ready: list[Call]


async def after_plan(state: Route, config: RunnableConfig) -> list[Send] | Literal["finalize"]:
    """Edge after `plan`: return one task for each ready call; `finalize` if there is none."""
    # In a run, `plan` has just written `ready` with its messages. `update_state` may have changed the messages alone,
    # so there the calls are read from the messages; if none is left to run, `finalize` returns to `plan`.
    return _tasks_of(state.get("ready", []) if is_running(config) else calls_after_edit(config), run_of(config))


def after_plan_in_run(update: Any, config: RunnableConfig) -> Sequence[Send | str] | str | None:
    """Return the tasks after `plan` from the update that the node has returned, so that the state need not be read.

    If calls await an approval, these are the ready calls and `approve`; else the ready calls, or `finalize` without
    any. An empty list if the update has its own target (`goto`). None, so that the edge itself reads the state, if the
    update does not set `ready`, or is an edit by `update_state`.
    """
    run = handle_of(config["configurable"]).run
    if not isinstance(update, Command) or not isinstance(update.update, list) or run is None or run.updates_only:
        return None
    if update.goto:
        return []  # the input is answered already
    fields = dict(update.update)
    ready = fields.get("ready")
    if fields.get("loop", {}).get("awaiting_approval"):
        return asking_tasks(ready or [])
    return None if ready is None else _tasks_of(ready, run)


def _tasks_of(calls: Sequence[Call], run: Run) -> list[Send] | Literal["finalize"]:
    """Return the tasks of calls, or `finalize` without calls. Records in the run whether it answers now."""
    run.answering = not calls
    return sends_of(calls) or "finalize"


def asking_tasks(calls: Sequence[Call]) -> list[Send | str]:
    """Return the tasks for an approval: `approve`, which asks about the agent's own calls, and one for each delegation
    that waits.
    """
    return [*sends_of(calls), "approve"]


def sends_of(calls: Sequence[Call]) -> list[Send]:
    """Return one task for each call: a `Send` to `delegate` or `tools` with the call."""
    return [Send("delegate" if is_delegation(call["name"]) else "tools", call) for call in calls]


class ApprovalRoute(Route, total=False):
    """The state fields that `after_plan_or_ask` reads. LangGraph copies only these."""

    loop: LoopState


async def after_plan_or_ask(state: ApprovalRoute, config: RunnableConfig) -> Sequence[Send | str] | Literal["finalize"]:
    """Edge after `plan` for an agent with approvals: return one task for each ready call, and `approve` if calls wait
    for an approval; `finalize` if there is none.
    """
    if is_running(config) and "loop" in state and state["loop"].get("awaiting_approval"):
        return asking_tasks(state.get("ready", []))
    return await after_plan(state, config)


def calls_after_edit(config: RunnableConfig) -> list[Call]:
    """Return the calls to run next after an edit of the state, which is read anew."""
    state = read_state(config, FIELDS, fresh=True)
    waiting = [call["id"] for call in state["loop"]["waiting"]] if "loop" in state else []
    return current_wave(state).next_calls(waiting)
