"""The `plan` node: take new input, then select waiting calls of the wave or ask the model for the next wave."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent._internal.failure_log import IN_HISTORY, log_traceback
from graph_agent.budgets import LimitMetError
from graph_agent.deps import AgentDeps, deps_of_run
from graph_agent.errors import SlowSchemaError, UserError
from graph_agent.events.calls import answered_ids
from graph_agent.events.types import event
from graph_agent.execution.usage_notes import note_used, used_before
from graph_agent.hooks.protocol import HookError
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.models.finish_reasons import cut_off
from graph_agent.planning.approvals import report_edits, start_calls
from graph_agent.planning.ask import PlanningError, RefusedError
from graph_agent.planning.handoff import apply_after_wave
from graph_agent.planning.hook_results import apply_hooks, comes_from_hooks, keep_answer, may_replan, request_model
from graph_agent.planning.hooked_requests import HookedRequests
from graph_agent.planning.loop_detection import mark_withheld, stop_repetition
from graph_agent.planning.plan_edits import apply_edits, continue_after_edit
from graph_agent.planning.reply import Planned, with_free_ids
from graph_agent.planning.requests import ModelRequests
from graph_agent.planning.structured_answer import replaced_answer_warning
from graph_agent.planning.summary import renew_summary, use_summary
from graph_agent.planning.update import PlanUpdate
from graph_agent.response_format import is_json
from graph_agent.runs.spending import work_left_s
from graph_agent.state.own_writes import collect_own_writes
from graph_agent.state.schema import LoopOutcome, PlanState
from graph_agent.tools.client import fault_further_client_calls
from graph_agent.types import NO_USAGE, StopReason
from graph_agent.waves.schema import Selection, select

logger = logging.getLogger(__name__)


async def plan_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps
) -> Command[Any]:
    """Plan one step.

    Returns:
        An update whose `ready` holds the calls to run; empty with an `outcome` when planning is over. It is a list of
        pairs because LangGraph's message stream would show the messages of a mapping, and a plan is not shown.
    """
    deps = deps_of_run(deps, runtime)
    update = PlanUpdate(state, deps, config, runtime)
    update.run.begin_step()
    if deps.hook_set and comes_from_hooks(update):
        return await plan_after_hooks(update)
    if state.get("arrived"):
        await apply_edits(update)
        apply_after_wave(update)
    elif not await continue_after_edit(update):
        await update.begin_input()
    if deps.hooks:
        await _count_killed_runs(update)
    # No user message may stand between the results of one wave.
    in_wave = bool(update.loop["waiting"] or update.waiting_delegations)
    steered = await update.receive_notes(["configure"] if in_wave else ["configure", "steer"])
    begins = not state.get("arrived") and update.loop["step"] == 0
    if state.get("arrived") and not steered and not update.run.aborted and update.answer_directly():
        return finished_plan(update)
    if (
        update.concluded
        or update.stop_at_abort_or_budget()
        or update.resend_waiting_delegations()
        or await update.continue_wave()
    ):
        await update.withdraw_waiting_delegations()
        return finished_plan(update, begins=begins)
    if state.get("arrived") and deps.config.approve is not None:
        report_edits(update)
    if state.get("arrived") and stop_repetition(update):
        return finished_plan(update)
    if (update.loop["last_wave"] and not steered) or not deps.plans:
        update.conclude({"stop_reason": "completed"})
    elif not update.stop_at_limit() and not deps.hook_set:
        await ask_before_deadline(update)
        while _can_be_steered(update) and await update.receive_notes(["configure", "steer"]):
            update.loop["outcome"] = None
            # Each of these plans counts towards the limits.
            if not update.stop_at_abort_or_budget() and not update.stop_at_limit():
                await ask_before_deadline(update)
    return finished_plan(update, begins=begins)


async def plan_after_hooks(update: PlanUpdate) -> Command[Any]:
    """Act on a reply of the model that hooks of middleware have seen."""
    apply_hooks(update)
    in_wave = bool(update.loop["waiting"])
    replaceable = not in_wave and (not update.concluded or may_replan(update))
    if await update.receive_notes(["configure", "steer"] if replaceable else ["configure"]):
        keep_answer(update)
    if update.concluded or (update.run.aborted and update.stop_at_abort_or_budget()) or await update.continue_wave():
        return finished_plan(update)
    if update.stop_at_abort_or_budget() or not update.deps.plans:
        if not update.concluded:
            update.conclude({"stop_reason": "completed"})
    else:
        update.stop_at_limit()
    return finished_plan(update)


def finished_plan(update: PlanUpdate, *, begins: bool = False) -> Command[Any]:
    """Return the node's update; `begins` for the first pass of an input."""
    if update.deps.hook_set:
        request_model(update, begins=begins, settings=update.settings)
    return Command(update=update.as_pairs())


async def _count_killed_runs(update: PlanUpdate) -> None:
    """Add the usage of runs that were killed between this plan's reply and a hook's rerun."""
    used = await used_before(update.config, update.runtime)
    if not used["model_calls"]:
        return
    update.count_usage(used)
    calls = used["model_calls"]
    message = f"A run that was cut off had made {calls} model call(s) for this plan, which count; it is planned anew."
    update.events.append(event("warning", update.loop["step"], message=message))


def _can_be_steered(update: PlanUpdate) -> bool:
    """Whether steering can still replace the plan: it ended planning without an answer, or with an unread answer.

    A hook's answer and a refusal cannot be replaced, nor can an answer when a limit forbids another plan.
    """
    outcome = update.loop["outcome"]
    if outcome is None or outcome["stop_reason"] != "completed":
        return False
    if "draft" not in outcome:
        return True
    limited = (
        update.limit_met
        or update.state["remaining_steps"] < update.steps_for_a_wave
        or update.budget_met(NO_USAGE, update.newest_reply)
    )
    return outcome["draft"] is update.direct_answer and "shown" not in outcome and not limited


async def ask_before_deadline(update: PlanUpdate) -> None:
    """Ask the model for the next wave, unless an abort or the deadline comes first."""
    if update.deps.toolbox.outdated:
        await update.deps.prepare()
    update.direct_answer = None
    with update.run.interruptible(work_left_s(update.run, update.loop, update.settings)) as scope:
        await _ask(update)
    if scope.cancelled_caught:
        reason: StopReason = "aborted" if update.run.aborted else "deadline"
        update.stop(reason, None if update.run.aborted else update.settings.deadline_s, cut_short=True)


async def _ask(update: PlanUpdate) -> None:
    """Ask the model for the next wave, and make its calls ready or end planning."""
    logger.info("Agentic iteration %d/%d", update.loop["step"] + 1, update.settings.max_steps)
    try:
        planned = await _request_plan(update)
    except RefusedError as refused:
        update.conclude({"stop_reason": "completed", "draft": refused.message, "unguarded": True})
        return
    except PlanningError as error:
        update.fail("planning", str(error), error)
        return
    except HookError as error:
        update.fail("hook", str(error), error)
        return
    except LimitMetError as met:
        update.stop(met.reason, met.limit)
        return
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a provider may raise anything; the outcome records the error
        logger.error("The planning request failed: %s", describe_model_error(error), extra=IN_HISTORY)
        log_traceback(logger, "The planning request", error)
        update.fail(classify_model_error(error), describe_model_error(error), error)
        return
    update.loop["step"] += 1
    update.events.append(planned.event(update.loop["step"]))
    update.newest_reply = planned.message
    update.loop["last_wave"] = planned.last
    if planned.ended and planned.calls:
        update.end_without_calls(planned.message, planned.calls, answers=planned.final)
    elif not planned.calls:
        logger.info("Final response received (no tool calls)")
        outcome: LoopOutcome = {"stop_reason": "completed"}
        if planned.final:
            outcome["draft"] = planned.message
        elif planned.answers and update.deps.may_answer_while_planning(update.settings):
            await _accept_answer(update, planned.message, outcome)
        elif planned.empty and update.deps.may_answer_while_planning(update.settings):
            outcome["empty"] = True
        update.conclude(outcome)
    elif update.state["remaining_steps"] < update.steps_for_a_wave:
        update.stop_at_recursion_limit()
    else:
        await _begin_wave(update, planned)


async def _accept_answer(update: PlanUpdate, reply: AIMessage, outcome: LoopOutcome) -> None:
    """Accept a planning reply as the answer; one that does not fit the response format is composed again."""
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
    logger.info("Executing %d tool call(s)", len(planned.calls))
    update.loop["waves"] += 1
    update.add_message(planned.message)
    # Only a structured plan's arguments hold references; elsewhere "${" is plain text.
    structured = update.deps.mode(update.settings) == "wave"
    calls = [mark_withheld(call, update.loop.get("withheld", ())) for call in planned.calls]
    if not update.deps.parallel_client_calls:
        calls = fault_further_client_calls(calls, update.deps.toolbox.client_tools)
    if update.deps.hook_set:
        # The hooks see the calls before they are announced and run.
        update.loop["waiting"], update.changes["ready"] = calls, []
        return
    chosen = select(calls, {}, ()) if structured else Selection(calls, [], [])
    update.loop["waiting"] = chosen.waiting
    await start_calls(update, calls, chosen)


async def _request_plan(update: PlanUpdate) -> Planned:
    """Request a plan, through the hooks if there are any, and record the usage and warnings of its requests."""
    deps = update.deps
    requests = await ModelRequests.open(
        deps, update.settings, update.history, update.loop, update.config, update.budget_met
    )
    try:
        stored, hooked = update.state.get("events", []), HookedRequests(requests, update.run.session_id)
        use_summary(requests, stored, update.events)
        # A summary must not quote what a hook hides from the model.
        await hooked.rewrite_results()
        await renew_summary(requests, stored, update.events)
        requests.active.warn_of_withheld_choice()
        with collect_own_writes(update.own_writes):
            if deps.hooks:
                planned = await hooked.plan(lambda usage: note_used(usage, update.config, update.runtime))
            else:
                planned = await requests.plan()
    finally:
        update.loop = {**requests.active.loop}
        update.streamed, update.cut_off = requests.stream, requests.cut_off
        update.events += requests.active.events
        update.count_usage(requests.usage)
    if deps.mode(update.settings) != "wave":
        return planned
    return with_free_ids(planned, answered_ids(update.state.get("events", [])), structured=True)
