"""Implements parts of the `delegate` node: progress events, state updates, and middleware.

A delegation is a call `delegate_to_<name>`, which hands a task to another agent (the delegate) and returns its answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime

from graph_agent.base._internal.failure_log import get_logger, log_failure, log_user_error
from graph_agent.base._internal.sync_bridge import TimeLimitError
from graph_agent.base._internal.text import as_text, clean, to_json_safe
from graph_agent.base.calls import delegate_name, is_delegation
from graph_agent.base.delegate_tasks import RemoteTask
from graph_agent.base.errors import GraphAgentError
from graph_agent.base.history.call_events import OUTCOMES, CallResult, result_event, stored_value
from graph_agent.base.history.events import SUCCESSES, StoredEvent, event
from graph_agent.base.input_messages import CONTEXT_MARK
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import HIDDEN_ID_PREFIX, NO_USAGE, Call, Usage
from graph_agent.base.usage import RemainingBudget, add_usage, budget_for_delegates, has_budget
from graph_agent.core.execution.approvals import approval_events, is_repeated
from graph_agent.core.execution.deps import Task, ToolCallWrapper, spent
from graph_agent.core.extensions.delegation import DEPTH_LEFT, AskingDelegate, Delegation, DelegationResult
from graph_agent.core.extensions.invoke import belongs_to_run
from graph_agent.core.extensions.output import effect_text, fenced, shown_address, source_of, textless
from graph_agent.core.extensions.truncation import truncate_output
from graph_agent.core.state.channels import RemoteChange, RemoteState
from graph_agent.core.state.messages import without_failure_report
from graph_agent.core.state.run import handle_of
from graph_agent.models.errors import is_raised_by_model, public_exception_text

logger = get_logger("graph_agent.nodes.delegate")

_TOO_DEEP = "This agent may not delegate further: the delegation depth is used up. Do the task yourself."
"""Result of a delegation beyond the allowed depth, for the model."""
MOST_PROGRESS_LINES = 200
"""Maximum progress lines of one delegation in the history; the custom stream has all of them."""


class ProgressReporter:
    """Emits the progress of a delegate on the custom stream, and collects it in `events` for the history.

    Args:
        call: The delegation's call.
        step: Number of the plan.
        runtime: LangGraph's runtime of the node, which has the custom stream.
    """

    def __init__(self, call: Call, step: int, runtime: Runtime[Any]) -> None:
        self._call = call
        self._step = step
        self._runtime = runtime
        # The stream writer reads its namespace from the context; a delegate's run has a different context.
        self._context = copy_context()
        self.events: list[StoredEvent] = []

    def __call__(self, text: str) -> None:
        """Emit one line of progress as a `delegation_progress` part, and append the event to `events`.

        After `MOST_PROGRESS_LINES` lines, further lines are emitted but not collected.
        """
        fields = {"id": self._call["id"], "target": delegate_name(self._call["name"]), "content": clean(text)}
        self._runtime.stream_writer({"type": "delegation_progress", "step": self._step, **fields})
        if len(self.events) < MOST_PROGRESS_LINES:
            self.events.append(event("delegation_progress", self._step, **fields))

    def pass_on(self, part: Any) -> None:
        """Emit a part of the delegate's own custom stream, unchanged, on the custom stream of this run."""
        self._context.run(self._runtime.stream_writer, part)


class UsageTally:
    """Sums the tokens and model calls of one delegation in `usage`, including attempts that raise or are cancelled."""

    def __init__(self) -> None:
        self.usage: Usage = NO_USAGE

    def __call__(self, usage: Usage) -> None:
        """Add the usage of one attempt to `usage`."""
        self.usage = add_usage(self.usage, usage)


def waiting_task(remote: RemoteState | None, call: Call) -> RemoteTask | None:
    """Return the task of a delegate that waits for a person's answer in this call; None if there is none.

    Args:
        remote: The state field `remote`, which holds the open tasks of delegates; None if nothing is stored.
        call: The delegation's call.
    """
    return remote["open"].get(call["id"]) if remote else None


def delegation_update(
    call: Call,
    result: DelegationResult,
    settings: LoopConfig,
    step: int,
    progress: list[StoredEvent],
    *,
    waited: RemoteTask | None,
    answer: Any,
    times: Mapping[str, float],
) -> list[tuple[str, Any]]:
    """Return the state update of a delegation, as pairs of field and value.

    If the delegate asks a person, the update stores the delegate's waiting task, progress, usage and, for a question in
    words, an event with it, and has no result.
    Otherwise it has the result message for the model, shortened to the limits, the result event with the full content,
    and the usage; it removes a task that waited before, and stores a task that goes on in the background. Content of an
    untrusted delegate is fenced in the message. An answer that the delegate could not use marks its waiting task as
    `refused`.

    Args:
        call: The delegation's call.
        result: The result of the delegation.
        settings: The configuration of the run, which limits the output shown to the model.
        step: Number of the plan.
        progress: The progress events so far.
        waited: The delegate's task that waited for a person before this run; None if there was none.
        answer: The person's answer to that task; None if there is none.
        times: Durations for the event, as `CallTimer.fields` returns them.
    """
    name, id_ = delegate_name(call["name"]), call["id"]
    progress = [*progress, *approval_events(call, waited, answer, result, step)]
    contexts = {name: result.context_id} if result.context_id else {}
    # The channel stores its first write unreduced, so each write is complete; a removal always follows another write.
    waits: RemoteTask | None = result.waiting
    if waits is not None and is_repeated(waits, waited):
        waits = {**waits, "refused": True}
    tasks: dict[str, RemoteTask | None] = {id_: waits} if waited is not None or waits is not None else {}
    remote: tuple[str, RemoteChange] = ("remote", {"contexts": contexts, "open": tasks})
    if result.waiting is not None:
        if "request" not in result.waiting:
            progress.append(event("delegation_progress", step, id=id_, target=name, content=result.waiting["question"]))
        return [remote, ("events", progress), ("usage", result.usage), ("wave_finished", True)]
    shown, _ = truncate_output(result.content, settings, {}, call)
    if result.untrusted:
        shown = fenced(shown, source_of(name))
    status: Literal["success", "error"] = "success" if result.status in SUCCESSES else "error"
    message = ToolMessage(shown, tool_call_id=id_, name=call["name"], status=status, artifact=result.artifact)
    response = result_event(id_, call["name"], result.status, result.content, step)
    response |= times
    response |= result.stored if result.value is None else stored_value(result.content, result.value)
    if result.usage != NO_USAGE:
        response["usage"] = result.usage
    if result.untrusted:
        response["untrusted"] = True
    if result.history:
        response["history"] = result.history
    if result.background is not None:
        response["background"] = result.background["session_id"]
        remote[1]["background"] = {id_: result.background}
    update: list[tuple[str, Any]] = [("messages", [message]), ("events", [*progress, response])]
    # Most delegates have no remote state, and an unwritten field takes no space.
    if contexts or waited is not None or result.background is not None:
        update.append(remote)
    return [*update, ("usage", result.usage), ("wave_finished", True)]


class _WaitingError(GraphBubbleUp):
    """Raised through middleware when the delegate asks a person.

    Like an interrupt, it is no `Exception` that retries catch.
    """


async def run_through_middleware(
    task: Task,
    around: ToolCallWrapper,
    call: Call,
    run: Callable[[Call], Awaitable[DelegationResult]],
    failed: Callable[[BaseException], DelegationResult],
) -> DelegationResult:
    """Run a delegation through tool-call middleware, which may run it several times or return a result without running
    it.

    If the delegate asks a person, its result is returned past the middleware. A tool that middleware wants to run in
    place of the delegation is refused with a `skipped` result. Of the middleware's output, `_result_of` makes the
    result.

    Args:
        task: The node's task of this call.
        around: The agent's combined tool-call middleware.
        call: The delegation's call.
        run: Runs the delegation once.
        failed: Converts an exception of `run` to a result, which middleware sees as an exception (`raised`).

    Raises:
        GraphBubbleUp: The delegate or the middleware interrupts the graph to ask a person.
        Exception: `interrupt()` in middleware refused the person's answer.
    """
    results: list[DelegationResult] = []

    async def run_once(call: Call, tool: BaseTool | None = None) -> CallResult:
        if tool is not None:
            return CallResult(f"{call['name']} did not run: it is a delegation, and no tool can run it.", "skipped")
        try:
            result = await run(call)
        except BaseException as error:
            if belongs_to_run(error):
                raise
            result = replace(failed(error), raised=error)
        results.append(result)
        if result.waiting is not None:
            # Middleware must not take a question for the delegate's answer.
            raise _WaitingError
        return result

    try:
        output = await around(call, task.config, task.runtime, run_once)
    except _WaitingError:
        return results[-1]
    return _result_of(output, results)


def _result_of(output: CallResult, results: Sequence[DelegationResult]) -> DelegationResult:
    """Return the output of the middleware as the result of the delegation.

    If the output equals the result of a run (content, artifact, and whether it succeeded), that result is returned. A
    changed output keeps what a message cannot hold: the conversation id and history of the newest run, whether any run
    was untrusted and, if the content is that of a run, the structured value.

    Args:
        output: The output of the middleware.
        results: The results of the delegation's runs, oldest first; empty if middleware gave a result without running
            it.
    """
    for result in reversed(results):
        same = (output.status in SUCCESSES) == (result.status in SUCCESSES)
        if same and (output.content, output.artifact) == (result.content, result.artifact):
            return result
    changed = DelegationResult(output.content, output.status, artifact=output.artifact, stored=output.stored)
    if not results:
        return changed
    newest = results[-1]
    return replace(
        changed,
        # The value of an unchanged content.
        value=next((one.value for one in reversed(results) if one.content == output.content), None),
        # A changed result of an untrusted delegate stays untrusted.
        untrusted=any(one.untrusted for one in results),
        context_id=newest.context_id,
        history=newest.history,
    )


def checked_result(returned: object) -> DelegationResult:
    """Validate what a delegate's `run` returned, and return a copy whose values are plain JSON.

    Raises:
        TypeError: `returned` is no `DelegationResult`; its content is neither text nor a list; its status is unknown;
            `history` or `approvals` has an entry that is no event; or its content or value holds an object without a
            text of its own.
        ValueError: A value is nested too deeply.
    """
    if not isinstance(returned, DelegationResult):
        raise TypeError(f"run() returned {type(returned).__name__}; return a DelegationResult")
    if not isinstance(returned.content, str | list):
        raise TypeError(f"content={returned.content!r} is neither text nor a list of content blocks")
    if returned.status not in OUTCOMES:
        raise TypeError(f"status={returned.status!r} is none of {', '.join(OUTCOMES)}")
    if kind := shown_address(returned.content) or textless([returned.content, returned.value]):
        raise TypeError(f"its result holds an object of type {kind}, which has no text of its own")
    for name in ("history", "approvals"):
        if not all(isinstance(entry, Mapping) for entry in getattr(returned, name)):
            raise TypeError(f"{name} holds an entry that is no event")
    names = ("content", "value", "artifact", "history", "approvals")
    plain: dict[str, Any] = {name: to_json_safe(getattr(returned, name)) for name in names}
    return replace(returned, **plain, stored=to_json_safe(dict(returned.stored)))


async def run_delegate(
    task: Task, call: Call, answer: Any, progress: ProgressReporter, tally: UsageTally
) -> DelegationResult:
    """Run one attempt of a delegation, or resume the delegate's task that waits for a person, and return the result.

    The delegate is not called, and a result describes why, if the call's arguments do not fit (`invalid`), the
    delegation depth is used up (`skipped`), or the delegate cannot resume a task (`error`). Checked in this order.
    Exceptions of the delegate are raised. The task goes on in the background only if the call asks for that, the
    delegate supports it, and the run is not `in_foreground`.

    Args:
        task: The node's task of this call.
        call: The delegation's call.
        answer: The person's answer to the delegate's question; None if it asked none.
        progress: Receives the delegate's progress.
        tally: Receives the delegate's usage; usage of earlier attempts in it counts against the budget that the
            delegate gets.
    """
    deps, settings, configurable = task.deps, task.settings, task.config["configurable"]
    handle = handle_of(configurable)
    remote: RemoteState | None = task.state.get("remote")
    if "fault" in (checked := deps.toolbox.checked(call)):
        return DelegationResult(checked["fault"], "invalid")
    delegate, text = deps.toolbox.delegates[call["name"]], call["arguments"]["task"]
    if not isinstance(text, str):
        # A reference in a plan may resolve to any JSON.
        text = as_text(text)
    depth_left = min(settings.max_delegation_depth, configurable.get(DEPTH_LEFT, settings.max_delegation_depth))
    if depth_left < 1:
        return DelegationResult(_TOO_DEEP, "skipped")
    delegation = Delegation(
        id=call["id"],
        task=text,
        context=_context(task.state["messages"], settings.context_messages),
        session_id=configurable.get("thread_id", ""),
        depth_left=depth_left - 1,
        budget=_share(task, tally.usage),
        prices=settings.prices,
        context_id=remote["contexts"].get(delegate.name, "") if remote else "",
        report_progress=progress,
        untrusted=tuple(call["origins"]["task"].get("parts", ())) if "origins" in call else (),
        background=call["arguments"].get("background") is True
        and getattr(delegate, "background", False)
        and not handle.in_foreground,
        watch=progress.pass_on if handle.is_watched else None,
        record_usage=tally,
    )
    if (waiting := waiting_task(remote, call)) is None:
        return await delegate.run(delegation)
    if not isinstance(delegate, AskingDelegate):
        # The program may have replaced the delegate since it asked.
        return failed_delegation(f"The delegate {delegate.name!r} cannot resume a task.")
    return await delegate.resume(delegation, waiting, answer)


def _share(task: Task, attempts: Usage) -> RemainingBudget:
    """Return the part of the remaining budget that one delegation may use.

    The usage of the run and `attempts` are subtracted first. Tokens and cost are then divided by the number of
    delegations in the wave. Time is not, because they run in parallel.
    Without a configured budget, the returned budget has no limits.

    Args:
        task: The node's task of one delegation of the wave.
        attempts: Usage of the earlier attempts of this delegation, which counts as used.
    """
    if not has_budget(task.settings):
        return RemainingBudget()
    usage = add_usage(task.state["usage"], attempts)
    used = spent(task.run, task.loop, usage, task.state["messages"], task.settings)
    delegations = sum(is_delegation(call["name"]) for call in task.state["ready"])
    return budget_for_delegates(used, task.settings).shared_by(max(1, delegations))


def _context(messages: list[AnyMessage], count: int) -> list[AnyMessage]:
    """Return copies of the last `count` messages of users and the model that have text, oldest first, to give to a
    delegate.

    The copies hold the text alone and are marked as context. Tool calls, results and hidden messages are left out.
    """
    context: list[AnyMessage] = []
    for message in reversed(messages):
        if len(context) == count:
            break
        if (message.id or "").startswith(HIDDEN_ID_PREFIX):
            continue
        if isinstance(message, HumanMessage | AIMessage) and (text := without_failure_report(message).text):
            kind = HumanMessage if isinstance(message, HumanMessage) else AIMessage
            context.append(kind(content=text, additional_kwargs={CONTEXT_MARK: True}))
    return context[::-1]


def failed_delegation(content: str) -> DelegationResult:
    """Return the result, with status `error`, of a delegation that failed; `content` is text for the model."""
    return DelegationResult(content, "error")


def logged_failure(call: Call, error: BaseException) -> DelegationResult:
    """Log the exception that ended a delegation, and return the result, with status `error`, that describes it for the
    model.

    The text for a `TimeLimitError` adds that the effect is unknown; other texts have no message of a model's provider.
    Errors of a model, timeouts and errors of this package are logged as warnings, any other one as an error of the
    program with its traceback.

    Args:
        call: The delegation.
        error: The exception of the delegate, or of middleware around it.
    """
    what = f"The delegate {delegate_name(call['name'])!r}"
    if isinstance(error, GraphAgentError | TimeoutError) or is_raised_by_model(error):
        log_failure(logger, what, error, level=logging.WARNING)
    else:
        log_user_error(logger, what, error)
    if isinstance(error, TimeLimitError):
        return failed_delegation(f"{what} was {error}. {effect_text(writes=True)}")
    return failed_delegation(clean(f"{what} failed: {public_exception_text(error)}"))
