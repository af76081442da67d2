"""The one conditional edge: after `plan`, to the calls that are ready or to the answer."""

from __future__ import annotations

from typing import Literal

from langgraph.types import Send
from typing_extensions import TypedDict

from graph_agent.delegation import CALL_PREFIX
from graph_agent.types import Call

PATHS = ["tools", "delegate", "finalize"]
"""Where `after_plan` may lead; LangGraph cannot see it in a function that returns `Send`s."""


class Route(TypedDict):
    """What the edge reads: LangGraph copies no more of the state than this."""

    ready: list[Call]


async def after_plan(state: Route) -> list[Send] | Literal["finalize"]:
    """One task for each call that is ready; `finalize` when there is none."""
    if not state["ready"]:
        return "finalize"
    return [Send("delegate" if call["name"].startswith(CALL_PREFIX) else "tools", call) for call in state["ready"]]
