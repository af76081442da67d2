"""Reading a structured plan out of a model's reply, whichever way the model could give it."""

from __future__ import annotations

import json
import re
from typing import Any

from langchain_core.messages import AIMessage
from pydantic import ValidationError

from graph_agent._internal.text import NotFiniteError, clean, plain
from graph_agent._internal.validation_text import explain
from graph_agent.calls import new_call_id, split_tool_calls
from graph_agent.calls.lenient_json import repaired
from graph_agent.models.finish_reasons import cause_of, cut_off
from graph_agent.waves.schema import CALL_ID, PlanError, PlanningResult, WaveCall

PLAN_TOOL = "make_plan"
"""The tool a model is offered to hand its plan over, where it has tools but no schema mode."""

_MOST_TRIES = 200
_PLAN_KEYS = {"status", "tools", "action", "slots", "reasoning"}
_BEGINS_LIKE_A_PLAN = re.compile(r"""\{\s*["']?(?:status|tools|action|slots|reasoning)["']?\s*:""")
_LOOKS_LIKE_A_PLAN = re.compile(r'"(?:status|tools)"\s*:')


def read_plan(reply: AIMessage, schema: type[PlanningResult]) -> PlanningResult:
    """The plan in a reply: in a call of `PLAN_TOOL`, as calls of the tools themselves, or as JSON in its text.

    Prose is a plan that is done, and its answer: the model has nothing to run.

    Raises:
        PlanError: On JSON that is no plan; the text is for the model.
    """
    if (cut := cut_off(reply)) is not None:
        fix = "Send a shorter one." if cut == "length" else "Send the whole plan again."
        raise PlanError(f"The plan was cut off {cause_of(cut, reply)}; nothing of it was run. {fix}")
    for call in reply.tool_calls:
        if call["name"] == PLAN_TOOL:
            return _validated(call["args"], schema)
    if reply.invalid_tool_calls:
        raise PlanError("The arguments of a call are no JSON object. Send the whole plan again.")
    if reply.tool_calls:
        asked = [(call["id"] or "", call["name"], call["args"]) for call in reply.tool_calls]
        return _made_of_calls(asked, reply.text, schema)
    text = reply.text.rpartition("</think>")[2]
    if (found := _plan_in(text)) is not None:
        return _validated(found, schema)
    calls, prose = split_tool_calls(text)
    if calls:
        return _made_of_calls([(call["id"], call["name"], call["arguments"]) for call in calls], prose, schema)
    if _LOOKS_LIKE_A_PLAN.search(text):
        raise PlanError("The plan is no valid JSON. Send the whole plan again, as one JSON object.")
    # Made without validation: a schema of one's own may demand slots, and there is nothing to fill them from.
    return schema.model_construct(status="done", action="", slots={}, tools=[], reasoning=text, answer=text)


def _made_of_calls(
    calls: list[tuple[str, str, dict[str, Any]]], reasoning: str, schema: type[PlanningResult]
) -> PlanningResult:
    """A plan of calls that a model made without one. Its ids are the provider's: those that do not fit are made new."""
    asked: list[WaveCall] = []
    taken: set[str] = set()
    for id_, name, arguments in calls:
        free = id_ if CALL_ID.fullmatch(id_) and id_ not in taken else new_call_id()
        taken.add(free)
        try:
            asked.append(WaveCall(id=free, tool=clean(name), args=plain(arguments)))
        except ValueError as error:
            raise PlanError(f"The arguments of {name[:80]!r} cannot be used: {error}.") from None
        _check_numbers(asked[-1], arguments)
    return schema.model_construct(status="continue", action="", slots={}, tools=asked, reasoning=reasoning, answer="")


def _validated(value: Any, schema: type[PlanningResult]) -> PlanningResult:
    try:
        plan = schema.model_validate(plain(value))
    except ValidationError as error:
        faults = "\n".join(line[:300] for line in explain(error, "The plan", schema).split("\n")[:10])
        raise PlanError(f"{faults}\nSend the whole plan again.") from None
    except (RecursionError, ValueError):
        raise PlanError("The plan is nested too deeply. Send a flatter one.") from None
    tools = value.get("tools") if isinstance(value, dict) else None
    # A schema of one's own may take calls in another shape.
    for call, given in zip(plan.tools, tools if isinstance(tools, list) else (), strict=False):
        _check_numbers(call, given.get("args") if isinstance(given, dict) else None)
    return plan


def _check_numbers(call: WaveCall, arguments: Any) -> None:
    """Mark a call whose arguments hold a number that is not finite; the others of its plan can run."""
    try:
        plain(arguments, finite=True)
    except NotFiniteError as error:
        call.mark_faulty(f"The arguments cannot be used: {error}.")


def _plan_in(text: str) -> dict[str, Any] | None:
    """The last JSON object in a text that has a plan's keys; None without one, or when it is too broken to trust."""
    found: dict[str, Any] | None = None
    decoder = json.JSONDecoder()
    at = text.find("{")
    for _ in range(_MOST_TRIES):
        if at < 0:
            break
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            if _BEGINS_LIKE_A_PLAN.match(text, at):
                # What stands inside a broken plan may look like one of its own.
                return _repaired(text[at:])
            end = at + 1
        else:
            if isinstance(value, dict) and _PLAN_KEYS & value.keys():
                found = value
        at = text.find("{", end)
    return found


def _repaired(text: str) -> dict[str, Any] | None:
    """A plan with a slip in its JSON, mended; None for one that was cut off, whose last calls nobody can know."""
    broken = text[: max(text.rfind("}"), text.rfind("]")) + 1]
    if not broken or broken.count("[") != broken.count("]"):
        return None
    try:
        value = repaired(broken)
    except ValueError:
        return None
    return value if isinstance(value, dict) and _PLAN_KEYS & value.keys() else None
