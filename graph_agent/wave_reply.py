"""Reading a structured plan out of a model's reply, whichever way the model could give it."""

from __future__ import annotations

import json
import re
from typing import Any

from json_repair import repair_json
from langchain_core.messages import AIMessage
from pydantic import ValidationError

from graph_agent.calls import new_call_id, split_tool_calls
from graph_agent.config import explain
from graph_agent.text import plain
from graph_agent.waves import PlanError, PlanningResult, WaveCall

PLAN_TOOL = "make_plan"
"""The tool a model is offered to hand its plan over, where it has tools but no schema mode."""

_LONGEST_REPAIR = 100_000  # characters; the repair is quadratic on hostile text
_PLAN_KEYS = {"status", "tools", "action", "slots", "reasoning"}
_REASONING = re.compile(r"<think>.*?</think>", re.DOTALL)


def read_plan(reply: AIMessage, schema: type[PlanningResult]) -> PlanningResult:
    """The plan in a reply: in a call of `PLAN_TOOL`, as calls of the tools themselves, or as JSON in its text.

    Prose is a plan that is done: the model has nothing to run.

    Raises:
        PlanError: On JSON that is no plan; the text is for the model.
    """
    for call in reply.tool_calls:
        if call["name"] == PLAN_TOOL:
            return _validated(call["args"], schema)
    if reply.tool_calls:
        asked = [
            WaveCall(id=call["id"] or new_call_id(), tool=call["name"], args=call["args"]) for call in reply.tool_calls
        ]
        return schema(status="continue", tools=asked, reasoning=reply.text)
    if reply.invalid_tool_calls:
        raise PlanError("The arguments of the plan are no JSON object. Send the plan again, as one JSON object.")
    text = _REASONING.sub("", reply.text)
    found = _json_object(text)
    if isinstance(found, dict) and _PLAN_KEYS & found.keys():
        return _validated(found, schema)
    calls, prose = split_tool_calls(text)
    if calls:
        asked = [WaveCall(id=call["id"], tool=call["name"], args=call["arguments"]) for call in calls]
        return schema(status="continue", tools=asked, reasoning=prose)
    return schema(status="done", reasoning=reply.text)


def _validated(value: Any, schema: type[PlanningResult]) -> PlanningResult:
    try:
        return schema.model_validate(plain(value))
    except ValidationError as error:
        raise PlanError(f"{explain(error, 'The plan', schema.model_fields)}\nSend the whole plan again.") from None


def _json_object(text: str) -> Any:
    """What stands between the first brace and the last, read as JSON; None when that cannot be."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        return None
    candidate = text[start : end + 1] if end > start else text[start:]
    try:
        return json.loads(candidate)
    except (ValueError, RecursionError):
        return repair_json(candidate, return_objects=True) if len(candidate) <= _LONGEST_REPAIR else None
