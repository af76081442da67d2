"""Sends the request for a plan before its time, with one call of the wave marked as pending, and reads the reply.

While the reply streams, its first tokens already show whether it may become the plan: a structured plan begins with its
status, and a call of it may need the pending one.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage, ToolMessage
from pydantic import Field, create_model

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.finish import refusal_text
from graph_agent.base.history.call_events import EarlierCalls
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.types import NO_USAGE, Call, Usage, plan_id_of
from graph_agent.base.usage import usage_of
from graph_agent.base.waves.references import BadReferenceError, referenced_ids
from graph_agent.base.waves.schema import PlanError, PlanningResult, check_wave
from graph_agent.core.execution.deps import Task
from graph_agent.core.execution.overlap.streamed_calls import StreamedCalls
from graph_agent.core.planning.echoes import without_echoes
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.plan_cache import through_cache
from graph_agent.core.planning.prepared_history import PreparedHistory
from graph_agent.core.planning.recovery import fitted
from graph_agent.core.planning.refusals import RefusedError
from graph_agent.core.planning.reply import Planned
from graph_agent.core.planning.structured_plan import planned_of
from graph_agent.core.planning.summary import use_summary
from graph_agent.models.chunk_listener import chunk_listener
from graph_agent.models.message_gate import message_text
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.wire.parsing.calls import parse_tool_calls
from graph_agent.models.wire.parsing.plans import read_plan

logger = get_logger("graph_agent.overlap")

AskForCalls = Callable[[NextRequest, Sequence[AnyMessage], StreamWatch], Awaitable[Planned]]
"""Sends a request in native or text mode, with messages after its conversation, and returns the plan of the reply.
Raises `RefusedError`, and the provider's error."""

_PENDING = (
    "PENDING: this call still runs, and its result is not known yet. Plan only calls that are needed whatever it "
    "returns, and that neither refer to it nor need it. If the next plan depends on it, or there is no such call, {}."
)
"""Stands for the result of the pending call; `{}` takes how the model waits for it."""
_HOW_TO_WAIT = {"wave": 'send the status "wait" and no calls'}
_REPLY_WAIT = "call nothing, and reply only WAIT"
_WAIT = (
    "continue: plan again after these calls; done: these calls, if any, are the last; wait: the pending result is "
    "needed first."
)
_STATUS = re.compile(r'^[^{]*\{\s*"status"\s*:\s*"(\w+)"')
_WAITS = re.compile(r"^\W*(WAIT)\b", re.IGNORECASE)
_HEAD_CHARS = 2_000
"""Characters of a reply in which its status is looked for while it streams."""


class UselessReplyError(Exception):
    """Raised for a reply that cannot become the plan: it waits, ends planning, needs the pending call or is invalid."""


class WaveResult(NamedTuple):
    """The result of a call of the wave, which the history does not hold yet."""

    message: ToolMessage
    events: Sequence[StoredEvent]


class ArrivingReply:
    """Shows whether the reply that arrives may become the plan; implements `CallReceiver`.

    Args:
        pending: Plan id of the pending call.
    """

    def __init__(self, pending: str) -> None:
        self._pending = pending
        self.is_promising = False
        """Whether the reply is a plan that goes on or has native calls, and no call so far needs the pending one."""
        self.is_useless = False
        """Whether it cannot become the plan."""
        self.has_turned = asyncio.Event()
        """Set while one of these is true."""

    def begin(self) -> None:
        """Begin a new reply."""
        self._turn(promising=False, useless=False)

    def receive(self, call: Call) -> None:
        """Receive a native call, which makes the reply promising, unless it is useless."""
        self._turn(promising=not self.is_useless, useless=self.is_useless)

    def receive_planned(self, call: Call) -> None:
        """Receive a call of a structured plan. One that needs the pending call, or has an invalid reference, makes the
        reply useless.
        """
        try:
            needs = self._pending in {*call.get("needs", ()), *referenced_ids(call["arguments"])}
        except BadReferenceError:
            needs = True
        # The call alone promises nothing: a status that ends planning may follow.
        self._turn(promising=self.is_promising and not needs, useless=self.is_useless or needs)

    def receive_status(self, status: str) -> None:
        """Receive the status with which a structured plan begins, or `wait` of another reply.

        `continue` makes the reply promising; any other status makes it useless.
        """
        useless = self.is_useless or status != "continue"
        self._turn(promising=not useless, useless=useless)

    def _turn(self, *, promising: bool, useless: bool) -> None:
        """Set the two flags, and set or clear `has_turned`."""
        self.is_promising, self.is_useless = promising, useless
        if promising or useless:
            self.has_turned.set()
        else:
            self.has_turned.clear()


class _StatusReader(StreamedCalls):
    """Reads the calls of a reply, and the status if the reply begins with it."""

    def __init__(self, arriving: ArrivingReply, mode: Any, tools: Sequence[str]) -> None:
        self._arriving = arriving
        self._is_plan = mode == "wave"
        super().__init__(arriving, mode, partial(parse_tool_calls, tools=[*tools]))

    def begin(self) -> None:
        super().begin()
        self._head: str | None = ""

    def receive(self, message: BaseMessage) -> None:
        super().receive(message)
        if self._head is None or not isinstance(message, AIMessageChunk):
            return
        pieces = [piece.get("args") or "" for piece in message.tool_call_chunks] if self._is_plan else []
        self._head += message_text(message) + "".join(pieces)
        found = (_STATUS if self._is_plan else _WAITS).search(self._head)
        if found is not None:
            self._arriving.receive_status(found[1].lower())
        if found is not None or len(self._head) > _HEAD_CHARS:
            self._head = None


class PredictedRequest:
    """One request for a plan with the results of a wave but one.

    Args:
        task: The task of the call whose result was the last but one.
        pending: The call that still runs.
        results: Call id → result of the other calls.
        ask_for_calls: Sends a request that is not for a structured plan.
    """

    def __init__(
        self, task: Task, pending: Call, results: Mapping[str, WaveResult], ask_for_calls: AskForCalls
    ) -> None:
        self.task, self.pending, self.results = task, pending, results
        self._ask_for_calls = ask_for_calls
        self.arriving = ArrivingReply(plan_id_of(pending))
        self.usage: Usage = NO_USAGE
        """Usage of the reply; none before it has arrived."""

    async def send(self) -> tuple[NextRequest, Planned]:
        """Send the request, and return it with the plan of the reply. The calls do not begin.

        While the reply streams, `arriving` shows whether it may become the plan; `usage` is set when the reply is
        complete.

        Raises:
            UselessReplyError: The reply cannot become the plan.
            Exception: The provider's error.
        """
        request = await self._request()
        tail = self._tail(request)
        names = request.deps.toolbox.names
        chunk_listener.set(_StatusReader(self.arriving, request.mode, names))
        planned = await (self._plan(request, tail) if request.mode == "wave" else self._calls(request, tail))
        return request, planned

    async def _request(self) -> NextRequest:
        """Return the request before the results of the wave are added: with the current summary, and shortened if a
        longer one was refused in this input.
        """
        task, stored = self.task, self.task.state.get("events", ())
        request = await NextRequest.of(task, task.settings, task.state["messages"], task.loop)
        # The objects of the run belong to its requests, whose history does not hold these results.
        request = request.override(prepared=PreparedHistory(), earlier=EarlierCalls())
        new = [entry for each in self.results.values() for entry in each.events]
        request.earlier.follow(stored, new, begun=True)
        return fitted(use_summary(request, stored)).request

    def _tail(self, request: NextRequest) -> list[AnyMessage]:
        """Return the results of the wave in the order of its calls, with a notice in place of the pending one that
        describes how to wait for it.
        """
        text = _PENDING.format(_HOW_TO_WAIT.get(request.mode, _REPLY_WAIT))
        pending = ToolMessage(json.dumps(text), tool_call_id=self.pending["id"], name=self.pending["name"])
        order = [call["id"] for call in self.task.state["ready"]]
        return [self.results[id_].message if id_ in self.results else pending for id_ in order]

    async def _plan(self, request: NextRequest, tail: Sequence[AnyMessage]) -> Planned:
        """Ask for a structured plan, whose schema has the status `wait`, and set `usage`; the plan cache is used if the
        agent has one.

        Calls that copy a value of the prompt's examples get a `fault`. Raises `UselessReplyError` if the reply cannot
        become the plan (see `_read`), and the model's error.
        """
        deps, settings, messages = request.deps, request.settings, request.messages(tail)
        schema = waiting_schema(deps.plan_schema)
        planner = deps.planner.with_schema(schema.model_json_schema())
        # The status first, not the calls: it shows soonest whether the reply may become the plan.
        asked = settings.model_copy(update={"dispatch": "whole"})

        async def ask() -> Planned:
            reply = await planner.plan(messages, asked, offered=deps.toolbox.schemas)
            self.usage = usage_of(reply, settings.prices)
            return self._read(request, reply, schema)

        planned = await (through_cache(request, messages, ask) if deps.caches_plans(settings) else ask())
        return without_echoes(planned, deps.toolbox.schemas, messages)

    def _read(self, request: NextRequest, reply: AIMessage, schema: type[PlanningResult]) -> Planned:
        """Return the structured plan in a reply. An invalid plan is logged.

        Raises `UselessReplyError` for a refusal, an invalid plan, a plan that ends planning or has no calls, and one
        that needs the pending result.
        """
        earlier, pending = request.earlier, plan_id_of(self.pending)
        if refusal_text(reply, visible=False) is not None:
            raise UselessReplyError
        try:
            plan = read_plan(reply, schema)
            calls = check_wave(plan, request.settings.max_calls_per_wave, earlier.newest, earlier.ended)
        except PlanError as fault:
            logger.info("A predicted plan is invalid: %s", fault.faults)
            raise UselessReplyError from fault
        if plan.status != "continue" or not calls or any(pending in call.get("needs", ()) for call in calls):
            raise UselessReplyError
        return planned_of(reply, plan, calls, self.usage, request.planner, "")

    async def _calls(self, request: NextRequest, tail: Sequence[AnyMessage]) -> Planned:
        """Ask for native calls, or calls in text, and set `usage`, also for a refusal.

        Raises `UselessReplyError` for a refusal, a reply without calls, and a reply whose calls cannot all be used.
        """
        try:
            planned = await self._ask_for_calls(request, tail, StreamWatch())
        except RefusedError as refused:
            self.usage = refused.usage
            raise UselessReplyError from refused
        self.usage = planned.usage
        if not planned.calls or planned.unread or planned.invented or any("fault" in call for call in planned.calls):
            raise UselessReplyError
        return planned


@functools.lru_cache(maxsize=16)
def waiting_schema(schema: type[PlanningResult]) -> type[PlanningResult]:
    """Return the class of predicted plans, which may have the status `wait`."""
    status: Any = (Literal["continue", "done", "wait"], Field(description=_WAIT))
    return cast("type[PlanningResult]", create_model(schema.__name__, __base__=schema, status=status))
