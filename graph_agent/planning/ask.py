"""Asking for the next wave, in whichever mode the session has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from pydantic import BaseModel

from graph_agent._internal.text import plain
from graph_agent.budgets import LimitMet, LimitMetError, usage_of
from graph_agent.calls.messages import canonical_calls
from graph_agent.config import LoopConfig, Planner
from graph_agent.deps import AgentParts
from graph_agent.models.client import Mode
from graph_agent.models.finish_reasons import cut_off
from graph_agent.models.refusals import refusal_in
from graph_agent.models.sentinel import is_blank, says_nothing, without_sentinel
from graph_agent.models.stream_watch import Spoken
from graph_agent.planning.cache import through_cache
from graph_agent.planning.prompt import plan_request
from graph_agent.planning.reply import Planned, action_of, read_reply
from graph_agent.state.usage import add_usage
from graph_agent.types import NO_USAGE, Call, Usage
from graph_agent.waves.reply import read_plan
from graph_agent.waves.schema import PlanError, PlanningResult, check_wave

Limit = Callable[[Usage, AIMessage], LimitMet | None]
"""Of what a plan has used, and its newest reply: the limit that forbids another request, and its size."""

REPAIRS = 1
"""Times a structured plan that cannot be carried out is sent back."""

_EMPTY = 'The plan says "continue" but has no calls. Plan the calls that are needed, or say "done".'


class RefusedError(Exception):
    """The model or its provider will not answer; `message` is the answer then, and `usage` what that took."""

    def __init__(self, message: AIMessage, usage: Usage) -> None:
        super().__init__(message.text)
        self.message = message
        self.usage = usage

    @classmethod
    def of(cls, reply: AIMessage, words: str, usage: Usage | None = None) -> Self:
        """A reply that refuses, and what the user is told of it; `usage` where more than this reply was spent."""
        # Under the reply's id, as its tokens may have been streamed.
        message = AIMessage(
            words, id=reply.id, usage_metadata=reply.usage_metadata, response_metadata=reply.response_metadata
        )
        return cls(message, usage or usage_of(reply))


class RepairRequestError(Exception):
    """A request failed after others of the same plan had been answered: `error`, and the `usage` of those."""

    def __init__(self, error: Exception, usage: Usage) -> None:
        super().__init__(str(error))
        self.error = error
        self.usage = usage


class PlanningError(Exception):
    """The model's plans cannot be carried out, and it has been told so; `usage` is what that took."""

    def __init__(self, fault: PlanError, usage: Usage) -> None:
        super().__init__(str(fault))
        self.usage = usage


async def ask_for_calls(
    parts: AgentParts,
    history: Sequence[AnyMessage],
    settings: LoopConfig,
    mode: Mode,
    watch: Spoken,
    *,
    quiet: bool = False,
    schema: dict[str, Any] | None = None,
) -> Planned:
    """Ask for calls through the provider's tools, or in text.

    Args:
        parts: The agent.
        history: The conversation.
        settings: The run's configuration.
        mode: How calls are asked for.
        watch: Notes what the reader has seen of the reply; `settle` it with the plan.
        quiet: Stream nothing of the reply, whatever the configuration says.
        schema: JSON schema that the provider is to hold a reply without calls to; None for none.

    Raises:
        RefusedError: When the model or its provider will not answer.
        Exception: What the provider raised.
    """
    # An answer of a given shape may have to be asked for again, unless the provider holds the model to the shape.
    quiet = quiet or not parts.streams_while_planning(settings) or (parts.response is not None and schema is None)
    request = plan_request(parts, history, settings, mode, "wave")

    async def ask() -> Planned:
        reply = await parts.client.plan(request, settings, mode=mode, quiet=quiet, schema=schema, watch=watch)
        planned = read_reply(
            reply,
            parts.toolbox.names,
            text=mode == "text",
            prices=settings.prices,
            max_tokens=settings.max_output_tokens,
        )
        heard = parts.may_answer_while_planning(settings) and parts.response is None
        # Calls that a content filter cut off are answered as such, and the model may try again.
        refused = not planned.calls or cut_off(reply) is None
        if refused and (words := refusal_in(reply, heard=heard)) is not None:
            await watch.settle(reply.text, reply.text)
            raise RefusedError.of(reply, words, usage_of(reply, settings.prices))
        return planned

    return await through_cache(parts, settings, request, mode, ask)


async def settle(watch: Spoken, planned: Planned) -> None:
    """Show the rest of a planning reply; nothing of one that has neither calls nor an answer."""
    await watch.settle(planned.raw_text, planned.message.text if planned.calls or planned.answers else None)


async def ask_for_plan(
    parts: AgentParts, history: Sequence[AnyMessage], settings: LoopConfig, planner: Planner, limit: Limit
) -> Planned:
    """Ask for a structured plan; one that cannot be carried out is sent back once, with everything that is wrong.

    Args:
        parts: The agent.
        history: The conversation.
        settings: The run's configuration.
        planner: Which planner is asked.
        limit: Asked before a plan is sent back.

    Raises:
        PlanningError: When the plan is wrong still.
        RefusedError: When the model or its provider will not answer.
        RepairRequestError: When the request to repair a plan failed, or a limit forbids it (`LimitMetError`).
        Exception: What the provider raised.
    """
    request = plan_request(parts, history, settings, "wave", planner)
    planned = await through_cache(
        parts, settings, request, "wave", lambda: _until_sound(parts, request, settings, planner, limit)
    )
    if not planned.answers:
        return planned
    # Middleware has seen the whole plan: now it is shown what the user would read.
    message = await parts.client.guarded(request, planned.message)
    return replace(planned, message=message, answers=not says_nothing(message.text))


async def _until_sound(
    parts: AgentParts,
    request: Sequence[AnyMessage],
    settings: LoopConfig,
    planner: Planner,
    limit: Limit,
) -> Planned:
    usage, answers = NO_USAGE, parts.may_answer_while_planning(settings)
    for attempt in range(1 + REPAIRS):
        try:
            reply = await parts.planner.plan(request, settings, offered=parts.toolbox.schemas)
        except Exception as error:
            if attempt == 0:
                raise
            raise RepairRequestError(error, usage) from error
        usage = add_usage(usage, usage_of(reply, settings.prices))
        if (words := refusal_in(reply, heard=False)) is not None:
            raise RefusedError.of(reply, words, usage)
        try:
            plan = read_plan(reply, parts.plan_schema)
            calls = check_wave(plan, settings.max_calls_per_wave)
            answer = _answer_in(plan) if answers and not calls else ""
            if not calls and not answer and plan.status == "continue" and attempt < REPAIRS:
                raise PlanError(_EMPTY)
        except PlanError as fault:
            if attempt == REPAIRS:
                raise PlanningError(fault, usage) from fault
            if (met := limit(usage, reply)) is not None:
                raise RepairRequestError(LimitMetError(*met), usage) from fault
            request = [*request, AIMessage(reply.text or _as_text(reply)), HumanMessage(str(fault))]
        else:
            return _planned(reply, plan, calls, usage, planner, answer)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _answer_in(plan: PlanningResult) -> str:
    # A class of the user's own may have given the field another type.
    return without_sentinel(plan.answer) if isinstance(plan.answer, str) else ""


def _planned(
    reply: AIMessage, plan: PlanningResult, calls: list[Call], usage: Usage, planner: Planner, answer: str
) -> Planned:
    message = AIMessage(
        answer or plan.reasoning,
        id=reply.id,
        tool_calls=canonical_calls(calls),
        usage_metadata=reply.usage_metadata,
        response_metadata=reply.response_metadata if answer else {},
    )
    slots = plan.slots.model_dump(mode="json") if isinstance(plan.slots, BaseModel) else plain(plan.slots)
    return Planned(
        message,
        calls,
        usage,
        last=plan.status == "done" or planner == "dag" or not calls,
        action=plan.action or action_of(calls),
        reasoning=plan.reasoning,
        extra={"slots": slots, "planner": planner},
        answers=bool(answer),
        empty=not calls and is_blank(reply.text) and not reply.tool_calls,
    )


def _as_text(reply: AIMessage) -> str:
    """A plan that came as a tool call, written out, so that it can be sent back in a history without tools."""
    asked: list[Any] = [*reply.tool_calls, *reply.invalid_tool_calls]
    return str(asked[0]["args"]) if asked else ""
