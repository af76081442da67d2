"""Showing a planning reply to the hooks, and finding out what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage

from graph_agent.budgets import LimitMet, LimitMetError
from graph_agent.calls import fingerprint
from graph_agent.deps import AgentParts
from graph_agent.errors import SlowSchemaError
from graph_agent.hooks.copies import LentRequest, copied
from graph_agent.hooks.faults import fail_or_skip
from graph_agent.hooks.protocol import HookRequest, HookResponse, LoopHook, LoopPlan, RequestPatch, sees_answers
from graph_agent.models.cleaning import without_calls
from graph_agent.models.sentinel import says_nothing
from graph_agent.models.side_calls import call_aside
from graph_agent.planning.open_calls import without_open_calls
from graph_agent.planning.reply import Planned
from graph_agent.state.schema import HookWork
from graph_agent.types import Call

PATCHED_MODEL = "RequestPatch.model"
"""Who names a patch's model, for the error when it cannot be had."""

Ask = Callable[[HookRequest, Sequence[AnyMessage]], Awaitable[tuple[Planned, HookRequest]]]
"""Has a patched request answered, and keeps messages for the requests to come; gives the request as it was answered."""


async def through_hooks(
    parts: AgentParts,
    planned: Planned,
    request: HookRequest,
    *,
    work: HookWork,
    limit: Callable[[Planned], LimitMet | None],
    ask: Ask,
    warn: Callable[[str], None],
    heard: Callable[[AIMessage], None],
) -> Planned:
    """Show a reply to the hooks, in order, and whatever reply they have it replaced by, from the first hook again.

    A rerun is refused, with a warning, when the input has had `max_agentic_loops` of them, and when a reply brings the
    very calls that a rerun has already been asked for in this input. The hook that wants it then has no more reruns in
    this input, and is asked about replies without calls only, as one of these may be the answer; the reply at hand goes
    on to the hooks behind it. A rerun that a limit forbids ends the input at that limit, and the reply at hand, which a
    hook wants replaced, is not followed; the answer that ends an input is given all the same.

    Args:
        parts: The agent.
        planned: The reply.
        request: What it answers.
        work: What hooks have done for the input; it is brought up to date in place.
        limit: The limit that forbids another model call after a reply, and its size; None when there is none.
        ask: Has a patched request answered; what it raises is the plan's failure.
        warn: Tells the user.
        heard: Given each reply of a model that a hook asks by itself.

    Raises:
        HookError: When a hook fails that declares `on_error = "fail"`.
        LimitMetError: When a limit forbids a rerun.
        Exception: What `ask` raised.
    """
    first = 0
    while True:
        # A hook that has no more reruns may still replace an answer.
        places = [place for place in range(first, len(parts.hooks)) if place not in work["ended"] or not planned.calls]
        found = await _first_wish(parts, places, planned, request, warn, heard)
        if found is None:
            return planned
        place, plan, patched = found
        name = type(parts.hooks[place]).__name__
        if plan.response_override is not None:
            answered = _answered(planned, plan.response_override)
            if (misfit := await _misfit(parts, answered.message)) is not None:
                warn(f"What the hook {name} answers does not fit the response format: {misfit}")
            return answered
        if plan.terminate:
            return replace(planned, ended=True, final=_answers(parts, planned, request))
        calls = _fingerprint(planned.calls)
        most = request.settings.max_agentic_loops
        if place in work["ended"] or calls in work["calls"]:
            refused = "the model makes the same calls again"
        elif (reruns := work["reruns"]) >= most:
            refused = f"the model was asked again {reruns} times, which is all that max_agentic_loops allows"
        elif (met := limit(planned)) is not None and request.phase == "answer":
            # There is nothing else to end the input with.
            refused = "a limit forbids it"
        elif met is not None:
            warn(
                f"The hook {name} wants the model asked again, but a limit forbids it; its last reply is not followed."
            )
            work["ended"].append(place)
            raise LimitMetError(*met)
        else:
            work["reruns"] += 1
            work["calls"] += [calls] if calls else []
            first = 0
            request = replace(patched, depth=request.depth + 1)
            planned, request = await ask(request, plan.keep_messages)
            planned = replace(planned, extra={**planned.extra, "reruns": request.depth})
            continue
        if place not in work["ended"]:
            warn(f"The hook {name} wants the model asked again, but {refused}; its last reply counts.")
            work["ended"].append(place)
        first = place + 1


async def _first_wish(
    parts: AgentParts,
    places: Sequence[int],
    planned: Planned,
    request: HookRequest,
    warn: Callable[[str], None],
    heard: Callable[[AIMessage], None],
) -> tuple[int, LoopPlan, HookRequest] | None:
    """The first hook in these places that wants something: its place, plan and patched request; None without one."""
    for place in places:
        hook = parts.hooks[place]
        if not planned.calls and not sees_answers(hook):
            continue
        response = HookResponse(copied(planned.message), copied(planned.calls), copied(planned.usage))
        shown = LentRequest.of(request)
        try:
            plan = await _wish(hook, response, shown, heard)
            if plan is None:
                continue
            if not isinstance(plan.response_override, str | AIMessage | None):
                raise TypeError(f"response_override is {plan.response_override!r}; give text or an AIMessage")
            patched = (plan.request_patch or RequestPatch()).apply(request)
            _check([*patched.messages, *plan.keep_messages])
            # The hook may hold on to what it gave, and change it later.
            messages = copied(without_open_calls(patched.messages))
            patched = replace(patched, messages=messages, tools=copied(patched.tools))
            plan = replace(plan, keep_messages=copied(list(plan.keep_messages)))
            if patched.model is not request.model:
                await parts.models.ready(patched.model, PATCHED_MODEL)
        except BaseException as error:  # noqa: BLE001 - a hook may raise anything; its `on_error` says what that does
            fail_or_skip(hook, error, warn)
        else:
            return place, plan, patched
    return None


async def _wish(
    hook: LoopHook, response: HookResponse, request: HookRequest, heard: Callable[[AIMessage], None]
) -> LoopPlan | None:
    said = await call_aside(hook.should_run, response, request, heard=heard)
    if not isinstance(said, tuple) or len(said) != 2:
        raise TypeError(f"should_run returned {said!r}; return a pair (bool, context)")
    wanted, context = said
    if not wanted:
        return None
    plan = await call_aside(hook.build_plan, context, response, request, heard=heard)
    if not isinstance(plan, LoopPlan):
        raise TypeError(f"build_plan returned {plan!r}; return a LoopPlan")
    return plan if plan.response_override is not None or plan.terminate or plan.run_agentic_loop else None


def _check(messages: Sequence[Any]) -> None:
    for message in messages:
        if not isinstance(message, BaseMessage):
            raise TypeError(f"A patch's messages hold {message!r}; give LangChain messages")


def _answered(planned: Planned, override: str | AIMessage) -> Planned:
    """The plan of a reply that is not used: nothing is called, and the answer is given."""
    message = without_calls(override) if isinstance(override, AIMessage) else AIMessage(override)
    # A message that a hook gives twice, or took from the history, would take the place of the one that is there.
    message = copied(message).model_copy(update={"id": None})
    return replace(planned, message=message, calls=[], last=True, action="answer", reasoning="", final=True)


async def _misfit(parts: AgentParts, answer: AIMessage) -> str | None:
    """What keeps an answer from being the structured response; None where nothing does, or none is wanted."""
    if parts.response is None:
        return None
    try:
        await asyncio.to_thread(parts.response.read, answer.text)
    except (ValueError, SlowSchemaError) as error:
        return str(error)
    return None


def _answers(parts: AgentParts, planned: Planned, request: HookRequest) -> bool:
    """Whether the text of a reply that ends the loop is an answer.

    The words of a structured plan are its reasoning, and an answer of a given shape is not made while planning.
    """
    if parts.response is not None or parts.mode(request.settings) == "wave":
        return False
    text = planned.message.text
    return not says_nothing(text)


def _fingerprint(calls: Sequence[Call]) -> str:
    """What is called, whatever the order and the ids; empty for nothing."""
    return "\n".join(sorted(fingerprint(call) for call in calls))
