"""Takes new input, continues the wave, ends planning, or asks the model for the next wave: the `plan` node.

A wave is the calls of one plan; they run in parallel as tasks of one superstep. Most functions change a `PlanUpdate`,
which collects what the node writes to the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.failure_log import get_logger, log_fields
from graph_agent.base.errors import SlowSchemaError, UserError
from graph_agent.base.finish import cut_off
from graph_agent.base.history.events import event
from graph_agent.base.inbox import NoteKind
from graph_agent.base.settings.response_format import is_json
from graph_agent.base.types import NO_USAGE
from graph_agent.base.usage import LimitMetError
from graph_agent.base.waves.schema import Selection, fill_in_earlier, select
from graph_agent.core.execution.deps import AgentDeps, Task, work_left_s
from graph_agent.core.extensions.client_tools import fault_further_client_calls
from graph_agent.core.planning.approval_decisions import report_edits
from graph_agent.core.planning.background import receive_background
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.failures import failure_event
from graph_agent.core.planning.hooked_requests import request_plan
from graph_agent.core.planning.loop_detection import mark_withheld, stop_repetition
from graph_agent.core.planning.middleware_replies import (
    apply_hooks,
    comes_from_hooks,
    keep_answer,
    may_replan,
    request_model,
)
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.plan_edits import (
    apply_after_wave,
    apply_edits,
    continue_after_edit,
    start_calls,
    start_waiting_calls,
)
from graph_agent.core.planning.refusals import RefusedError
from graph_agent.core.planning.reply import Planned, with_free_ids
from graph_agent.core.planning.structured_answer import replaced_answer_warning
from graph_agent.core.planning.update import PlanUpdate
from graph_agent.core.state.channels import NOTHING_REMOTE
from graph_agent.core.state.notes import NOTE_EVENTS, listen
from graph_agent.core.state.run import WorkStoppedError
from graph_agent.core.state.schema import LoopOutcome, PlanState
from graph_agent.nodes.finalize import finalize_in_plan, may_finalize

logger = get_logger(__name__)


class PlanDecision(StrEnum):
    """How a pass through `plan` ends; each value describes it for the log."""

    RUN = "the calls that are ready run, or a person decides on them"
    ASK = "the node `model` asks the model"
    END = "planning is over"


PlanRule = Callable[[PlanUpdate], Awaitable[PlanDecision | None]]
"""One rule of `plan`: it may change the update, and ends the pass by returning a decision; None leads to the next
rule."""


async def plan_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps
) -> Command[Any]:
    """Plan one step: apply the rules in order until one decides; finalize in the same pass if `may_finalize`.

    Raises `UserError` for a fault of the program's configuration or input.

    Returns:
        An update whose `ready` holds the calls to run; empty with an `outcome` when planning is over. It is a list of
        pairs because LangGraph's message stream would show the messages of a mapping, and a plan is not shown.
    """
    update = PlanUpdate(Task.of(state, config, runtime, deps))
    deps = update.deps
    for rule in AFTER_HOOKS if deps.hook_set and comes_from_hooks(update) else RULES:
        if (decision := await rule(update)) is not None:
            logger.debug("%s: %s", rule.__name__, decision)
            break
    if update.waiting_delegations:
        await update.withdraw_waiting_delegations()
    if deps.hook_set:
        request_model(update, deps.hook_set)
    return await finalize_in_plan(update) if may_finalize(update) else Command(update=update.as_pairs())


async def take_input_or_wave(update: PlanUpdate) -> None:
    """Begin an input, or continue one after an edit; after a wave, apply edits and the effects of its calls."""
    if update.state.get("wave_finished"):
        await apply_edits(update)
        update.order_results()
        apply_after_wave(update)
    elif not await continue_after_edit(update):
        await update.begin_input()
    update.begins = not update.state.get("wave_finished") and update.loop["step"] == 0


async def receive_notes(update: PlanUpdate) -> None:
    """Process the notes (messages to the session from outside the run); set `steered` if one is for the model.

    The user's messages wait while calls of the wave do, because none may stand between the results of a wave.
    """
    update.steered = await _receive(update, steer=not update.loop["waiting"] and not update.waiting_delegations)


async def _receive(update: PlanUpdate, *, steer: bool) -> bool:
    """Process new notes; with `steer`, the user's messages and results of background tasks, too.

    Settings change at once. Background results stay if this pass has a reply. Returns whether a message was added.
    """
    kinds: Sequence[NoteKind] = ("configure", *NOTE_EVENTS, "steer") if steer else ("configure", *NOTE_EVENTS)
    steered = False
    if update.run.inbox is not None:
        changed = update.loop.get("config_overrides")
        notes = await listen(update.run, update.loop, kinds, update.loop["step"], update.check_change)
        update.events += notes.events
        for message in notes.messages:
            update.add_message(message)
        if update.loop.get("config_overrides") is not changed:
            update.settings = update.task.settings_with(update.loop)
        steered = bool(notes.messages)
    if steer and update.newest_reply is None and (update.state.get("remote") or NOTHING_REMOTE).get("background"):
        steered = await receive_background(update) or steered
    return steered


async def take_hooked_reply(update: PlanUpdate) -> None:
    """Act on the reply as middleware left it, and process notes; after a user's message, planning goes on."""
    apply_hooks(update)
    replaceable = not update.loop["waiting"] and (update.loop["outcome"] is None or may_replan(update))
    if await _receive(update, steer=replaceable):
        keep_answer(update)


async def answer_with_results(update: PlanUpdate) -> PlanDecision | None:
    """End if the wave's results are the answer (`answer_directly`), no new message came, and the run goes on."""
    if (
        update.state.get("wave_finished")
        and not update.steered
        and not update.run.stop.aborted
        and update.answer_directly()
    ):
        return await _end_unasked(update)
    return None


async def end_if_concluded(update: PlanUpdate) -> PlanDecision | None:
    """End if an earlier rule has set an outcome, because of an edit, a handoff or a hook."""
    return None if update.loop["outcome"] is None else await _end_unasked(update)


async def stop_at_abort(update: PlanUpdate) -> PlanDecision | None:
    """End after an abort, before waiting calls run. No budget is tested: the request of these calls is paid for."""
    return await _end_unasked(update) if update.run.stop.aborted and update.stop_at_abort_or_budget() else None


async def stop_at_abort_or_budget(update: PlanUpdate) -> PlanDecision | None:
    """End after an abort, or if the budget is too small for another plan; waiting calls get results. None otherwise."""
    return await _end_unasked(update) if update.stop_at_abort_or_budget() else None


async def continue_wave(update: PlanUpdate) -> PlanDecision | None:
    """Start the waiting calls that are ready, and resume delegations that ask a person; None if none can start."""
    if not update.loop["waiting"] and not update.waiting_delegations:
        return None
    return PlanDecision.RUN if await start_waiting_calls(update) else None


async def stop_at_repetition(update: PlanUpdate) -> PlanDecision | None:
    """If calls and results repeat after a second wave, notify the model, then withhold the tools, then end. Returns
    None unless planning ends. Reports a person's edits before. Does nothing unless a wave has just finished.
    """
    if not update.state.get("wave_finished"):
        return None
    if update.deps.config.approve is not None:
        report_edits(update)
    # One wave repeats nothing.
    return await _end_unasked(update) if update.loop["waves"] > 1 and stop_repetition(update) else None


async def end_after_last_wave(update: PlanUpdate) -> PlanDecision | None:
    """End after the wave that the model declared the last, unless the user has sent a message since. None otherwise."""
    if not update.loop["last_wave"] or update.steered:
        return None
    update.conclude({"stop_reason": "completed"})
    return PlanDecision.END


async def end_without_tools(update: PlanUpdate) -> PlanDecision | None:
    """Publish events and conclude the input as completed, if the agent has no tools, delegates and hooks; else None."""
    if update.deps.plans:
        return None
    update.publish_events()
    update.conclude({"stop_reason": "completed"})
    return PlanDecision.END


async def stop_at_limit(update: PlanUpdate) -> PlanDecision | None:
    """Stop if a limit on steps, turns or supersteps forbids another plan; None otherwise."""
    return await _end_unasked(update) if update.stop_at_limit() else None


async def ask_model(update: PlanUpdate) -> PlanDecision | None:
    """Ask the model for the next wave; in an agent with middleware hooks, leave that to the node `model`.

    If the user sends a message before the reply is shown as the answer, the model is asked again.
    """
    if update.deps.hook_set:
        update.publish_events()
        return PlanDecision.ASK
    await ask_before_deadline(update)
    # Without an inbox no note can arrive; results of background tasks replace no reply.
    while update.run.inbox is not None and _can_be_steered(update) and await _receive(update, steer=True):
        update.loop["outcome"] = None
        # Each of these plans counts towards the limits.
        if not update.stop_at_abort_or_budget() and not update.stop_at_limit():
            await ask_before_deadline(update)
    return PlanDecision.RUN if update.loop["outcome"] is None else PlanDecision.END


RULES: tuple[PlanRule, ...] = (
    take_input_or_wave,  # first, because each other rule reads the history
    receive_notes,  # before the limits, which a note may change
    answer_with_results,  # a finished answer costs nothing, so no budget may prevent it
    end_if_concluded,
    stop_at_abort_or_budget,
    continue_wave,  # before the limits on plans: its calls are planned already
    stop_at_repetition,
    end_after_last_wave,
    end_without_tools,
    stop_at_limit,
    ask_model,
)
"""The rules of a pass that begins an input, or follows a wave."""

AFTER_HOOKS: tuple[PlanRule, ...] = (
    take_hooked_reply,
    end_if_concluded,
    stop_at_abort,
    continue_wave,  # before the budget: the request of these calls is paid for
    stop_at_abort_or_budget,
    end_without_tools,
    stop_at_limit,
    ask_model,
)
"""The rules of a pass that follows a reply which hooks of middleware have processed, or a jump of a hook."""


def _can_be_steered(update: PlanUpdate) -> bool:
    """Whether a message of the user may replace the newest reply: it has no calls, and was not shown as the answer.

    False unless the step ended as completed. An answer is not replaced if a hook gave it or a limit forbids a plan.
    """
    outcome = update.loop["outcome"]
    if outcome is None or outcome["stop_reason"] != "completed":
        return False
    if "draft" not in outcome:
        return True
    limited = (
        update.limit_met
        or update.state["remaining_steps"] < update.deps.steps_for_a_wave
        or update.budget_met(NO_USAGE, update.newest_reply)
    )
    return outcome["draft"] is update.direct_answer and "shown" not in outcome and not limited


async def ask_before_deadline(update: PlanUpdate) -> None:
    """Ask the model for the next wave, with changed tools; an abort or the deadline cancels that and ends planning."""
    if update.deps.toolbox.needs_refresh:
        await update.prepare()
    update.publish_events()
    update.direct_answer = None
    left_s = work_left_s(update.run, update.loop, update.settings)
    try:
        await update.run.stop.stoppable(_ask(update), "The planning request", left_s)
    except WorkStoppedError:
        update.stop_at_abort_or_deadline(cut_short=True)
        await _end_unasked(update)


async def _end_unasked(update: PlanUpdate) -> PlanDecision:
    """Return `END`, because no request for a plan follows; before, open predictions are cancelled and counted."""
    if update.run.speculation is not None:
        # Imported here: few agents begin work early.
        from graph_agent.core.planning.overlap import end_predictions

        await end_predictions(update)
    return PlanDecision.END


async def _ask(update: PlanUpdate) -> None:
    """Ask the model for the next wave, and start its calls or set the outcome; errors of the model set `failed`.

    A refusal becomes the answer, a limit the stop reason. Only a request with a reply is a step. Without calls,
    planning ends. Calls are skipped if a hook ended the loop; LangGraph's recursion limit ends planning without the
    reply. Raises `UserError` for a fault of the program.
    """
    log_fields.set({**log_fields.get({}), "step": update.loop["step"] + 1})
    logger.info("Agentic iteration %d/%d", update.loop["step"] + 1, update.settings.max_steps)
    try:
        if telemetry.observer is None:
            planned = await _request_plan(update)
        else:
            with telemetry.observer.plan(update.loop["step"] + 1):
                planned = await _request_plan(update)
    except RefusedError as refused:
        update.conclude({"stop_reason": "completed", "draft": refused.message, "unguarded": True})
        return
    except LimitMetError as met:
        update.stop(met.reason, met.limit)
        return
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a provider may raise anything; the outcome records the error
        update.fail(failure_event(error, update.loop["step"], "The planning request"), error)
        return
    if update.run.identity.agent_name is not None:
        planned = planned.named(update.run.identity.agent_name)
    # Counted only now, so that a failed request is no step.
    update.loop["step"] += 1
    update.events.append(planned.event(update.loop["step"]))
    if (versions := update.deps.versions).digest != update.loop.get("versions"):
        update.events[-1]["versions"], update.loop["versions"] = versions.as_json, versions.digest
    update.run.report(update.loop, update.events[-1])
    update.newest_reply = planned.message
    update.loop["last_wave"] = planned.last
    # A hook has ended the loop with this reply.
    if planned.ended and planned.calls:
        update.end_without_calls(planned.message, planned.calls, answers=planned.final)
    elif not planned.calls:
        logger.info("Final response received (no tool calls)")
        outcome: LoopOutcome = {"stop_reason": "completed"}
        if planned.final:
            outcome["draft"] = planned.message
        elif planned.answers and update.deps.may_answer_while_planning(update.settings):
            try:
                await _accept_answer(update, planned.message, outcome)
            except Exception as error:  # noqa: BLE001 - a validator of the response format may raise anything
                update.fail(failure_event(error, update.loop["step"], "The check of the answer"), error)
                return
        elif planned.empty and update.deps.may_answer_while_planning(update.settings):
            outcome["empty"] = True
        update.conclude(outcome)
    elif update.state["remaining_steps"] < update.deps.steps_for_a_wave:
        update.stop_at_recursion_limit()
    else:
        await _begin_wave(update, planned)


async def _accept_answer(update: PlanUpdate, reply: AIMessage, outcome: LoopOutcome) -> None:
    """Set a planning reply as the answer if it fits the response format; if not, `finalize` asks for another one.

    If readers have received the text, `outcome` gets `shown`; for a text that does not fit, `unfit` and a `warning`
    event. Other exceptions of the validation are raised.
    """
    if update.deps.response is not None:
        try:
            if cut_off(reply) is not None and not is_json(reply.text):
                raise ValueError("The reply was cut off.")
            await asyncio.to_thread(update.deps.response.read, reply.text)
        except (ValueError, SlowSchemaError) as fault:
            if update.streamed is not None and update.streamed.text:
                outcome["unfit"] = True
                update.events.append(event("warning", update.loop["step"], message=replaced_answer_warning(str(fault))))
            return
    update.direct_answer = outcome["draft"] = reply
    if update.streamed is not None and update.streamed.text:
        outcome["shown"] = True


async def _begin_wave(update: PlanUpdate, planned: Planned) -> None:
    """Add the plan's message, count the wave, and start calls that can run, up to the limit; with hooks, all wait.

    Calls of withheld tools, and client calls after the first where one is allowed, get a `fault`.
    """
    logger.info("Executing %d tool call(s)", len(planned.calls))
    update.loop["waves"] += 1
    update.add_message(planned.message)
    # Only a structured plan's arguments hold references; elsewhere "${" is plain text.
    structured = update.deps.mode(update.settings) == "wave"
    withheld = update.loop.get("withheld")
    calls = [mark_withheld(call, withheld) for call in planned.calls] if withheld else planned.calls
    if not update.deps.parallel_client_calls:
        calls = fault_further_client_calls(calls, update.deps.toolbox.client_tools)
    if update.deps.hook_set:
        # The hooks see the calls before they are announced and run.
        update.loop["waiting"], update.changes["ready"] = calls, []
        return
    calls = update.within_limit(calls)
    chosen = select(calls, {}, ()) if structured else Selection(calls, [], [])
    update.loop["waiting"] = chosen.waiting
    await start_calls(update, calls, chosen)


async def _request_plan(update: PlanUpdate) -> Planned:
    """Request a plan, through loop hooks if any; take over usage and events of its requests, and raise their error.

    In a structured plan, references to earlier results become values, and each call gets an id new to the session.
    """
    request = await NextRequest.of(update.task, update.settings, update.history, update.loop)
    stored = update.state.get("events", [])
    request.earlier.follow(stored, update.events, begun=update.loop["step"] > 0)
    exchange = Exchange(request, update.budget_met)
    work = request_plan(exchange, stored, update.events, update.own_writes)
    planned = update.take(await exchange.outcome_of(work))
    if request.mode != "wave":
        return planned
    # After the plan cache, whose plans keep the references.
    calls = fill_in_earlier(planned.calls, request.earlier.results, keep_templates=update.settings.origins)
    taken = request.earlier.ids_with(update.history)
    return with_free_ids(replace(planned, calls=calls), taken, structured=True)
