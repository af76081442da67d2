"""Executes one call of a wave: at most once if it may write, within slots and deadline, through the middleware.

A wave is the calls of one plan, which run in parallel. A slot is the right to run, of `max_parallel_calls` in a wave.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolCall
from langchain_core.tools import BaseTool, ToolException
from langgraph.errors import GraphBubbleUp, GraphInterrupt

from graph_agent.base._compat import count_resume_values, read_state
from graph_agent.base._internal import telemetry
from graph_agent.base._internal.failure_log import get_logger, log_failure, log_fields, log_traceback, log_user_error
from graph_agent.base._internal.sync_bridge import TimeLimitError, await_within
from graph_agent.base.calls import begin_call, is_delegation
from graph_agent.base.errors import AbandonedCallsError, GraphAgentError, InputError, ToolArgumentsError
from graph_agent.base.history import call_events
from graph_agent.base.history.events import NOT_RUN, ResultStatus, StoredEvent, seconds_since, timestamp
from graph_agent.base.sampling import current_sampler
from graph_agent.base.types import NO_USAGE, Call, Usage
from graph_agent.base.usage import LimitMetError, add_usage, budget_met, has_budget, usage_of
from graph_agent.core.execution import ledger
from graph_agent.core.execution.approvals import answered_approvals, held_calls, replacement_fault
from graph_agent.core.execution.deps import Task, ToolCallWrapper, spent, work_left_s
from graph_agent.core.execution.open_calls import FIELDS, current_wave, result_without_output
from graph_agent.core.execution.uncertain_calls import with_uncertain_calls
from graph_agent.core.extensions import invoke
from graph_agent.core.extensions.argument_checks import check_finite
from graph_agent.core.extensions.client_tools import call_client_tool
from graph_agent.core.extensions.output import cut_short, fault, is_argument_error, may_have_run
from graph_agent.core.extensions.toolbox import Toolbox
from graph_agent.core.state.custom_state import CustomState
from graph_agent.core.state.own_checkpoint import load
from graph_agent.core.state.run import WorkStoppedError
from graph_agent.models.client import ModelClient

T = TypeVar("T")
logger = get_logger("graph_agent.execution.run_call")
_FIELDS = frozenset({"id", "name", "arguments"})
"""Keys that every call has."""
UpdatePairs = list[tuple[str, Any]]
"""A node's state update, as pairs of field name and value."""


class CallToRun(NamedTuple):
    """A call that a task must run, with edits by a person applied, and the events that the task adds to the history for
    it."""

    call: Call
    events: list[StoredEvent]
    """One event that announces the call, if the history has none or one with other arguments; otherwise empty."""


async def call_to_run(task: Task, call: Call) -> CallToRun | UpdatePairs:
    """Return the call that a task runs: the one it received, or that call as a person has edited it since planning.

    Marks the task as started in this run, and adds the call's id to the fields of log records.

    Returns:
        The call to run. If there is nothing to run, the task's state update instead, for the first case that applies:
        with the stored writes of a call that had finished; with the answer that a person wrote; with an `unknown`
        result of a call that may write and may have run before; only `wave_finished` for a call that was removed, waits
        for others or a decision, or was edited to become a delegation in place of a tool call, or the other way round.

    Raises:
        InputError: The task was created by another graph, whose thread this agent continues.
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
    if current in state.get("ready", ()) and (kept := await ledger.finished_before(task, call)) is not None:
        return kept
    if (answer := wave.answered.get(call["id"])) is not None:
        return [("events", [call_events.answer_event(*answer, task.step)]), ("wave_finished", True)]
    events = call_events.since_plan(state.get("events", ()))
    if (
        current is not None
        and is_delegation(current["name"]) == is_delegation(call["name"])
        and not await _is_held(task, current, events)
    ):
        return CallToRun(current, call_events.announce([current], events, task.step, task.runtime.stream_writer))
    is_open, toolbox = any(other["id"] == call["id"] for other in wave.open), task.deps.toolbox
    writes = toolbox.writes(call["name"]) and not toolbox.repeatable(call["name"])
    if is_open and writes and not await ledger.may_start(task, call):
        message, result = result_without_output(
            call["id"], call["name"], "unknown", call_events.UNKNOWN_OUTCOME, task.step
        )
        return [("messages", [message]), ("events", [result]), ("wave_finished", True)]
    # `plan` handles the rest of the call after the wave.
    return [("wave_finished", True)]


async def _is_held(task: Task, call: Call, events: list[StoredEvent]) -> bool:
    """Whether a call that an earlier run planned must wait for a person's decision. Also True if the run is stopped
    before that is known; False without an approval policy.

    Args:
        task: The call's task.
        call: The call as it would run.
        events: Events since the newest plan, which have the decisions so far.
    """
    if task.deps.config.approve is None:
        return False
    try:
        policy = held_calls([call], events, task.deps, task.settings)
        return bool(await task.run.stop.stoppable(policy, "An approval policy"))
    except WorkStoppedError:
        return True


class CallTimer:
    """Measures the waiting and running time of a call, from the creation of the timer, on the monotonic clock.

    Use as a context manager: leaving the `with` block reports an unfinished call as `interrupted` to the telemetry
    observer.
    """

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
        """Log the end of the call with its duration, and report it to the telemetry observer unless that was done
        before.

        Args:
            name: Name of the call.
            status: A `ResultStatus`.
            content: The output, for the observer.
        """
        self._end_observed(status, content)
        if self._started is None or self._ended is None:
            logger.info("The call of %s did not run: %s", name, status)
        else:
            logger.info("The call of %s took %.3f s: %s", name, self._ended - self._started, status)

    @contextmanager
    def running(self, call: Call) -> Iterator[None]:
        """Measure the call, which runs inside the `with` block; the time is taken also if the block raises.

        The time between the timer's creation and this counts as waiting. The telemetry observer, if there is one, is
        informed that the call begins, and at the end of the block that it is left.
        """
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
        """Report the end of the call to the telemetry observer, with the call's status and output.

        Does nothing if it was reported before or the call has not begun.
        """
        end, self._end = self._end, None
        if end is not None:
            end(status, content)

    def fields(self, task: Task, call: Call, status: ResultStatus) -> dict[str, Any]:
        """Return the call's durations in seconds for its result event; an empty dict for a call that did not run.

        E.g. `{"queued_s": 0.01, "duration_s": 1.5}`, with `waited_s` if the call was resumed with an answer: the time
        until a person answered, 0.0 if no event shows when the person was asked. With `resumed_at` in a resumed run.

        Args:
            task: The call's task.
            call: The call that was measured.
            status: The status of the call's result. For a status such as `skipped`, the call did not run, and the dict
                is empty.
        """
        # Middleware and checks of arguments take place within the time of a call that is then prevented.
        if self._started is None or status in NOT_RUN:
            return {}
        # A call that suppresses its cancellation is left to itself, and has no end.
        seconds = (self._ended or time.monotonic()) - self._started
        times: dict[str, Any] = {"queued_s": round(self._started - self._created, 6), "duration_s": round(seconds, 6)}
        if task.run.identity.resumes:
            times["resumed_at"] = timestamp(task.run.stop.started_ns)
        if count_resume_values(task.config):
            events = call_events.since_plan(read_state(task.config, ["events"]).get("events", ()))
            asked = [entry["ts"] for entry in events if call["id"] in (entry.get("id"), entry.get("delegation"))]
            # Of the wall clock, because another process may have asked.
            times["waited_s"] = max(0.0, round(seconds_since(asked[-1]) - times["duration_s"], 6)) if asked else 0.0
        return times


async def run_call(task: Task, call: Call, timer: CallTimer) -> tuple[call_events.CallResult, list[StoredEvent]]:
    """Run a tool call through the middleware, or refuse it. An error of the tool becomes a result, too.

    State writes of the tool are checked against those of the wave's earlier calls; a conflict gives an error result. An
    abort or the deadline gives a result that explains the stop.

    Args:
        task: The call's task.
        call: The call; one with a `fault` does not run, and the fault becomes the result.
        timer: Measures the call.

    Returns:
        The result, and the events of approvals that middleware asked a person for.

    Raises:
        GraphBubbleUp: The tool or the middleware interrupts the graph to ask a person.
        SessionLostError: This process has lost the session's lock.
        Exception: `interrupt()` in middleware refused the person's answer. Other exceptions of middleware become error
            results.
    """
    if "fault" in call:
        return call_events.fault_result(call), []
    approvals: list[StoredEvent] = []
    if (wrap := task.deps.wrap_tool_call) is not None:
        output = await run_in_slot(task, call, timer, partial(_through_middleware, wrap, task, call, approvals))
    else:
        # A time limit inside ends the call, so that no task of its own is needed.
        contained = bool(not task.records and _timeout_s(task, task.deps.toolbox, call))
        work = partial(run_tool, task, task.deps.toolbox, call)
        output = await run_in_slot(task, call, timer, work, contained=contained)
    return await _with_accepted_writes(task, call, output) if output.writes else output, approvals


async def _through_middleware(
    wrap: ToolCallWrapper, task: Task, call: Call, approvals: list[StoredEvent]
) -> call_events.CallResult:
    """Run a call through the agent's tool-call middleware, and return the output of the outermost one.

    The result that middleware gets has the status `denied` if it changed the call, or provides a tool of its own for
    it, and the new call needs an approval that was not given. An interrupt of middleware is raised with marks on calls
    that may repeat an earlier effect.

    Args:
        wrap: The middleware.
        task: The call's task.
        call: The call as planned.
        approvals: The events of approvals that middleware asked for are appended to this list.

    Raises:
        GraphBubbleUp: The tool or the middleware asks a person.
        Exception: `interrupt()` in middleware refused the person's answer, which is noted if the tool had not run.
    """
    deps, ran = task.deps, False

    async def run(asked: Call, tool: BaseTool | None = None) -> call_events.CallResult:
        nonlocal ran
        toolbox = deps.toolbox if tool is None else deps.toolbox.with_tool(asked["name"], tool)
        if tool is not None and (tool.metadata or {}).get("approve"):
            why = "middleware runs it, and its mark `approve` holds for the agent's own tools only"
            refused = f"{asked['name']} did not run: {why}. Answer without it."
            return call_events.CallResult(refused, "denied", stored={"decided_by": "approve"})
        if asked is not call and (fault := await replacement_fault(task, call, asked)) is not None:
            return call_events.CallResult(fault, "denied", stored={"decided_by": "approve"})
        ran = True
        return await run_tool(task, toolbox, asked)

    try:
        output = await wrap(call, task.config, task.runtime, run)
    except GraphInterrupt as asked:
        raise with_uncertain_calls(asked, task) from None
    except GraphBubbleUp:
        raise
    except Exception:  # Re-raised: middleware may raise anything, and a refused call must not stay open in the ledger.
        if not ran:
            await ledger.note_refused(task)
        raise
    planned: ToolCall = {"id": call["id"], "name": call["name"], "args": call["arguments"]}
    approvals += await answered_approvals(task, [planned], "HumanInTheLoopMiddleware")
    return output


async def run_tool(task: Task, toolbox: Toolbox, call: Call) -> call_events.CallResult:
    """Run one tool call, with the tool's retries and time limit, and return its result. An exception of the tool
    becomes an error result.

    - The status is `invalid` if the arguments do not fit, and `skipped` if the tool could not begin because too many
      abandoned calls still run.
    - It is `unknown` if a call that may write was cut off, even if a later attempt fails; `error` if its own timeout
      did so.
    - A client tool interrupts the graph instead of running. A call that the toolbox refuses gets the refusal as its
      result.
    - If an equal call began early, the first attempt awaits and takes its output; if that call failed, the tool runs.
    - Failures are logged, except of arguments.

    Args:
        task: The call's task.
        toolbox: The agent's tools, or a copy with a tool that middleware provides for this call.
        call: The call to run.

    Raises:
        GraphBubbleUp: The tool interrupts the graph to ask a person.
        CancelledError: The task was cancelled.
    """
    if (refused := toolbox.refused(call)) is not None:
        return call_events.fault_result(refused)
    if call["name"] in toolbox.client_tools:
        return call_client_tool(call)
    tool = toolbox.tools[call["name"]]
    marks, retry, attempt = toolbox.marks(tool.name), toolbox.retries[tool.name], 1
    status: ResultStatus = "error"
    timeout_s = _timeout_s(task, toolbox, call)
    # In a thread, because a schema of others may take long to check.
    if (check := toolbox.schema_checks.get(tool.name)) and (text := await asyncio.to_thread(check, call["arguments"])):
        return call_events.CallResult(text, "invalid")
    early = None
    if task.run.speculation is not None:
        # Imported here: few agents begin calls early.
        from graph_agent.core.execution.overlap.early_calls import early_calls_of

        early = early_calls_of(task.run).take(call)
    while True:
        given = invoke.ReturnValue()
        try:
            check_finite(tool, call["arguments"])
            arguments = toolbox.inject(tool, call, task.config, task.runtime)
            invoke.record_return_value(given)
            run = partial(toolbox.invoker(tool.name), arguments, call["id"], task.config)
            work = run() if early is None else early.output(given, run, task.runtime.stream_writer)
            returned = await await_within(work, timeout_s, f"The tool {tool.name!r}")
            output = invoke.read_output(returned, call, given, scope=invoke.CommandScope.of(toolbox.own, task.config))
            if early is not None:
                output = replace(output, stored={**output.stored, **early.times})
            handled = tool.handle_validation_error and not given.has_begun and output.status == "error"
            return replace(output, status="invalid") if handled else output
        except BaseException as error:
            if invoke.belongs_to_run(error):
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
                return call_events.CallResult(
                    invoke.after_attempts(text, attempt), status, raised=None if unfit else error
                )
            log_traceback(logger, f"Attempt {attempt} of the tool {tool.name!r}", error)
        await asyncio.sleep(retry.wait_s(attempt))
        # An early call was counted by the first attempt; the next one runs the tool itself.
        attempt, early = attempt + 1, None


def _timeout_s(task: Task, toolbox: Toolbox, call: Call) -> float | None:
    """Return the seconds that one attempt may take: the tool's mark `timeout_s`, else the run's limit.

    None for no limit.
    """
    return toolbox.marks(call["name"]).get("timeout_s", task.settings.tool_timeout_s)


class TaskSampler:
    """Lets the tool of a task send requests to the agent's model, as MCP's sampling does; implements `Sampler`.

    Its creation makes it the `current_sampler` of the task.

    Args:
        task: The task of the call that runs the tool.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self.usage: Usage = NO_USAGE
        """Usage of the requests that the tool has sent. The call's task must add it to the state."""
        # The task runs in a context of its own.
        current_sampler.set(self)

    async def sample(
        self,
        request: Sequence[BaseMessage],
        *,
        max_tokens: int,
        temperature: float | None = None,
        stop: Sequence[str] | None = None,
    ) -> AIMessage:
        """Send one request to the run's first model, without tools and unstreamed, and return the complete reply.

        Its usage is added to `usage`.

        Args:
            request: The messages of the request.
            max_tokens: Maximum tokens of the reply; the run's own limit applies if it is lower.
            temperature: Sampling temperature; None for the configuration's.
            stop: Texts at which the model stops generating; None if there are none.

        Raises:
            LimitMetError: The budget of the input is used up; nothing was sent.
            Exception: The model's error.
        """
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


async def run_in_slot(
    task: Task, call: Call, timer: CallTimer, work: Callable[[], Awaitable[T]], *, contained: bool = False
) -> T | call_events.CallResult:
    """Run a call as soon as one of the wave's `max_parallel_calls` slots is free.

    A call that may write does not run if an earlier run may have started it, unless its tool may run twice. Its start
    is recorded before, if the effect ledger (notes of started calls) is on or an earlier run planned it. Before any
    call, this process's lock on the session is verified, and the call is recorded in the run as started.

    Args:
        task: The call's task.
        call: The call.
        timer: Measures the call; it starts when `work` begins.
        work: Runs the call; called at most once.
        contained: Whether `work` ends by itself on a cancellation, so that it needs no asyncio task of its own.

    Returns:
        The result of `work`. A `CallResult` with status `unknown` if the call was not run because it may have run
        before; one that explains the stop if an abort or the deadline stopped it.

    Raises:
        SessionLostError: This process has lost the session's lock.
        Exception: Exceptions of `work`.
    """
    run, toolbox = task.run, task.deps.toolbox
    writes = toolbox.writes(call["name"])
    # Outside the scope: a run that is aborted at its start must still report calls of earlier runs correctly.
    started = call["id"] not in run.calls.planned and await ledger.may_have_started(task, call, writes=writes)

    async def run_it() -> T | call_events.CallResult:
        nonlocal started
        async with task.deps.slots.of(task, task.settings.max_parallel_calls):
            if run.stop.aborted:
                raise WorkStoppedError
            if writes:
                if not toolbox.repeatable(call["name"]) and not await ledger.may_start(task, call):
                    return call_events.CallResult(call_events.UNKNOWN_OUTCOME, "unknown")
                if task.records or call["id"] not in run.calls.planned:
                    await ledger.note_started(task, call)
            # Another process may have taken over the session while the call waited for its slot.
            await run.stop.confirm_held()
            started = True
            run.calls.started.add(call["id"])
            # The call has a context of its own: that of its node, or of a task.
            begin_call(run.identity.session_id, call, _wave(task))
            with timer.running(call):
                return await work()

    try:
        left_s = work_left_s(run, task.loop, task.settings)
        return await run.stop.stoppable(run_it(), f"The call of {call['name']!r}", left_s, contained=contained)
    except WorkStoppedError:
        return cut_short("abort" if run.stop.aborted else "deadline", started=started, writes=writes)


def _wave(task: Task) -> str:
    """Return the id of a call's wave, `<namespace>/<input id>/<turn>/<step>`: unique in a session, the same after a
    resume."""
    graph, loop = task.config["configurable"].get("checkpoint_ns", "").rpartition("|")[0], task.loop
    return f"{graph}/{loop['last_input_id']}/{loop['turn']}/{loop['step']}"


async def _with_accepted_writes(task: Task, call: Call, output: call_events.CallResult) -> call_events.CallResult:
    """Return a call's result, or an error result without writes if its state writes conflict with those of the wave's
    earlier calls.

    Only writes to fields of `state_schema` that have a reducer are checked: the reducer must accept them one after
    another. Accepted writes are recorded in the run, so that later calls of the wave are compared with them. The writes
    of calls that finished in an earlier run of the wave are read from the checkpoint.
    """
    own, run = task.deps.toolbox.own, task.run
    if not any(name in own.reduced for name, _ in output.writes):
        return output

    async def stored() -> dict[str, list[Any]]:
        return {} if call["id"] in run.calls.planned else await _stored_writes(task)

    accepted = await run.once(f"own writes:{task.wave}", stored)
    # No other call can write between this check and the changes below, as nothing is awaited.
    if (fault := _fault(output.writes, accepted, own)) is not None:
        return call_events.CallResult(
            f"The tool ran, but its changes do not fit those of the other calls of this step: {fault}. None of its "
            "changes was kept.",
            "error",
        )
    for name, value in output.writes:
        accepted.setdefault(name, []).append(value)
    return output


def _fault(writes: Sequence[tuple[str, Any]], accepted: dict[str, list[Any]], own: CustomState) -> str | None:
    """Return why the reducer of a field refuses a write after those already accepted; None if all writes are accepted.

    Args:
        writes: The call's writes, as pairs of field and value.
        accepted: Field → writes of the wave's earlier calls.
        own: The fields of the agent's `state_schema`, with their reducers.
    """
    faults = (own.fault(name, value, accepted[name]) for name, value in writes if accepted.get(name))
    return next((fault for fault in faults if fault is not None), None)


async def _stored_writes(task: Task) -> dict[str, list[Any]]:
    """Return the writes to fields of `state_schema` by the wave's calls that finished in an earlier run, as field →
    values; empty without a checkpointer or a stored checkpoint.
    """
    saver, at = ledger.checkpoint_of(task)
    found = await load(saver, at) if saver is not None and at is not None else None
    ended = ledger.finished_writes(found.pending_writes or []) if found is not None else {}
    fields: dict[str, list[Any]] = {}
    for writes in ended.values():
        for name, value in writes:
            if ledger.is_own_field(name):
                fields.setdefault(name, []).append(value)
    return fields
