"""How a request asks a model for calls: through tools, as a structured plan, or as JSON in text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .conversation import known_tool
from .wave_plan import Style

_ANSWERS = "when you need no further tools, answer the user"
_PLAN_ANSWERS = "when nothing is to be run, put your answer to the user"
_PLANS = "you plan; your plan is carried out for you"
_ONE_PLAN = "there is one plan"
_MOST_CALLS = re.compile(r"a plan has at most (\d+) calls")
_MOST = 64
_LISTED = re.compile(r"^## (\S+)$", re.MULTILINE)


class Way(NamedTuple):
    """How a request asks for calls."""

    offered: Mapping[str, str]
    """The hotel's tools that are offered → their names in this request; empty when nothing can be called."""
    native: bool
    """Whether calls are the provider's tool calls, rather than JSON in text."""
    style: Style | None
    """How a structured plan is made; None where calls are asked for one by one."""
    plan_tool: str | None
    """The tool that takes the plan; None where a plan is the text of the reply."""
    most_calls: int
    """Calls in one plan at most."""
    answers: bool
    """Whether the reply is the answer to the user when there is nothing to call."""


def way_of(prompt: str, tools: Sequence[dict[str, Any]]) -> Way:
    """Read how calls are asked for.

    Args:
        prompt: The system prompt.
        tools: The tools of the request, as OpenAI function schemas.
    """
    lowered = prompt.lower()
    functions = [tool.get("function", {}) for tool in tools]
    takes_plan = [function["name"] for function in functions if _takes_plan(function)]
    style: Style | None = None
    if takes_plan or _PLANS in lowered:
        style = "dag" if _ONE_PLAN in lowered else "wave"
    native = bool(tools) and style is None
    names = [str(function.get("name", "")) for function in functions] if native else _LISTED.findall(prompt)
    most = _MOST_CALLS.search(lowered)
    return Way(
        offered={tool: name for name in names for tool in [known_tool(name)] if tool},
        native=native,
        style=style,
        plan_tool=takes_plan[0] if takes_plan else None,
        most_calls=int(most[1]) if most else _MOST,
        answers=(_PLAN_ANSWERS if style else _ANSWERS) in lowered,
    )


def _takes_plan(function: Mapping[str, Any]) -> bool:
    fields: Mapping[str, Any] = function.get("parameters", {}).get("properties", {})
    return "status" in fields and "tools" in fields
