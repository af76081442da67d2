"""The hook loop: show a reply to the hooks in order, and rerun, replace or end as they request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage

from graph_agent.budgets import LimitMet, LimitMetError
from graph_agent.calls import fingerprint
from graph_agent.deps import AgentDeps
from graph_agent.errors import SlowSchemaError
from graph_agent.hooks.copies import LazyRequestCopy, copied
from graph_agent.hooks.faults import fail_or_skip
from graph_agent.hooks.protocol import HookRequest, HookResponse, LoopHook, LoopPlan, RequestPatch, sees_answers
from graph_agent.models.cleaning import without_calls
from graph_agent.models.side_calls import run_side_call
from graph_agent.models.visibility import has_no_answer
from graph_agent.planning.hook_messages import without_open_calls
from graph_agent.planning.reply import Planned
from graph_agent.state.schema import HookWork
from graph_agent.types import Call

PATCHED_MODEL = "RequestPatch.model"
"""The field named in the error for a patch's model that cannot be built."""

Rerun = Callable[[HookRequest, Sequence[AnyMessage]], Awaitable[tuple[Planned, HookRequest]]]
"""Sends a patched request and keeps messages for later requests; returns the reply and the request as answered."""


async def run_hook_loop(
    deps: AgentDeps,
    planned: Planned,
    request: HookRequest,
    *,
    work: HookWork,
    limit: Callable[[Planned], LimitMet | None],
    rerun: Rerun,
    warn: Callable[[str], None],
    count_reply: Callable[[AIMessage], None],
) -> Planned:
    """Show a reply to the hooks in order; the reply of a rerun is shown from the first hook again.

    A rerun is refused, with a warning, if the input has had `max_agentic_loops` reruns, or if the reply repeats calls
    that were rerun before in this input. The hook that requested it gets no more reruns in this input and is shown only
    replies without calls, which may be the answer; the current reply goes on to the next hook. A rerun that a limit
    forbids ends the input at that limit, and the current reply is not used; an answer that ends an input is used.

    Args:
        deps: The agent.
        planned: The reply.
        request: The request of the reply.
        work: The record of the input's hook work; updated in place.
        limit: Returns the limit that forbids another model call after a reply, and its size; None if there is none.
        rerun: Sends a patched request.
        warn: Receives warnings for the user.
        count_reply: Receives each reply of a model that a hook calls itself.

    Raises:
        HookError: If a hook with `on_error = "fail"` fails.
        LimitMetError: If a limit forbids a rerun.
        Exception: The error of `rerun`.
    """
    first = 0
    while True:
        # A hook without reruns left may still replace an answer.
        indexes = [index for index in range(first, len(deps.hooks)) if index not in work["ended"] or not planned.calls]
        found = await _first_plan(deps, indexes, planned, request, warn, count_reply)
        if found is None:
            return planned
        index, plan, patched = found
        name = type(deps.hooks[index]).__name__
        if plan.response_override is not None:
            override = _override(planned, plan.response_override)
            if (fault := await _format_fault(deps, override.message)) is not None:
                warn(f"The answer of the hook {name} does not fit the response format: {fault}")
            return override
        if plan.terminate:
            return replace(planned, ended=True, final=_is_answer(deps, planned, request))
        calls = _fingerprint(planned.calls)
        most = request.settings.max_agentic_loops
        if index in work["ended"] or calls in work["calls"]:
            refused = "the model makes the same calls again"
        elif (reruns := work["reruns"]) >= most:
            refused = f"the model was asked again {reruns} times, which is all that max_agentic_loops allows"
        elif (met := limit(planned)) is not None and request.phase == "answer":
            # There is no other answer to end the input with.
            refused = "a limit forbids it"
        elif met is not None:
            warn(
                f"The hook {name} wants the model asked again, but a limit forbids it; its last reply is not followed."
            )
            work["ended"].append(index)
            raise LimitMetError(*met)
        else:
            work["reruns"] += 1
            work["calls"] += [calls] if calls else []
            first = 0
            request = replace(patched, depth=request.depth + 1)
            planned, request = await rerun(request, plan.keep_messages)
            planned = replace(planned, extra={**planned.extra, "reruns": request.depth})
            continue
        if index not in work["ended"]:
            warn(f"The hook {name} wants the model asked again, but {refused}; its last reply counts.")
            work["ended"].append(index)
        first = index + 1


async def _first_plan(
    deps: AgentDeps,
    indexes: Sequence[int],
    planned: Planned,
    request: HookRequest,
    warn: Callable[[str], None],
    count_reply: Callable[[AIMessage], None],
) -> tuple[int, LoopPlan, HookRequest] | None:
    """The first of these hooks that requests a change: its index, plan and patched request; None if none does."""
    for index in indexes:
        hook = deps.hooks[index]
        if not planned.calls and not sees_answers(hook):
            continue
        response = HookResponse(copied(planned.message), copied(planned.calls), copied(planned.usage))
        lent = LazyRequestCopy.of(request)
        try:
            plan = await _build_plan(hook, response, lent, count_reply)
            if plan is None:
                continue
            if not isinstance(plan.response_override, str | AIMessage | None):
                raise TypeError(f"response_override is {plan.response_override!r}; give text or an AIMessage")
            patched = (plan.request_patch or RequestPatch()).apply(request)
            _check_messages([*patched.messages, *plan.keep_messages])
            # Copied, because the hook may change its own objects later.
            messages = copied(without_open_calls(patched.messages))
            patched = replace(patched, messages=messages, tools=copied(patched.tools))
            plan = replace(plan, keep_messages=copied(list(plan.keep_messages)))
            if patched.model is not request.model:
                await deps.models.ready(patched.model, PATCHED_MODEL)
        except BaseException as error:  # noqa: BLE001 - a hook may raise anything; its `on_error` selects the response
            fail_or_skip(hook, error, warn)
        else:
            return index, plan, patched
    return None


async def _build_plan(
    hook: LoopHook, response: HookResponse, request: HookRequest, count_reply: Callable[[AIMessage], None]
) -> LoopPlan | None:
    """Call a hook; None if it requests no change."""
    returned = await run_side_call(hook.should_run, response, request, on_reply=count_reply)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"should_run returned {returned!r}; return a pair (bool, context)")
    wanted, context = returned
    if not wanted:
        return None
    plan = await run_side_call(hook.build_plan, context, response, request, on_reply=count_reply)
    if not isinstance(plan, LoopPlan):
        raise TypeError(f"build_plan returned {plan!r}; return a LoopPlan")
    return plan if plan.response_override is not None or plan.terminate or plan.run_agentic_loop else None


def _check_messages(messages: Sequence[Any]) -> None:
    for message in messages:
        if not isinstance(message, BaseMessage):
            raise TypeError(f"A patch's messages hold {message!r}; give LangChain messages")


def _override(planned: Planned, override: str | AIMessage) -> Planned:
    """The plan that answers with a hook's override: no call is run."""
    message = without_calls(override) if isinstance(override, AIMessage) else AIMessage(override)
    # A message that a hook returns twice, or took from the history, would replace the stored one by its id.
    message = copied(message).model_copy(update={"id": None})
    return replace(planned, message=message, calls=[], last=True, action="answer", reasoning="", final=True)


async def _format_fault(deps: AgentDeps, answer: AIMessage) -> str | None:
    """Why an answer is no valid structured response; None if it is valid or none is required."""
    if deps.response is None:
        return None
    try:
        await asyncio.to_thread(deps.response.read, answer.text)
    except (ValueError, SlowSchemaError) as error:
        return str(error)
    return None


def _is_answer(deps: AgentDeps, planned: Planned, request: HookRequest) -> bool:
    """Whether the text of a reply that ends the loop is an answer.

    The text of a structured plan is its reasoning, and a structured response is not composed while planning.
    """
    if deps.response is not None or deps.mode(request.settings) == "wave":
        return False
    return not has_no_answer(planned.message.text)


def _fingerprint(calls: Sequence[Call]) -> str:
    """One key for a set of calls, independent of order and ids; empty for no calls."""
    return "\n".join(sorted(fingerprint(call) for call in calls))
