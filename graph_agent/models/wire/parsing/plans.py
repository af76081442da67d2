"""Parses structured plans from model replies: a plan tool call, native calls, or JSON text.

In structured planning the model replies with a JSON object that has all calls of a wave; see `PlanningResult`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from langchain_core.messages import AIMessage
from pydantic import ValidationError

from graph_agent.base._internal.lenient_json import ends_inside_value, parse_lenient_json
from graph_agent.base._internal.text import NotFiniteError, clean, to_json_safe
from graph_agent.base._internal.validation_text import explain
from graph_agent.base.calls import new_call_id
from graph_agent.base.finish import cause_of, cut_off, text_cut_off
from graph_agent.base.tool_names import PLAN_TOOL
from graph_agent.base.types import CutOff
from graph_agent.base.waves.schema import CALL_ID, PlanError, PlanningResult, WaveCall
from graph_agent.models.wire.parsing.calls import read_text_calls

_STATUS = ("continue", "done")
"""Values of a plan's `status`."""
_KEYS = {"status", "tools", "action", "slots", "reasoning", "answer"}
"""Fields of a plan."""
_BEGINS_LIKE_A_PLAN = re.compile(r"""\{\s*["']?(?:status|tools|action|slots|reasoning)["']?\s*:""")
"""Matches the begin of an object whose first key is a field of a plan."""
_HOLDS_A_PLAN = re.compile(
    r"""(?:(?<=["'])|(?<=[{,\s]))(?:status["']?\s*:\s*["'](?:continue|done)["']|tools["']?\s*:\s*\[)"""
)
"""Matches a field that a plan has, also in a damaged one."""
_NAMES_A_FIELD = re.compile(r'"(?:status|tools)"\s*:')
"""Matches the name of a plan's field in JSON."""
_FENCE = re.compile(r"\A(?:`{3,}|~{3,})[\w-]*+\s*+(?=\{)")
_FENCE_END = re.compile(r"\A(?:`{3,}|~{3,})\s*+")
_HALF_ESCAPE = re.compile(r"(?<!\\)((?>(?:\\\\)*))\\(?:u[0-9a-fA-F]{0,3})?\Z")
"""Matches an incomplete escape at the end of a JSON string that was cut off."""
_HALF_PAIR = re.compile(r"(?<!\\)((?>(?:\\\\)*))\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
"""Matches the first half of an escaped surrogate pair at the end of a JSON string that was cut off."""
_MOST_PLANS = 20
"""Maximum plans that are removed from the begin of one text."""
_decoder = json.JSONDecoder(strict=False)


def answer_of_plans(text: str) -> str | None:
    """Return the answer in a text that begins with one or more structured plans; None if the text does not.

    The answer is the `answer` of each plan and the text after the plans, as paragraphs without repeats; empty if there
    is neither. Plans in a Markdown code block, damaged plans and cut-off ones are recognized, too. None also for a plan
    whose `answer` is no text.

    Args:
        text: A reply without its reasoning.
    """
    parts, rest = list[str](), text.strip()
    for count in range(_MOST_PLANS):
        fence = _FENCE.match(rest)
        body = rest[fence.end() :] if fence else rest
        if (found := _first_plan(body)) is None:
            if count == 0:
                return None
            break
        plan, end = found
        answer = plan.get("answer") or ""
        # The user may have asked for JSON with these names.
        if not isinstance(answer, str):
            return None
        parts.append(answer.strip())
        rest = body[end:].strip()
        rest = _FENCE_END.sub("", rest) if fence else rest
    return "\n\n".join(dict.fromkeys(filter(None, [*parts, rest])))


def partial_answer(text: str) -> str | None:
    """Return the begun answer of a plan that was cut off; None if it has none, or may have calls.

    Args:
        text: A reply without its reasoning. The plan's list of calls must be complete and empty.
    """
    plan = _completed(_FENCE.sub("", text.strip()))
    if plan is None or plan.get("status") not in _STATUS or plan.get("tools") != []:
        return None
    answer = plan.get("answer")
    return answer if isinstance(answer, str) and answer.strip() else None


def _first_plan(text: str) -> tuple[dict[str, Any], int] | None:
    """Return the plan at the start of a text, and the index after it; None if the text does not start with a plan.

    A damaged plan that cannot be repaired is returned as an empty dict that extends to the end of the text.
    """
    if not text.startswith("{"):
        return None
    try:
        value, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        value, end = _completed(text), len(text)
        if value is None and _BEGINS_LIKE_A_PLAN.match(text) and _HOLDS_A_PLAN.search(text):
            return _repaired_start(text)
    return (value, end) if isinstance(value, dict) and _is_plan(value) else None


def _repaired_start(text: str) -> tuple[dict[str, Any], int]:
    """Return the damaged plan at the start of a text and the index after it; an empty plan if it cannot be repaired."""
    try:
        value = parse_lenient_json(text)
    except ValueError:
        value = None
    return (value, text.rfind("}") + 1) if isinstance(value, dict) and "}" in text else ({}, len(text))


def _completed(text: str) -> dict[str, Any] | None:
    """Parse a JSON object at the start of a text that may have been cut off inside or after a string.

    None for any other text.
    """
    whole = _HALF_PAIR.sub(r"\1", _HALF_ESCAPE.sub(r"\1", text))
    # Cut off between tokens, after a complete string, or inside one.
    for candidate in (text, text + "}", whole + '"}'):
        try:
            value, _ = _decoder.raw_decode(candidate)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else None
    return None


def _is_plan(value: Any) -> bool:
    """Whether a JSON value is a plan, as opposed to an object that the user asked for.

    A plan has a list of calls in `tools` and one further sign: a status, only keys of plans, or calls with `id` or
    `args`. A plan without calls has only keys of plans, with a status or at least two keys.
    """
    if not isinstance(value, dict):
        return False
    tools, has_status = value.get("tools"), value.get("status") in _STATUS
    has_plan_keys = value.keys() <= _KEYS
    if isinstance(tools, list) and all(isinstance(call, dict) and "tool" in call for call in tools):
        are_calls = bool(tools) and all(call.keys() & {"id", "args"} for call in tools)
        return has_status or has_plan_keys or are_calls
    return has_plan_keys and (has_status or len(_PLAN_KEYS & value.keys()) > 1)


_MOST_TRIES = 200
"""Maximum places in a text at which a JSON object is searched."""
_PLAN_KEYS = {"status", "tools", "action", "slots", "reasoning"}


def read_plan(reply: AIMessage, schema: type[PlanningResult]) -> PlanningResult:
    """Return the plan in a reply: from a call of `PLAN_TOOL`, native calls of the tools, JSON in the text, or calls
    written in the text. The first of these that the reply has counts.

    Prose without a plan becomes a plan with status `done`, no calls, and the prose as answer. A plan without calls
    whose answer was cut off at the token limit keeps the partial answer. Text before `</think>` is ignored. Of several
    objects in the text, the last with a field of a plan counts; broken JSON is repaired. A reply that was cut off is
    refused, also if its calls are whole.

    Args:
        reply: The complete reply of the model.
        schema: Class of the plan, which may declare the type of `slots`.

    Raises:
        PlanError: The plan was cut off, is no valid JSON, or does not fit `schema`, or arguments of a call are no JSON
            object; the text is for the model.
    """
    if (cut := cut_off(reply)) is not None:
        if cut == "length" and (partial := partial_answer(reply.text.rpartition("</think>")[2])) is not None:
            return schema.model_construct(status="done", action="", slots={}, tools=[], reasoning="", answer=partial)
        raise _cut_off_plan(cut, reply)
    for call in reply.tool_calls:
        if call["name"] == PLAN_TOOL:
            return _validate(call["args"], schema)
    if reply.invalid_tool_calls:
        raise PlanError("The arguments of a call are no JSON object.", " Send the whole plan again.")
    if reply.tool_calls:
        native_calls = [(call["id"] or "", call["name"], call["args"]) for call in reply.tool_calls]
        return _plan_of_calls(native_calls, reply.text, schema)
    # Some servers leave the reasoning in the text.
    text = reply.text.rpartition("</think>")[2]
    if (found := _plan_in(text)) is not None:
        return _validate(found, schema)
    written = read_text_calls(text)
    if (cut := text_cut_off(reply, unclosed=written.unclosed, partial=written.partial)) is not None:
        raise _cut_off_plan(cut, reply)
    if written.calls:
        calls = [(call["id"], call["name"], call["arguments"]) for call in written.calls]
        return _plan_of_calls(calls, written.prose, schema)
    if _HOLDS_A_PLAN.search(text) or _NAMES_A_FIELD.search(text):
        raise PlanError("The plan is no valid JSON.", " Send the whole plan again, as one JSON object.")
    # Not validated: a user's schema may require slots, and prose provides none.
    return schema.model_construct(status="done", action="", slots={}, tools=[], reasoning=text, answer=text)


def _cut_off_plan(cut: CutOff, reply: AIMessage) -> PlanError:
    """Return (not raise) the error for a plan that was cut off.

    Args:
        cut: Why the reply ended early.
        reply: The reply, whose metadata adds details.
    """
    fix = "Send a shorter one." if cut == "length" else "Send the whole plan again."
    return PlanError(f"The plan was cut off {cause_of(cut, reply)}; nothing of it was run.", f" {fix}")


def _plan_of_calls(
    calls: list[tuple[str, str, dict[str, Any]]], reasoning: str, schema: type[PlanningResult]
) -> PlanningResult:
    """Build a plan of status `continue` from calls that the model made outside of a plan. Invalid or repeated ids are
    replaced.

    Args:
        calls: Id, tool name and arguments of each call.
        reasoning: The text of the reply.
        schema: Class of the plan.

    Raises:
        PlanError: The arguments of a call cannot be represented in JSON.
    """
    wave_calls: list[WaveCall] = []
    taken: set[str] = set()
    for id_, name, arguments in calls:
        unique_id = id_ if CALL_ID.fullmatch(id_) and id_ not in taken else new_call_id()
        taken.add(unique_id)
        try:
            wave_calls.append(WaveCall(id=unique_id, tool=clean(name), args=to_json_safe(arguments)))
        except ValueError as error:
            raise PlanError(f"The arguments of {name[:80]!r} cannot be used: {error}.") from None
        _check_numbers(wave_calls[-1], arguments)
    return schema.model_construct(
        status="continue", action="", slots={}, tools=wave_calls, reasoning=reasoning, answer=""
    )


def _validate(value: Any, schema: type[PlanningResult]) -> PlanningResult:
    """Validate a value as a plan.

    A call whose arguments have a number that is not finite becomes faulty; the plan stays valid.

    Raises:
        PlanError: The value does not fit the schema; the text has the first ten faults.
    """
    try:
        plan = schema.model_validate(to_json_safe(value))
    except ValidationError as error:
        faults = "\n".join(line[:300] for line in explain(error, "The plan", schema).split("\n")[:10])
        raise PlanError(faults, "\nSend the whole plan again.") from None
    except (RecursionError, ValueError):
        raise PlanError("The plan is nested too deeply.", " Send a flatter one.") from None
    tools = value.get("tools") if isinstance(value, dict) else None
    # A user's schema may accept calls in another shape.
    for call, given in zip(plan.tools, tools if isinstance(tools, list) else (), strict=False):
        _check_numbers(call, given.get("args") if isinstance(given, dict) else None)
    return plan


def _check_numbers(call: WaveCall, arguments: Any) -> None:
    """Mark a call as faulty if its given arguments contain NaN or an infinity; the plan's other calls can still run."""
    try:
        to_json_safe(arguments, finite=True)
    except NotFiniteError as error:
        call.mark_faulty(f"The arguments cannot be used: {error}.")


def _plan_in(text: str) -> dict[str, Any] | None:
    """Return the last JSON object in a text that has a field of a plan; None if there is none.

    At the first broken object that begins like a plan, the search ends: the rest of the text is repaired, or None
    returned if that is impossible.
    """
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
                # An object inside a broken plan may look like a plan.
                return _repaired(text[at:])
            end = at + 1
        else:
            if isinstance(value, dict) and _PLAN_KEYS & value.keys():
                found = value
        at = text.find("{", end)
    return found


def _repaired(text: str) -> dict[str, Any] | None:
    """Repair the broken JSON of a plan. None if that is impossible, or if the plan was cut off, because its last calls
    are unknown.
    """
    broken = text[: max(text.rfind("}"), text.rfind("]")) + 1]
    if not broken or broken.count("[") != broken.count("]") or ends_inside_value(broken):
        return None
    try:
        value = parse_lenient_json(broken)
    except ValueError:
        return None
    return value if isinstance(value, dict) and _PLAN_KEYS & value.keys() else None
