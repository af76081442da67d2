"""Holds the model's reply while middleware hooks run, and applies the reply and messages that they left.

In an agent with hooks of middleware, the node `model` asks the model, nodes of hooks follow, and `plan` then acts.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    RemoveMessage,
    ToolMessage,
    convert_to_messages,
)
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Overwrite

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.calls import calls_of
from graph_agent.base.history.call_events import answer_event, recorded_ids
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.input_messages import since_input
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import HIDDEN_ID_PREFIX, NO_USAGE, Call
from graph_agent.core.extensions.hook_pipeline import AFTER_AGENT, AFTER_MODEL, MiddlewareNode, MiddlewareNodes
from graph_agent.core.planning.reply import REPLACED, read_reply
from graph_agent.core.planning.update import PlanUpdate
from graph_agent.core.state.messages import order_results, stream_rest
from graph_agent.core.state.schema import LoopOutcome, LoopState
from graph_agent.models.sanitize import without_call_blocks
from graph_agent.models.stream_filters import is_blank

_REMOVED = "Not run: middleware took this call out of the plan."
_ENDED = "Not run: middleware ended the work before this call."
_REPLANNED = "Not run: middleware asked for another plan instead."


def hold_reply(update: PlanUpdate) -> None:
    """Put the reply of a planning request into the history, and hold its calls back until the middleware hooks have
    run.

    Ready calls become waiting ones. The reply's id becomes `reply_id` of the loop state, which is empty if hooks have
    nothing to process: after a failure, a limit or a refusal, or if no model was asked. An answer is added as a
    message, too; text that ends planning without being the answer is added as a hidden message (not shown to users),
    which `plan` removes again.
    """
    loop, outcome = update.loop, update.loop["outcome"]
    loop["reply_id"] = ""
    loop.pop("next_node", None)
    reply = update.newest_reply
    if outcome is None:
        assert reply is not None
        calls = update.changes.pop("ready", [])
        loop["waiting"] = [*calls, *loop["waiting"]]
        update.changes["ready"] = []
        loop["reply_id"] = _id_of(update.changes["messages"], reply)
    elif outcome["stop_reason"] == "completed" and "unguarded" not in outcome and update.streamed is not None:
        draft = outcome.get("draft")
        if draft is None and reply is not None and not reply.tool_calls:
            # The closing remark of planning is no part of the conversation; `plan` removes it again.
            held = AIMessage(reply.text, id=f"{HIDDEN_ID_PREFIX}{uuid.uuid4()}", usage_metadata=reply.usage_metadata)
        elif draft is not None:
            held = outcome["draft"] = with_id(draft)
        else:
            return
        update.add_message(held)
        loop["reply_id"] = held.id or ""


def _id_of(messages: list[AnyMessage], reply: AIMessage) -> str:
    """Return the id of the newest model message in `messages`, which is replaced in the list by a copy with a new id if
    it has none.

    Args:
        messages: The messages of a state update; changed in place.
        reply: Not used; the reply that the update contains.
    """
    at = max(index for index, message in enumerate(messages) if isinstance(message, AIMessage))
    messages[at] = with_id(messages[at])
    return messages[at].id or ""


def with_id(message: Any) -> Any:
    """Return a message that has an id: the given object, or a copy with a new random id if it has none."""
    return message if message.id else message.model_copy(update={"id": str(uuid.uuid4())})


def hold_answer(update: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the update of the node that composed an answer as pairs, changed so that middleware hooks can process the
    answer.

    The outcome's draft (the answer so far) gets an id, is added as a message, and its id becomes `reply_id` of the loop
    state. After a failure or without a draft, no message is added, and `reply_id` is empty.

    Args:
        update: The update, with a `loop` whose outcome is set; it and its loop state are changed in place.
    """
    loop: LoopState = update["loop"]
    outcome = loop["outcome"]
    assert outcome is not None
    loop["reply_id"] = ""
    loop.pop("next_node", None)
    if "failed" not in outcome and "draft" in outcome:
        outcome["draft"] = with_id(outcome["draft"])
        update["messages"] = [outcome["draft"]]
        loop["reply_id"] = outcome["draft"].id or ""
    return list(update.items())


def is_failed(loop: LoopState) -> bool:
    """Whether the input has failed: during planning, or in the request for the answer."""
    outcome = loop["outcome"]
    return outcome is not None and (outcome["stop_reason"] == "failed" or "failed" in outcome)


def skips(hook: MiddlewareNode, loop: LoopState) -> bool:
    """Whether a middleware hook must not run now. The first rule that applies decides:

    - `after_agent` always runs, so that it can release what `before_agent` acquired.
    - After a failure of the input, no other hook runs.
    - In the review of an answer, only hooks that rewrite answers run.
    - `after_model` runs only if there is a reply.
    """
    # A hook may hold a resource that it must release.
    if hook.point == AFTER_AGENT:
        return False
    if is_failed(loop):
        return True
    if loop.get("next_node") == "review" and not hook.rewrites:
        return True
    return hook.point == AFTER_MODEL and not loop.get("reply_id")


def comes_from_hooks(update: PlanUpdate) -> bool:
    """Whether this pass of `plan` follows a model's reply that middleware hooks have processed, or a `jump_to` of a
    hook."""
    came = "next_node" in update.loop or "reply_id" in update.loop or bool(update.state.get("jump_to"))
    return bool(update.state.get("wave_finished")) and came


def apply_hooks(update: PlanUpdate) -> None:
    """Act on the reply as the middleware hooks left it: its calls become the waiting calls, or its text the answer.

    - Calls that a hook answered or removed get their results.
    - A jump to `model` skips the calls, discards an answer, and leads to another plan. Each further request for an
      answer counts as a step, so that the limit of steps ends the repetition. After a limit, this jump has no effect.
    - A jump to `end` skips the calls, and the newest text becomes the answer; a fixed sentence if there is none.
    - If the hooks removed the answer, `finalize` composes another one.
    - After a failure, or after planning ended without a reply for the hooks or a jump, nothing is done.
    """
    jump, loop = update.state.get("jump_to"), update.loop
    asked = loop.pop("reply_id", "")
    if is_failed(loop) or (loop["outcome"] is not None and not asked and not jump):
        return
    at = next((i for i in range(len(update.history) - 1, -1, -1) if asked and update.history[i].id == asked), None)
    tail = update.history[at:] if at is not None else since_input(update.history)
    newest = next((each for each in reversed(tail) if isinstance(each, AIMessage)), None)
    answer = newest if newest is not None and not newest.tool_calls and not _is_hidden(newest) else None
    outcome = loop["outcome"]
    limited = outcome is not None and outcome["stop_reason"] != "completed"
    held = at is not None and _is_hidden(update.history[at])
    _take_calls(update, tail, at)
    if held:
        update.replace_history([each for each in update.history if each.id != asked])
    if jump == "model" and not limited:
        _skip_waiting(update, _REPLANNED)
        if outcome is not None:
            update.events += drop_replaced(outcome, AIMessage(""), loop["step"])
            # An answer that is asked for again counts, or a hook could ask for ever.
            loop["outcome"] = None
            if "composed" in outcome:
                loop["step"] += 1
            loop["last_wave"] = False
            update.stop_at_limit()
    elif jump == "end":
        _skip_waiting(update, _ENDED)
        if answer is None or is_blank(answer.text):
            answer = AIMessage(_ended_text(update, newest))
        _conclude(update, answer)
    elif answer is not None:
        _conclude(update, answer)
    elif loop["waiting"]:
        loop["outcome"] = None
    elif outcome is not None and "draft" in outcome:
        # The hooks have removed the answer.
        del outcome["draft"]
        outcome.pop("composed", None)


def _conclude(update: PlanUpdate, answer: AIMessage) -> None:
    """End planning with an answer that hooks left; a streamed text that it replaces adds a `warning` event.

    A limit that had ended planning remains the stop reason.
    """
    before: LoopOutcome = update.loop["outcome"] or {"stop_reason": "completed"}
    answer = with_id(answer)
    outcome: LoopOutcome = {**before, "composed": True}
    update.events += drop_replaced(outcome, answer, update.loop["step"])
    if "draft" not in before or before["draft"].id != answer.id:
        outcome.pop("shown", None)
    outcome["draft"] = answer
    update.conclude(outcome)


def _take_calls(update: PlanUpdate, tail: Sequence[AnyMessage], at: int | None) -> None:
    """Make the open calls of the reply the waiting calls, and record the results of those that hooks answered or
    removed.

    A call whose name or arguments a hook changed, or that a hook added, becomes a new waiting call; calls without an id
    are ignored. If no message of the tail has calls, all waiting calls are recorded as removed. The number of waiting
    calls is limited as for any wave. A reply with malformed calls is replaced in the history by one that providers
    accept.

    Args:
        update: The pass through `plan`, which is changed.
        tail: The messages from the reply on. The calls are those of the last model message that has any.
        at: Index of the reply in the history; None if hooks removed it.
    """
    loop, step = update.loop, update.loop["step"]
    callers = [each for each in tail if isinstance(each, AIMessage) and each.tool_calls]
    if not callers:
        _record_removed(update, loop["waiting"])
        loop["waiting"] = []
        return
    message = callers[-1]
    calls = [call for call in calls_of(message) if call["id"]]
    results = {each.tool_call_id: each for each in tail if isinstance(each, ToolMessage)}
    planned = {call["id"]: call for call in loop["waiting"]}
    recorded = recorded_ids(update.wave_events)
    waiting: list[Call] = []
    for call in calls:
        known = planned.pop(call["id"], None)
        if (result := results.get(call["id"])) is not None:
            if call["id"] not in recorded:
                by = _decider(update.wave_events, call["id"])
                update.events.append(answer_event(call, result, step, by))
            continue
        same = known is not None and (known["name"], known["arguments"]) == (call["name"], call["arguments"])
        waiting.append(known if known is not None and same else _as_planned(call, known))
    _record_removed(update, list(planned.values()))
    loop["waiting"] = update.within_limit(waiting)
    fixed = without_call_blocks(read_reply(message, [], text=False).message)
    if at is not None and fixed.tool_calls != message.tool_calls:
        update.replace_history([fixed if each is message else each for each in update.history])


def _decider(wave: Sequence[StoredEvent], id_: str) -> str:
    """Return who answered or removed a call: the name of the person who decided on it, else of the newest middleware
    that acted. `middleware` if no event names one.

    Args:
        wave: Events since the newest plan.
        id_: Id of the call.
    """
    for entry in reversed(wave):
        if entry["type"] == "approval_decision" and entry["id"] == id_:
            return str(entry["decided_by"])
    return next((str(entry["name"]) for entry in reversed(wave) if entry["type"] == "middleware"), "middleware")


def _as_planned(call: Call, known: Call | None) -> Call:
    """Return a copy of a call that hooks changed, with the `plan_id` and `needs` of the planned call where that has
    them.

    Args:
        call: The call as hooks left it.
        known: The planned call; None for a call that a hook added, whose copy is unchanged.
    """
    changed: Call = {**call}
    if known is not None and "plan_id" in known:
        changed["plan_id"] = known["plan_id"]
    if known is not None and "needs" in known:
        changed["needs"] = known["needs"]
    return changed


def _record_removed(update: PlanUpdate, calls: Sequence[Call]) -> None:
    """Record a `denied` result event for each call that hooks removed, unless the history has a result of it."""
    # A hook may have answered a call and then removed it.
    answered = {each.tool_call_id for each in update.history if isinstance(each, ToolMessage)}
    for call in calls:
        if call["id"] not in answered:
            result = ToolMessage(_REMOVED, tool_call_id=call["id"], name=call["name"], status="error")
            by = _decider(update.wave_events, call["id"])
            update.events.append(answer_event(call, result, update.loop["step"], by))


def _skip_waiting(update: PlanUpdate, reason: str) -> None:
    """Add a `skipped` result with `reason` as its text for each waiting call, so that none of them runs, and put all
    results after their calls.
    """
    waiting, update.loop["waiting"] = update.loop["waiting"], []
    update.skip([(call, reason) for call in waiting])
    # A hook may have added an answer after the calls.
    update.replace_history(order_results(update.history))


def _ended_text(update: PlanUpdate, newest: AIMessage | None) -> str:
    """Return the text of the model's newest message after a hook's jump to `end`; a fixed sentence if it is blank,
    hidden or missing.
    """
    if newest is not None and not is_blank(newest.text) and not _is_hidden(newest):
        return newest.text
    return "Middleware ended this request."


def _is_hidden(message: BaseMessage) -> bool:
    """Whether a message has an id with the prefix by which chat windows hide it."""
    return (message.id or "").startswith(HIDDEN_ID_PREFIX)


def composed_answer(outcome: LoopOutcome, messages: Sequence[AnyMessage]) -> AIMessage | None:
    """Return the composed answer of an outcome, as hooks left it in the history; None if no answer was composed or its
    request failed.

    The answer is the newest visible model message of the input. The outcome's own draft is returned instead if there is
    no such message, or if that has calls.

    Args:
        outcome: The outcome of planning.
        messages: The conversation.
    """
    draft = outcome.get("draft")
    if draft is None or "composed" not in outcome or "failed" in outcome:
        return None
    for message in reversed(since_input(messages)):
        if isinstance(message, AIMessage) and not _is_hidden(message):
            return draft if message.tool_calls else message
    return draft


def stream_unshown(answer: AIMessage | None, outcome: LoopOutcome) -> None:
    """Stream a composed answer unless the reader has received it: LangGraph does not stream a message of the node's
    input. If it replaces a streamed text, it is streamed under a new id.
    """
    if answer is not None and "composed" in outcome and "shown" not in outcome:
        # The id of a text that was streamed belongs to another message of the stream.
        stream_rest(answer.model_copy(update={"id": str(uuid.uuid4())}) if "replaced" in outcome else answer, "")


def drop_replaced(outcome: LoopOutcome, answer: AIMessage, step: int) -> list[StoredEvent]:
    """If the outcome's draft (the answer so far) was streamed and is no part of an answer that hooks put in its place,
    mark it as not shown and replaced.

    Args:
        outcome: The outcome of planning; changed in place.
        answer: The answer that is now valid.
        step: Number of the plan, for the event.

    Returns:
        One `warning` event that makes the streamed text commentary; an empty list if nothing was replaced.
    """
    shown = outcome["draft"].text if "shown" in outcome and "draft" in outcome else ""
    if not shown or shown in answer.text:
        return []
    del outcome["shown"]
    outcome["replaced"] = True
    return [event("warning", step, message=REPLACED, commentary=shown)]


def may_replan(update: PlanUpdate) -> bool:
    """Whether another plan may follow a completed answer that hooks have processed.

    False without an answer, after an abort, and if a limit of steps, turns or supersteps or a budget forbids it.
    """
    outcome = update.loop["outcome"]
    if outcome is None or outcome["stop_reason"] != "completed" or "draft" not in outcome or update.limit_met:
        return False
    if update.state["remaining_steps"] < update.deps.steps_for_a_wave or update.run.stop.aborted:
        return False
    return not update.budget_met(NO_USAGE, outcome["draft"])


def keep_answer(update: PlanUpdate) -> None:
    """Continue planning after an answer: the outcome is reset, and an answer in it adds its `agent_response` event."""
    if (outcome := update.loop["outcome"]) is not None and "draft" in outcome:
        step = update.loop["step"]
        update.events.append(event("agent_response", step, content=outcome["draft"].content))
    update.loop["outcome"], update.loop["last_wave"] = None, False


def request_model(update: PlanUpdate, hooks: MiddlewareNodes) -> None:
    """Store in the loop state (`next_node`) which node runs after this pass of `plan`; the graph's edges read it.

    - Absent: calls are ready or wait for approval, or the input just ends.
    - `model`, or `agent` at the begin of an input: the model must be asked, for a plan or the answer.
    - `review`: the answer, which no model's reply gave, must be processed by hooks that rewrite answers. It is added as
      a message.
    """
    loop, outcome = update.loop, update.loop["outcome"]
    loop.pop("next_node", None)
    if update.changes.get("ready") or loop.get("awaiting_approval"):
        return
    if outcome is None:
        update.changes["ready"] = []
        loop["next_node"] = "agent" if update.begins else "model"
    elif "draft" not in outcome and "handoffs" not in outcome and _composes(outcome, update.settings):
        loop["next_node"] = "agent" if update.begins else "model"
    elif "unguarded" in outcome and "composed" not in outcome and hooks.rewrites:
        draft = outcome["draft"] = with_id(outcome["draft"])
        update.add_message(draft)
        loop["reply_id"], loop["next_node"] = draft.id or "", "review"


def _composes(outcome: LoopOutcome, settings: LoopConfig) -> bool:
    """Whether the model must be asked for the answer of an outcome without a draft: after completed planning, and with
    the setting `on_limit="answer"` after a limit, but not after a failure or an abort.
    """
    reason = outcome["stop_reason"]
    return reason == "completed" or (reason not in ("failed", "aborted") and settings.on_limit == "answer")


def message_changes(before: Sequence[AnyMessage], written: Any) -> dict[str, Any]:
    """Return the fields of a `middleware` event that describe a write to the messages; an empty dict if it changes
    nothing.

    Args:
        before: The messages before the write.
        written: The write, already checked: one message or a list, in any form that LangChain converts to messages.

    Returns:
        `messages` with type and content of each added or changed one (its content or calls differ), and `removed` with
        the number of removed ones; each is absent if there are none.
    """
    if isinstance(written, Overwrite):
        written = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *written.value]
    # Middleware may write a mapping, a pair or a text in place of a message.
    items = convert_to_messages(written if isinstance(written, list) else [written])
    known = {message.id: message for message in before}
    removes_all = any(isinstance(each, RemoveMessage) and each.id == REMOVE_ALL_MESSAGES for each in items)
    removed = {each.id for each in items if isinstance(each, RemoveMessage)} & known.keys()
    kept = {each.id for each in items if not isinstance(each, RemoveMessage)}
    # Messages that are written again are not removed.
    if removes_all:
        removed = known.keys() - kept
    changed = [
        {"type": each.type, "content": to_json_safe(each.content)}
        for each in items
        if not isinstance(each, RemoveMessage)
        and (each.id not in known or _substance(known[each.id]) != _substance(each))
    ]
    fields: dict[str, Any] = {}
    if changed:
        fields["messages"] = changed
    if removed:
        fields["removed"] = len(removed)
    return fields


def _substance(message: BaseMessage) -> tuple[Any, Any]:
    """Return the parts of a message that count as a change: its content and its tool calls."""
    return message.content, getattr(message, "tool_calls", None)


def route_of(loop: Mapping[str, Any]) -> str:
    """Return the node after `plan` in an agent with middleware hooks, if there are no calls to run.

    It is `agent`, `model` or `review`, as `request_model` stored it in the loop state, or `exit` if it stored none.
    """
    return str(loop.get("next_node", "exit"))
