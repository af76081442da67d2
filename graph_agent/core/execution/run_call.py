"""Executes one call of a wave: at most once if it may write, within slots and deadline, through the middleware."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolCall
from langchain_core.tools import BaseTool, ToolException
from langgraph.errors import GraphBubbleUp

from graph_agent.base._compat import count_resume_values, read_state
from graph_agent.base._internal import telemetry
from graph_agent.base._internal.failure_log import get_logger, log_failure, log_fields, log_traceback, log_user_error
from graph_agent.base._internal.sync_bridge import TimeLimitError, await_within
from graph_agent.base.calls import current_call, is_delegation
from graph_agent.base.errors import AbandonedCallsError, GraphAgentError, InputError, ToolArgumentsError
from graph_agent.base.types import NO_USAGE, Call, Usage
from graph_agent.base.usage import LimitMetError, add_usage, budget_met, has_budget, usage_of
from graph_agent.core.deps import Task, spent, work_left_s
from graph_agent.core.execution.approvals import answered_approvals, held_calls, replacement_fault
from graph_agent.core.execution.ledger import (
    checkpoint_of,
    finished_before,
    finished_writes,
    is_own_field,
    may_have_started,
    may_start,
    note_refused,
    note_started,
)
from graph_agent.core.execution.open_calls import FIELDS, UNKNOWN_OUTCOME, current_wave, result_without_output
from graph_agent.core.runs.own_checkpoint import load
from graph_agent.core.runs.run import WorkStoppedError
from graph_agent.core.state.call_events import CallResult, announce, answer_event, fault_result, since_plan
from graph_agent.core.state.custom_state import CustomState
from graph_agent.core.state.events import NOT_RUN, ResultStatus, StoredEvent, seconds_since
from graph_agent.core.tools.client import call_client_tool
from graph_agent.core.tools.invoke import (
    CommandScope,
    ReturnValue,
    after_attempts,
    belongs_to_run,
    check_finite,
    read_output,
    recorded_return_value,
)
from graph_agent.core.tools.output import cut_short, fault, is_argument_error, may_have_run
from graph_agent.core.tools.toolbox import Toolbox
from graph_agent.models.client import ModelClient
from graph_agent.models.sampling import current_sampler

T = TypeVar("T")
logger = get_logger("graph_agent.execution.run_call")
_FIELDS = frozenset({"id", "name", "arguments"})
UpdatePairs = list[tuple[str, Any]]
"""A node's update, as pairs of field and value."""


@dataclass(frozen=True, slots=True)
class CallToRun:
    """A call after edits by a person, and the events that its task adds to the history."""

    call: Call
    events: list[StoredEvent]
    """The call's event if the history has none, or one with other arguments; else empty."""


async def call_to_run(task: Task, call: Call) -> CallToRun | UpdatePairs:
    """Return the call that a task runs: the one it received, unless a person has edited it since planning.

    Returns:
        The call; or the task's update if there is nothing to run, because the call has a result or was removed.

    Raises:
        InputError: If the task was created by another graph, whose thread this agent continues.
    """
    if not isinstance(call, dict) or not call.keys() >= _FIELDS:
        raise InputError(
            "This session was stopped in the middle of calls that another graph had planned, which this agent cannot "
            "resume. Send new input: the open calls are then settled as unknown, and the conversation continues."
        )
    log_fields.set({**log_fields.get({}), "call_id": call["id"]})
    task.run.calls.started_tasks.add(call["id"])
    if call["id"] in task.run.calls.planned:
        return CallToRun(call, [])
    state = read_state(task.config, FIELDS)
    wave = current_wave(state)
    current = wave.ready.get(call["id"])
    if current in state.get("ready", ()) and (kept := await finished_before(task, call)) is not None:
        return kept
    if (answer := wave.answered.get(call["id"])) is not None:
        return [("events", [answer_event(*answer, task.step)]), ("wave_finished", True)]
    events = since_plan(state.get("events", ()))
    if (
        current is not None
        and is_delegation(current["name"]) == is_delegation(call["name"])
        and not await _is_held(task, current, events)
    ):
        return CallToRun(current, announce([current], events, task.step, task.runtime.stream_writer))
    is_open, toolbox = any(other["id"] == call["id"] for other in wave.open), task.deps.toolbox
    writes = toolbox.writes(call["name"]) and not toolbox.repeatable(call["name"])
    if is_open and writes and not await may_start(task, call):
        message, result = result_without_output(call["id"], call["name"], "unknown", UNKNOWN_OUTCOME, task.step)
        return [("messages", [message]), ("events", [result]), ("wave_finished", True)]
    # `plan` handles the rest of the call after the wave.
    return [("wave_finished", True)]


async def _is_held(task: Task, call: Call, events: list[StoredEvent]) -> bool:
    """Whether a call of an earlier run must wait for a person, or for a policy that the run's stop has ended."""
    if task.deps.config.approve is None:
        return False
    try:
        policy = held_calls([call], events, task.deps, task.settings)
        return bool(await task.run.stop.stoppable(policy, "An approval policy"))
    except WorkStoppedError:
        return True


class CallTimer:
    """Measures a call on the monotonic clock, from the start of its task; its block ends an observed call once."""

    def __init__(self) -> None:
        self._created = time.monotonic()
        self._started: float | None = None
        self._ended: float | None = None
        self._end: Callable[..., None] | None = None
        """Ends the observed call; None before its begin and after its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_observed("interrupted")

    def report(self, name: str, status: str, content: Any) -> None:
        """Report the end of the call to the log and to the observer."""
        self._end_observed(status, content)
        if self._started is None or self._ended is None:
            logger.info("The call of %s did not run: %s", name, status)
        else:
            logger.info("The call of %s took %.3f s: %s", name, self._ended - self._started, status)

    @contextmanager
    def running(self, call: Call) -> Iterator[None]:
        """Measure the call, which runs inside the block; the time until now was its wait."""
        self._started = time.monotonic()
        observer, observed = telemetry.observer, None
        if observer is not None:
            observed = observer.begin_call(call)
            self._end = partial(observer.end_call, observed)
        try:
            yield
        finally:
            self._ended = time.monotonic()
            if observer is not None:
                observer.leave_call(observed)

    def _end_observed(self, status: str, content: Any = None) -> None:
        end, self._end = self._end, None
        if end is not None:
            end(status, content)

    def fields(self, task: Task, call: Call, status: ResultStatus) -> dict[str, float]:
        """Return the fields that the event of its result has; empty for a call that did not run."""
        # Middleware and checks of arguments take place within the time of a call that is then prevented.
        if self._started is None or status in NOT_RUN:
            return {}
        # A call that suppresses its cancellation is left to itself, and has no end.
        seconds = (self._ended or time.monotonic()) - self._started
        times = {"queued_s": round(self._started - self._created, 6), "duration_s": round(seconds, 6)}
        if count_resume_values(task.config):
            events = since_plan(read_state(task.config, ["events"]).get("events", ()))
            asked = [entry["ts"] for entry in events if call["id"] in (entry.get("id"), entry.get("delegation"))]
            # Of the wall clock, because another process may have asked.
            times["waited_s"] = max(0.0, round(seconds_since(asked[-1]) - times["duration_s"], 6)) if asked else 0.0
        return times


async def run_call(task: Task, call: Call, timer: CallTimer) -> tuple[CallResult, list[StoredEvent]]:
    """Run a tool call through the middleware, or refuse it; an error is a result too.

    Returns:
        The result, and the events of the decisions that middleware asked a person for.
    """
    if "fault" in call:
        return await _with_accepted_writes(task, call, fault_result(call)), []
    approvals: list[StoredEvent] = []
    contained = task.deps.wrap_tool_call is None and not task.records and _timeout_s(task, task.deps.toolbox, call)
    output = await run_in_slot(
        task, call, timer, lambda: _through_middleware(task, call, approvals), contained=bool(contained)
    )
    return await _with_accepted_writes(task, call, output), approvals


async def _through_middleware(task: Task, call: Call, approvals: list[StoredEvent]) -> CallResult:
    """Run a call through the middleware; `approvals` receives the events of the decisions that it asked for."""
    deps, ran = task.deps, False
    if deps.wrap_tool_call is None:
        return await run_tool(task, deps.toolbox, call)

    async def run(asked: Call, tool: BaseTool | None = None) -> CallResult:
        nonlocal ran
        toolbox = deps.toolbox if tool is None else deps.toolbox.with_tool(asked["name"], tool)
        if tool is not None and (tool.metadata or {}).get("approve"):
            why = "middleware runs it, and its mark `approve` holds for the agent's own tools only"
            refused = f"{asked['name']} did not run: {why}. Answer without it."
            return CallResult(refused, "denied", stored={"decided_by": "approve"})
        if asked is not call and (fault := await replacement_fault(task, call, asked)) is not None:
            return CallResult(fault, "denied", stored={"decided_by": "approve"})
        ran = True
        return await run_tool(task, toolbox, asked)

    try:
        output = await deps.wrap_tool_call(call, task.config, task.runtime, run)
    except GraphBubbleUp:
        raise
    except Exception:  # Re-raised: middleware may raise anything, and a refused call must not stay open in the ledger.
        if not ran:
            await note_refused(task)
        raise
    planned: ToolCall = {"id": call["id"], "name": call["name"], "args": call["arguments"]}
    approvals += await answered_approvals(task, [planned], "HumanInTheLoopMiddleware")
    return output


async def run_tool(task: Task, toolbox: Toolbox, call: Call) -> CallResult:
    """Run one tool call; a failure becomes an error output, so that other calls of the wave continue.

    Args:
        toolbox: The tools, with one of a middleware's own if it runs the call.

    Raises:
        GraphBubbleUp: If the tool interrupts the graph to ask a person.
    """
    if (refused := toolbox.refused(call)) is not None:
        return fault_result(refused)
    if call["name"] in toolbox.client_tools:
        return call_client_tool(call)
    tool = toolbox.tools[call["name"]]
    marks, retry, attempt = toolbox.marks(tool.name), toolbox.retries[tool.name], 1
    status: ResultStatus = "error"
    timeout_s = _timeout_s(task, toolbox, call)
    # In a thread, because a schema of others may take long to check.
    if (check := toolbox.schema_checks.get(tool.name)) and (text := await asyncio.to_thread(check, call["arguments"])):
        return CallResult(text, "invalid")
    while True:
        given = ReturnValue()
        try:
            check_finite(tool, call["arguments"])
            arguments = toolbox.inject(tool, call, task.config, task.runtime)
            with recorded_return_value(given):
                work = toolbox.invoker(tool.name)(arguments, call["id"], task.config)
                returned = await await_within(work, timeout_s, f"The tool {tool.name!r}")
            output = read_output(returned, call, given, scope=CommandScope.of(toolbox.own, task.config))
            handled = tool.handle_validation_error and not given.has_begun and output.status == "error"
            return replace(output, status="invalid") if handled else output
        except BaseException as error:
            if belongs_to_run(error):
                raise
            cut_off = may_have_run(error)
            unfit = not given.has_begun and is_argument_error(tool, error)
            if cut_off and not isinstance(error, TimeLimitError) and toolbox.writes(tool.name):
                # Kept if another attempt follows, whose result does not cover this one. A timeout has the status
                # `error` instead, and its text states that the effect is unknown.
                status = "unknown"
            if unfit or not retry.again(error, attempt, cut_off=cut_off, marks=marks):
                text = fault(tool, error, writes=toolbox.writes(tool.name), unfit=unfit)
                if not unfit:
                    what = f"The tool {tool.name!r}"
                    if isinstance(error, TimeLimitError | ToolException | GraphAgentError):
                        log_failure(logger, what, error, level=logging.WARNING)
                    else:
                        log_user_error(logger, what, error)
                if attempt == 1 and not given.has_begun:
                    if unfit or isinstance(error, ToolArgumentsError):
                        status = "invalid"
                    elif isinstance(error, AbandonedCallsError):
                        status = "skipped"
                return CallResult(after_attempts(text, attempt), status, raised=None if unfit else error)
            log_traceback(logger, f"Attempt {attempt} of the tool {tool.name!r}", error)
        await asyncio.sleep(retry.wait_s(attempt))
        attempt += 1


def _timeout_s(task: Task, toolbox: Toolbox, call: Call) -> float | None:
    return toolbox.marks(call["name"]).get("timeout_s", task.settings.tool_timeout_s)


class TaskSampler:
    """The current model of a task's run; see `Sampler`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.usage: Usage = NO_USAGE
        """Usage of the requests so far."""

    async def sample(
        self,
        request: Sequence[BaseMessage],
        *,
        max_tokens: int,
        temperature: float | None = None,
        stop: Sequence[str] | None = None,
    ) -> AIMessage:
        """Send one request; see `Sampler`."""
        task, settings = self._task, self._task.settings
        if has_budget(settings):
            state = read_state(task.config, ["usage", "messages"])
            usage = add_usage(state.get("usage"), self.usage)
            if (
                met := budget_met(spent(task.run, task.loop, usage, state["messages"], settings), settings)
            ) is not None:
                raise LimitMetError(*met)
        limit = min(max_tokens, settings.max_output_tokens or max_tokens)
        narrowed: dict[str, float] = {"max_output_tokens": limit}
        if temperature is not None:
            narrowed["temperature"] = temperature
        settings = settings.model_copy(update=narrowed)
        model = (await task.deps.models.chain(settings))[0].client.model
        client = ModelClient(model, [])
        if stop:
            client.options = {"stop": [*stop]}
        reply = await client.ask("answer", cast("Sequence[AnyMessage]", request), settings, mode="native", quiet=True)
        self.usage = add_usage(self.usage, usage_of(reply, settings.prices))
        return reply


@contextmanager
def sampling(task: Task) -> Iterator[TaskSampler]:
    """Offer the agent's model to the tool call that runs in the context."""
    sampler = TaskSampler(task)
    token = current_sampler.set(sampler)
    try:
        yield sampler
    finally:
        current_sampler.reset(token)


async def run_in_slot(
    task: Task, call: Call, timer: CallTimer, work: Callable[[], Awaitable[T]], *, contained: bool = False
) -> T | CallResult:
    """Run a call when a slot is free, unless an earlier run may have started it.

    Args:
        timer: Started when `work` begins.
        contained: Same as for `RunStop.stoppable`.

    Returns:
        The result of `work`; or the call's result if it was not run, or stopped by an abort or a deadline.
    """
    run, toolbox = task.run, task.deps.toolbox
    writes = toolbox.writes(call["name"])
    # Outside the scope: a run that is aborted at its start must still report calls of earlier runs correctly.
    started = call["id"] not in run.calls.planned and await may_have_started(task, call, writes=writes)

    async def run_it() -> T | CallResult:
        nonlocal started
        async with task.deps.slots.of_wave(task.runtime, task.settings.max_parallel_calls):
            if run.stop.aborted:
                raise WorkStoppedError
            if writes:
                if not toolbox.repeatable(call["name"]) and not await may_start(task, call):
                    return CallResult(UNKNOWN_OUTCOME, "unknown")
                if task.records or call["id"] not in run.calls.planned:
                    await note_started(task, call)
            await run.stop.confirm_held()
            started = True
            run.calls.started.add(call["id"])
            with current_call(run.identity.session_id, call, _wave(task)), timer.running(call):
                return await work()

    try:
        left_s = work_left_s(run, task.loop, task.settings)
        return await run.stop.stoppable(run_it(), f"The call of {call['name']!r}", left_s, contained=contained)
    except WorkStoppedError:
        return cut_short("abort" if run.stop.aborted else "deadline", started=started, writes=writes)


def _wave(task: Task) -> str:
    """Return an id of a call's wave: unique within the session, and stable across resumes."""
    graph, loop = task.config["configurable"].get("checkpoint_ns", "").rpartition("|")[0], task.loop
    return f"{graph}/{loop['last_input_id']}/{loop['turn']}/{loop['step']}"


async def _with_accepted_writes(task: Task, call: Call, output: CallResult) -> CallResult:
    """Return a call's result, or an error if its writes do not fit those of the wave's earlier calls."""
    own, run = task.deps.toolbox.own, task.run
    if not any(name in own.reduced for name, _ in output.writes):
        return output

    async def stored() -> dict[str, list[Any]]:
        return {} if call["id"] in run.calls.planned else await _stored_writes(task)

    accepted = await run.once(f"own writes:{task.wave}", stored)
    # No other call can write between this check and the changes below, as nothing is awaited.
    if (fault := _fault(output.writes, accepted, own)) is not None:
        return CallResult(
            f"The tool ran, but its changes do not fit those of the other calls of this step: {fault}. None of its "
            "changes was kept.",
            "error",
        )
    for name, value in output.writes:
        accepted.setdefault(name, []).append(value)
    return output


def _fault(writes: Sequence[tuple[str, Any]], accepted: dict[str, list[Any]], own: CustomState) -> str | None:
    faults = (own.fault(name, value, accepted[name]) for name, value in writes if accepted.get(name))
    return next((fault for fault in faults if fault is not None), None)


async def _stored_writes(task: Task) -> dict[str, list[Any]]:
    """Return the writes of the wave's calls that had finished in an earlier run, by field."""
    saver, at = checkpoint_of(task)
    found = await load(saver, at) if saver is not None and at is not None else None
    ended = finished_writes(found.pending_writes or []) if found is not None else {}
    fields: dict[str, list[Any]] = {}
    for writes in ended.values():
        for name, value in writes:
            if is_own_field(name):
                fields.setdefault(name, []).append(value)
    return fields
