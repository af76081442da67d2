"""Requests the next wave from the model, in each mode of tool calling, or reads it from the cache of plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from pydantic import BaseModel

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.calls import canonical_calls
from graph_agent.base.settings.config import LoopConfig, Planner
from graph_agent.base.types import NO_USAGE, Call, Usage
from graph_agent.base.usage import LimitMet, LimitMetError, add_usage, usage_of
from graph_agent.core.execution.deps import AgentDeps
from graph_agent.core.planning.reply import Planned, action_of, read_reply
from graph_agent.core.planning.request_state import plan_request
from graph_agent.core.state.call_events import EarlierCalls
from graph_agent.core.state.messages import stream_rest
from graph_agent.core.waves.reply import read_plan
from graph_agent.core.waves.schema import PlanError, PlanningResult, check_wave
from graph_agent.models.client import Mode
from graph_agent.models.finish import cut_off, refusal_text
from graph_agent.models.parsing.calls import plan_end
from graph_agent.models.reply_end import ended_at
from graph_agent.models.sanitize import without_call_blocks
from graph_agent.models.stream_filters import has_no_answer, is_blank, without_sentinel
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.wire.answer_decoder import cut_at_stop
from graph_agent.models.wire.examples import echoed_values
from graph_agent.models.wire.text_form import PLAN_STATUS, as_plans

logger = get_logger("graph_agent.planning.ask")

_NAMESPACE = ("graph_agent", "plan")


async def through_cache(
    deps: AgentDeps,
    settings: LoopConfig,
    request: Sequence[AnyMessage],
    mode: Mode,
    ask: Callable[[], Awaitable[Planned]],
) -> Planned:
    """Return the plan from the agent's cache, or ask for it and store it.

    A cached plan costs no tokens. Its calls have the ids of the original plan, so that results have the same ids.

    An invalid plan is not stored: `ask` raises, or a call has a fault. A reply that was cut off is not stored either.
    If the cache fails, the model is asked.

    Args:
        deps: The agent, for which `caches_plans` is true under the run's configuration.
    """
    assert deps.cache is not None
    assert settings.plan_cache_ttl_s is not None
    key = (_NAMESPACE, _key(deps, settings, request, mode))
    try:
        stored = (await deps.cache.aget([key])).get(key)
        planned = _from_stored(stored) if stored else None
    except Exception as error:  # noqa: BLE001 - a cache may fail in any way, and its entries may be of another version
        logger.warning("The plan cache cannot be read, so that the model is asked: %r", error)
        planned = None
    if planned is not None:
        return planned
    planned = await ask()
    if not any("fault" in call for call in planned.calls) and cut_off(planned.message) is None:
        try:
            await deps.cache.aset({key: (_to_stored(planned), settings.plan_cache_ttl_s)})
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("A plan cannot be kept in the plan cache: %r", error)
    return planned


def _key(deps: AgentDeps, settings: LoopConfig, request: Sequence[AnyMessage], mode: Mode) -> str:
    """A hash of everything the plan depends on: model, options, tools and messages, without ids that no model reads."""
    model = deps.client.model
    content = {
        "model": [type(model).__qualname__, to_json_safe(model._get_ls_params())],
        "mode": mode,
        "options": settings.model_options(),
        "most": settings.max_calls_per_wave,
        "tools": list(deps.toolbox.schemas),
        "choice": deps.client_tool_choice,
        "plan": deps.plan_schema.model_json_schema() if mode == "wave" else None,
        # A structured plan may refer to earlier calls by the ids that the model reads.
        "request": _without_ids(as_plans(request) if mode == "wave" else request),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _without_ids(request: Sequence[BaseMessage]) -> list[Any]:
    """The messages without ids; each call is identified by its index in the conversation."""
    indexes: dict[str, int] = {}
    entries: list[Any] = []
    for message in request:
        bare = without_call_blocks(message) if isinstance(message, AIMessage) else message
        entry: dict[str, Any] = {"type": message.type, "content": to_json_safe(bare.content)}
        if isinstance(message, AIMessage):
            for call in message.tool_calls:
                indexes[call["id"] or ""] = len(indexes)
            entry["calls"] = [
                [indexes[call["id"] or ""], call["name"], to_json_safe(call["args"])] for call in message.tool_calls
            ]
        if isinstance(message, ToolMessage):
            entry["answers"] = [indexes.get(message.tool_call_id), message.status]
        entries.append(entry)
    return entries


_STORED = ("calls", "last", "action", "reasoning", "extra", "answers")


def _to_stored(planned: Planned) -> dict[str, Any]:
    return {"message": message_to_dict(planned.message), **{name: getattr(planned, name) for name in _STORED}}


def _from_stored(stored: dict[str, Any]) -> Planned:
    (message,) = messages_from_dict([stored["message"]])
    assert isinstance(message, AIMessage)
    # LangGraph assigns an id once, when the message is stored.
    fresh = message.model_copy(update={"id": None, "usage_metadata": None})
    fields = {**stored, "message": fresh, "extra": {**stored["extra"], "cached": True}}
    return Planned(usage=NO_USAGE, raw_text=message.text, **fields)


LimitCheck = Callable[[Usage, AIMessage], LimitMet | None]
"""Maps a plan's usage and newest reply to the limit that forbids another request, and its size; None for no limit."""

PLAN_REPAIRS = 1
"""Maximum number of repairs of an invalid structured plan."""

_EMPTY = ('The plan has the status "continue" and no calls.', ' Plan the calls that are needed, or use "done".')


class RefusedError(Exception):
    """The model or its provider refused; `message` is the answer, and `usage` the usage of the request."""

    def __init__(self, message: AIMessage, usage: Usage) -> None:
        super().__init__(message.text)
        self.message = message
        self.usage = usage

    @classmethod
    def from_reply(cls, reply: AIMessage, text: str, usage: Usage) -> Self:
        """Build the error for a reply."""
        # Keep the reply's id, because its tokens may have been streamed.
        message = AIMessage(
            text, id=reply.id, usage_metadata=reply.usage_metadata, response_metadata=reply.response_metadata
        )
        return cls(message, usage)


class RepairRequestError(Exception):
    """A request to repair a plan failed with `error`; `usage` is that of the plan's earlier requests."""

    def __init__(self, error: Exception, usage: Usage) -> None:
        super().__init__(str(error))
        self.error = error
        self.usage = usage


class PlanningError(Exception):
    """A structured plan is invalid after its repair; `usage` is that of all its requests."""

    def __init__(self, fault: PlanError, usage: Usage) -> None:
        super().__init__(fault.faults)
        self.usage = usage


async def ask_for_calls(
    deps: AgentDeps,
    history: Sequence[AnyMessage],
    settings: LoopConfig,
    mode: Mode,
    stream: StreamWatch,
    *,
    quiet: bool = False,
    schema: dict[str, Any] | None = None,
) -> Planned:
    """Ask for calls through the provider's tools, or in text.

    Args:
        stream: Records the text that the reader receives; call `finish_stream` with it and the plan.
        quiet: Stream nothing of the reply, for any configuration.
        schema: JSON schema that the provider enforces on a reply without calls; None if there is none.

    Raises:
        RefusedError: If the model or its provider refuses.
        Exception: The provider's error.
    """
    # A structured response may need a repair, unless the provider enforces the schema.
    quiet = quiet or not deps.streams_while_planning(settings) or (deps.response is not None and schema is None)
    stream.is_quiet = quiet
    request = plan_request(deps, history, settings, mode, "wave")

    async def ask() -> Planned:
        reply = await deps.client.ask("plan", request, settings, mode=mode, quiet=quiet, schema=schema, watch=stream)
        planned = read_reply(
            reply,
            deps.toolbox.names,
            text=mode == "text" and not stream.is_answer,
            prices=settings.prices,
            max_tokens=settings.max_output_tokens,
        )
        if mode == "text":
            planned = without_echoes(planned, deps.toolbox.schemas, request)
        may_answer = deps.may_answer_while_planning(settings) and deps.response is None
        # Calls that a content filter cut off get error results, so that the model can try again.
        may_refuse = not (planned.calls or planned.unread) or cut_off(reply) is None
        if may_refuse and (text := refusal_text(reply, visible=may_answer)) is not None:
            raise await finish_refusal(stream, reply, text, usage_of(reply, settings.prices))
        return planned

    return await (through_cache(deps, settings, request, mode, ask) if deps.caches_plans(settings) else ask())


def without_echoes(planned: Planned, tools: Sequence[dict[str, Any]], request: Sequence[AnyMessage]) -> Planned:
    """Return a plan in which calls with invented texts of the examples have a fault, so that they do not run.

    A text that the conversation holds is not an echo.

    Args:
        tools: The offered tools, from which the examples were built.
        request: The request, without examples.
    """
    texts = [message.text for message in request]

    def checked(call: Call) -> Call:
        echoed = echoed_values(tools, call["name"], call["arguments"]).items()
        invented = [f"{argument}: {value!r}" for argument, value in echoed if not any(value in text for text in texts)]
        if not invented:
            return call
        fault = (
            f"Not run: this is the value of the example ({', '.join(invented)}). Take the value from the conversation, "
            "or ask the user for it."
        )
        return Call({**call, "fault": fault, "skipped": True})

    calls = [checked(call) for call in planned.calls]
    return planned if calls == planned.calls else replace(planned, calls=calls)


async def finish_refusal(stream: StreamWatch, reply: AIMessage, text: str, usage: Usage) -> RefusedError:
    """Stream the rest of a reply that refuses; return the error, whose text continues the streamed one or replaces it.

    Args:
        stream: Records the text that the reader receives.
    """
    await stream.finish(reply.text, reply.text, reply.id)
    refused = RefusedError.from_reply(reply, text, usage)
    if not stream.is_quiet:
        if reply.text and text.startswith(reply.text):
            stream_rest(refused.message, reply.text)
        else:
            # The streamed text, if any, is another message, because it cannot be taken back.
            refused.message.id = None
    return refused


async def finish_stream(stream: StreamWatch, planned: Planned) -> None:
    """Stream the rest of a planning reply; drop a reply that has neither calls nor an answer."""
    shown = planned.message.text if planned.calls or planned.answers else None
    await stream.finish(planned.raw_text, shown, planned.message.id)


async def ask_for_plan(
    deps: AgentDeps,
    history: Sequence[AnyMessage],
    settings: LoopConfig,
    planner: Planner,
    limit: LimitCheck,
    earlier: EarlierCalls,
) -> Planned:
    """Ask for a structured plan; an invalid plan is sent back once with all its faults.

    Args:
        limit: Checked before a plan is sent back.
        earlier: The calls that the plan may refer to.

    Raises:
        PlanningError: If the plan is invalid after its repair.
        RefusedError: If the model or its provider refuses.
        RepairRequestError: If the request to repair a plan fails, or a limit forbids it (`LimitMetError`).
        Exception: The provider's error.
    """
    request = plan_request(deps, history, settings, "wave", planner)

    async def ask() -> Planned:
        return await _ask_with_repair(deps, request, settings, planner, limit, earlier)

    planned = await (through_cache(deps, settings, request, "wave", ask) if deps.caches_plans(settings) else ask())
    planned = without_echoes(planned, deps.toolbox.schemas, request)
    return replace(planned, answers=not has_no_answer(planned.message.text)) if planned.answers else planned


async def _ask_with_repair(
    deps: AgentDeps,
    request: Sequence[AnyMessage],
    settings: LoopConfig,
    planner: Planner,
    limit: LimitCheck,
    earlier: EarlierCalls,
) -> Planned:
    usage, answers, invented = NO_USAGE, deps.may_answer_while_planning(settings), 0
    for attempt in range(1 + PLAN_REPAIRS):
        try:
            reply = await deps.planner.plan(request, settings, offered=deps.toolbox.schemas)
        except Exception as error:
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
            if (met := limit(usage, reply)) is not None:
                raise RepairRequestError(LimitMetError(*met), usage) from fault
            request = [*request, AIMessage(reply.text or _as_text(reply)), HumanMessage(str(fault))]
        else:
            return replace(_planned(reply, plan, calls, usage, planner, answer), invented=invented)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _answer_in(plan: PlanningResult) -> str:
    # A subclass of the user may give the field another type.
    return without_sentinel(plan.answer) if isinstance(plan.answer, str) else ""


def _planned(
    reply: AIMessage, plan: PlanningResult, calls: list[Call], usage: Usage, planner: Planner, answer: str
) -> Planned:
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
    """The arguments of a plan that came as a tool call, for a history without tools."""
    calls: list[Any] = [*reply.tool_calls, *reply.invalid_tool_calls]
    return str(calls[0]["args"]) if calls else ""
