"""The one conditional edge: after `plan`, to the calls that are ready or to the answer."""

from __future__ import annotations

from typing import Literal

from langchain_core.runnables import RunnableConfig
from langgraph.types import Send
from typing_extensions import TypedDict

from graph_agent._compat import read_state
from graph_agent.execution.current_wave import FIELDS, current_wave
from graph_agent.runs.run import is_running
from graph_agent.types import Call, is_delegation

PATHS = ["tools", "delegate", "finalize"]
"""Where `after_plan` may lead; LangGraph cannot see it in a function that returns `Send`s."""


class Route(TypedDict, total=False):
    """What the edge reads: LangGraph copies no more of the state than this."""

    ready: list[Call]


async def after_plan(state: Route, config: RunnableConfig) -> list[Send] | Literal["finalize"]:
    """One task for each call that is ready; `finalize` when there is none.

    `plan` has just written `ready` with its messages. An update from outside (`update_state`) may have changed the
    messages alone, which decide then; where nothing is left to run, `finalize` leads back to `plan`.
    """
    calls = state.get("ready", []) if is_running(config) else _calls_after_edit(config)
    return [Send("delegate" if is_delegation(call["name"]) else "tools", call) for call in calls] or "finalize"


def _calls_after_edit(config: RunnableConfig) -> list[Call]:
    state = read_state(config, FIELDS, fresh=True)
    waiting = [call["id"] for call in state["loop"]["waiting"]] if "loop" in state else []
    return current_wave(state).next_calls(waiting)
