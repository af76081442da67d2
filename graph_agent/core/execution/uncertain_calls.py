"""Marks the calls of an approval request that may repeat the effect of an earlier call.

The earlier call has an unknown outcome, as after a crash, an abort, a timeout or a lost server; or the session is a
fork that leaves the call out (see `session.forks`). A person decides on an equal call knowingly: the request states the
earlier call, and no standing approval covers the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from graph_agent.base._compat import read_state
from graph_agent.base._internal.text import text_of
from graph_agent.base.approvals.requests import HeldCall, calls_of_request, is_single_call, request_of
from graph_agent.base.calls import fingerprint
from graph_agent.base.history.call_events import call_of
from graph_agent.base.history.events import StoredEvent
from graph_agent.core.execution.deps import Task
from graph_agent.core.extensions.output import effect_text
from graph_agent.core.extensions.toolbox import Toolbox
from graph_agent.core.state.schema import LoopState, UncertainCalls

_MADE_BEFORE = "An equal call ({}) was made before, and its outcome is unknown: it may have taken effect."
"""Sentence for the reviewer; the field is the id and the step of the earlier call."""
_LEFT_OUT = {
    "success": "An equal call ({id}, step {step}) succeeded in the session {session!r}, from which this one is forked.",
    "unknown": "An equal call ({id}, step {step}) was made in the session {session!r}, from which this one is forked, "
    "and its outcome is unknown: it may have taken effect.",
}
"""Status of a call that a fork leaves out → sentence for the reviewer."""
_EARLIER = " of an earlier message"
"""Follows the step of a call that an earlier message asked for."""


def mark_uncertain_calls(
    held: Sequence[HeldCall], loop: LoopState, stored: Sequence[StoredEvent], new: Sequence[StoredEvent], tools: Toolbox
) -> list[HeldCall]:
    """Return the calls for an approval request; those that may repeat the effect of an earlier call are marked.

    Such a call is `uncertain`, and its description ends with a sentence about the newest equal call. Only calls that
    may write are marked. Equal calls have the same name and equal canonical arguments.

    Args:
        held: The calls that wait for a decision.
        loop: The loop state; if one of the calls may write, `uncertain` is updated, so that the next request reads only
            the events after this one.
        stored: The session's stored events, oldest first.
        new: The events that follow them.
        tools: The agent's tools and their marks.
    """
    if any(tools.writes(call["name"]) for call in held):
        loop["uncertain"] = _uncertain(loop, stored, new)
    return [_marked(call, loop, tools) for call in held]


def with_uncertain_calls(asked: GraphInterrupt, task: Task) -> GraphInterrupt:
    """Return the interrupt of a middleware that asks for approvals, with the marks of `mark_uncertain_calls`.

    Requests of LangChain's `HumanInTheLoopMiddleware` in both of its modes are marked; a request of this package, which
    has ids, and any other question are unchanged. The loop state is not changed.

    Args:
        asked: The interrupt that the middleware raised.
        task: The task that runs the middleware.
    """
    interrupts: Sequence[Interrupt] = asked.args[0] if asked.args else ()
    # A request with ids is one of this package, whose own agent has marked it.
    requests = {
        each.id: request
        for each in interrupts
        if (request := request_of(each)) is not None and (is_single_call(each.value) or "call_ids" not in request)
    }
    if not requests:
        return asked
    loop: LoopState = {**task.loop}
    stored = read_state(task.config, ["events"]).get("events", ())
    marked: list[Interrupt] = []
    for each in interrupts:
        calls = calls_of_request(requests[each.id]) if each.id in requests else []
        held = mark_uncertain_calls(calls, loop, stored, (), task.deps.toolbox)
        marked.append(replace(each, value=_with_marks(each.value, held)) if any(map(_is_uncertain, held)) else each)
    return GraphInterrupt(marked)


def _with_marks(value: Mapping[str, Any], held: Sequence[HeldCall]) -> dict[str, Any]:
    """Return the value of an interrupt with the descriptions of its calls, and which are uncertain.

    `uncertain` is True for an approval of a single call, else a list with one boolean for each call.

    Args:
        value: The value: LangChain's approval of a single call, or an approval request.
        held: The calls, in the order of the request.
    """
    if is_single_call(value):
        return {**value, "description": held[0].get("description", ""), "uncertain": True}
    texts = [{"description": call["description"]} if "description" in call else {} for call in held]
    actions = [{**action, **text} for action, text in zip(value["action_requests"], texts, strict=True)]
    return {**value, "action_requests": actions, "uncertain": [_is_uncertain(call) for call in held]}


def _is_uncertain(call: HeldCall) -> bool:
    """Whether a call is marked."""
    return call.get("uncertain", False)


def _marked(call: HeldCall, loop: LoopState, tools: Toolbox) -> HeldCall:
    """Return a call; if it may write and may repeat the effect of an earlier call, as a copy with `uncertain` set to
    True and a description that ends with a warning of it.

    It may repeat one if the loop state has, under `uncertain`, an equal call that was made before or left out.
    """
    if not tools.writes(call["name"]) or not ((found := loop["uncertain"])["calls"] or "left_out" in found):
        return call
    key = fingerprint({"id": call["id"], "name": call["name"], "arguments": call["arguments"]})
    made = found["calls"].get(key)
    sentence = found.get("left_out", {}).get(key) if made is None else _MADE_BEFORE.format(made)
    if sentence is None:
        return call
    text = call.get("description", "")
    # A request that is repeated may have the sentence already.
    described = text if text.endswith(sentence) else f"{text}\n{sentence}".strip()
    return {**call, "description": described, "uncertain": True}


def _uncertain(loop: LoopState, stored: Sequence[StoredEvent], new: Sequence[StoredEvent]) -> UncertainCalls:
    """Return the calls of a session with an unknown outcome, and those that a fork leaves out, up to its newest event.

    The outcome is unknown for the status `unknown`, and for a timed-out write. What `loop["uncertain"]` has is taken
    over, so that older events are read again only for the calls of newer results. If a user message or a first plan has
    come since, the entries state that the call is of an earlier message.

    Args:
        loop: The loop state, which is not changed.
        stored: The session's stored events, oldest first.
        new: The events that follow them.
    """
    nothing: UncertainCalls = {"read": 0, "calls": {}}
    known = loop.get("uncertain", nothing)
    count = len(stored) + len(new)
    found: dict[str, str] = {}
    left_out: dict[str, str] = {}
    ids: set[str] = set()
    earlier = ""
    for at, entry in zip(range(count - 1, -1, -1), chain(reversed(new), reversed(stored)), strict=True):
        if at < known["read"] and not ids:
            break
        if entry["type"] in ("tool_result", "delegation_response"):
            # A timeout has the status `error`, and only its text has the uncertainty.
            timed_out = entry["status"] == "error" and effect_text(writes=True) in text_of(entry["content"])
            if at >= known["read"] and (timed_out or entry["status"] == "unknown"):
                ids.add(entry["id"])
        elif entry["type"] == "fork" and at >= known["read"]:
            for made in reversed(entry["calls"]):
                left_out.setdefault(made["fingerprint"], _LEFT_OUT[made["status"]].format_map(made))
        elif entry["type"] == "user_message" or (entry["type"] == "plan" and entry["step"] <= 1):
            earlier = _EARLIER
        elif ids and (call := call_of(entry)) is not None and call["id"] in ids:
            # An older event of the same call has the arguments before a person edited them.
            ids.remove(call["id"])
            found.setdefault(fingerprint(call), f"{call['id']}, step {entry['step']}{earlier}")
    before = {
        key: f"{made.removesuffix(_EARLIER)}{earlier}" if earlier else made for key, made in known["calls"].items()
    }
    uncertain: UncertainCalls = {"read": count, "calls": {**before, **found}}
    if left_out := {**known.get("left_out", {}), **left_out}:
        uncertain["left_out"] = left_out
    return uncertain
