"""Requests a structured plan of the next wave, in wave mode, and has an invalid one repaired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from pydantic import BaseModel

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.calls import canonical_calls
from graph_agent.base.finish import refusal_text
from graph_agent.base.settings.config import Planner
from graph_agent.base.types import NO_USAGE, Call, Usage
from graph_agent.base.usage import LimitMet, LimitMetError, add_usage, usage_of
from graph_agent.base.waves.schema import PlanError, PlanningResult, check_wave
from graph_agent.core.planning.echoes import without_echoes
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.plan_cache import through_cache
from graph_agent.core.planning.refusals import RefusedError
from graph_agent.core.planning.reply import Planned, action_of
from graph_agent.models.reply_end import ended_at
from graph_agent.models.stream_filters import has_no_answer, is_blank, without_sentinel
from graph_agent.models.wire.answer_decoder import cut_at_stop
from graph_agent.models.wire.parsing.calls import plan_end
from graph_agent.models.wire.parsing.plans import read_plan
from graph_agent.models.wire.text_form import PLAN_STATUS

LimitCheck = Callable[[Usage, AIMessage | None], LimitMet | None]
"""Function of the usage so far and the newest reply; None for the newest of the history.

Returns the limit that forbids another request, with its size; None if none does.
"""

PLAN_REPAIRS = 1
"""How many times an invalid plan is sent back to the model."""

_EMPTY = ('The plan has the status "continue" and no calls.', ' Plan the calls that are needed, or use "done".')
"""The fault of a plan without calls that does not end planning, and its fix, for the model."""


class PlanningError(Exception):
    """Raised if a structured plan is still invalid after its repair. The text of the error lists the faults.

    Args:
        fault: The faults of the last plan.
        usage: Usage of all requests for the plan.
    """

    def __init__(self, fault: PlanError, usage: Usage) -> None:
        super().__init__(fault.faults)
        self.usage = usage


class RepairRequestError(Exception):
    """Raised if the request to repair a plan failed, or a limit forbids it.

    Args:
        error: The error of the request; a `LimitMetError` for a limit.
        usage: Usage of the earlier requests for the plan.
    """

    def __init__(self, error: Exception, usage: Usage) -> None:
        super().__init__(str(error))
        self.error = error
        self.usage = usage


async def ask_for_plan(request: NextRequest, tail: Sequence[AnyMessage], limit: LimitCheck) -> Planned:
    """Ask for a structured plan (a JSON object with all calls of a wave), and return it parsed.

    An invalid plan is sent back once with a list of its faults. The plan is taken from the plan cache if the cache has
    one. A call that repeats an example of the prompt gets a `fault`. A text that holds no answer, such as only the
    sentinel (`No more actions.`), does not count as one.

    Args:
        request: The request, in mode `wave`.
        tail: Messages after the conversation.
        limit: Checked before a plan is sent back.

    Raises:
        PlanningError: The plan is still invalid after its repair.
        RefusedError: The model or its provider refused.
        RepairRequestError: The request to repair a plan failed, or a limit forbids it (`LimitMetError`).
        Exception: The provider's error.
    """
    messages = request.messages(tail)

    async def ask() -> Planned:
        return await _ask_with_repair(request, messages, limit)

    caches = request.deps.caches_plans(request.settings)
    planned = await (through_cache(request, messages, ask) if caches else ask())
    planned = without_echoes(planned, request.deps.toolbox.schemas, messages)
    return replace(planned, answers=not has_no_answer(planned.message.text)) if planned.answers else planned


async def _ask_with_repair(request: NextRequest, messages: Sequence[AnyMessage], limit: LimitCheck) -> Planned:
    """Ask for a plan without the cache, and once more if it is invalid. The errors are those of `ask_for_plan`.

    A plan of status `continue` without calls and answer is invalid at the first attempt only. Text after the plan,
    which the model invented, is removed and counted in `invented`. The answer of a plan with calls is ignored, and so
    is any answer if planning replies are never the answer.

    Args:
        request: The request, in mode `wave`.
        messages: All messages of the request.
        limit: Checked before a plan is sent back.
    """
    deps, settings, earlier = request.deps, request.settings, request.earlier
    usage, answers, invented = NO_USAGE, deps.may_answer_while_planning(settings), 0
    for attempt in range(1 + PLAN_REPAIRS):
        try:
            reply = await deps.planner.plan(messages, settings, offered=deps.toolbox.schemas)
        except Exception as error:
            # Nothing is lost yet, so the provider's error is handled as for any request.
            if attempt == 0:
                raise
            raise RepairRequestError(error, usage) from error
        usage = add_usage(usage, usage_of(reply, settings.prices))
        if (text := refusal_text(reply, visible=False)) is not None:
            raise RefusedError.from_reply(reply, text, usage)
        reply, dropped = ended_at(reply, plan_end(reply.text))
        invented += dropped
        try:
            plan = read_plan(reply, deps.plan_schema)
            calls = check_wave(plan, settings.max_calls_per_wave, earlier.newest, earlier.ended)
            stop = deps.planner.stop_sequences(settings)
            answer = cut_at_stop(_answer_in(plan), stop) if answers and not calls else ""
            if not calls and not answer and plan.status == "continue" and attempt < PLAN_REPAIRS:
                raise PlanError(*_EMPTY)
        except PlanError as fault:
            if attempt == PLAN_REPAIRS:
                raise PlanningError(fault, usage) from fault
            # A repair costs as much as a plan.
            if (met := limit(usage, reply)) is not None:
                raise RepairRequestError(LimitMetError(*met), usage) from fault
            messages = [*messages, AIMessage(reply.text or _as_text(reply)), HumanMessage(str(fault))]
        else:
            return replace(planned_of(reply, plan, calls, usage, request.planner, answer), invented=invented)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _answer_in(plan: PlanningResult) -> str:
    """Return the plan's field `answer` without the sentinel `No more actions.`; empty if it is not text."""
    # A subclass of the user may give the field another type.
    return without_sentinel(plan.answer) if isinstance(plan.answer, str) else ""


def planned_of(
    reply: AIMessage, plan: PlanningResult, calls: list[Call], usage: Usage, planner: Planner, answer: str
) -> Planned:
    """Build the result of a valid structured plan.

    Its message has the answer as text and the reply's metadata, or only the reasoning if there is none. Planning ends
    after a plan of status `done`, a plan without calls, or any plan of the planner `dag`. The plan is `empty` if it has
    no calls and the reply has neither text nor calls.

    Args:
        reply: The reply that holds the plan.
        plan: The parsed plan.
        calls: The plan's calls, each after those it needs.
        usage: Usage of all requests for the plan.
        planner: The session's planner.
        answer: The answer of a plan without calls; empty if it has none.
    """
    last = plan.status == "done" or planner == "dag" or not calls
    message = AIMessage(
        answer or plan.reasoning,
        id=reply.id,
        tool_calls=canonical_calls(calls),
        usage_metadata=reply.usage_metadata,
        response_metadata=reply.response_metadata if answer else {PLAN_STATUS: "done"} if calls and last else {},
    )
    slots = plan.slots.model_dump(mode="json") if isinstance(plan.slots, BaseModel) else to_json_safe(plan.slots)
    return Planned(
        message,
        calls,
        usage,
        last=last,
        action=plan.action or action_of(calls),
        reasoning=plan.reasoning,
        extra={"slots": slots, "planner": planner},
        answers=bool(answer),
        empty=not calls and is_blank(reply.text) and not reply.tool_calls,
    )


def _as_text(reply: AIMessage) -> str:
    """Return the arguments of the first tool call of a reply, as text; empty if it has no call.

    A plan may come as a tool call, but the history of the repair request has no tools.
    """
    calls: list[Any] = [*reply.tool_calls, *reply.invalid_tool_calls]
    return str(calls[0]["args"]) if calls else ""
