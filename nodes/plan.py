"""`plan`: take in what is new, then find the next calls to run: those that waited, or what the model wants next."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent._internal.failure_log import log_traceback
from graph_agent.budgets import STEPS_FOR_A_WAVE, LimitMetError
from graph_agent.deps import AgentParts, parts_of_run
from graph_agent.errors import SlowSchemaError, UserError
from graph_agent.events.queries import answered_ids
from graph_agent.events.types import IN_HISTORY, event
from graph_agent.execution.usage_notes import note_used, used_before
from graph_agent.hooks.protocol import HookError
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.models.finish_reasons import cut_off
from graph_agent.planning.ask import PlanningError, RefusedError
from graph_agent.planning.hooked_requests import HookedRequests
from graph_agent.planning.loop_response import refused, stop_repetition
from graph_agent.planning.plan_edits import go_on_after_edit, take_edits
from graph_agent.planning.reply import Planned, with_free_ids
from graph_agent.planning.requests import ModelRequests
from graph_agent.planning.structured_answer import replaced_answer
from graph_agent.planning.update import Step
from graph_agent.response_format import is_json
from graph_agent.runs.spending import work_left_s
from graph_agent.state.schema import Outcome, PlanState
from graph_agent.tools.client import one_at_a_time
from graph_agent.types import NO_USAGE, StopReason
from graph_agent.waves.schema import Selection, select

logger = logging.getLogger(__name__)


async def plan_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, parts: AgentParts
) -> Command[Any]:
    """Plan one step.

    Returns:
        An update whose `ready` holds the calls to run; empty with an `outcome` when planning is over. It is a list of
        pairs because LangGraph's message stream shows the messages of a mapping, and nothing of a plan belongs there.
    """
    parts = parts_of_run(parts, runtime)
    step = Step(state, parts, config, runtime)
    if state.get("arrived"):
        await take_edits(step)
    elif not await go_on_after_edit(step):
        await step.take_input()
    if parts.hooks:
        await _count_runs_before(step)
    # Between the results of one wave nobody's words may stand.
    within = bool(step.loop["waiting"] or step.asking)
    steered = await step.listen(["configure"] if within else ["configure", "steer"])
    if state.get("arrived") and not steered and not step.run.aborted and step.answer_directly():
        return Command(update=step.update())
    if step.concluded or step.cut_short() or step.send_again() or step.go_on_with_the_wave():
        await step.withdraw_unanswered()
        return Command(update=step.update())
    if state.get("arrived") and stop_repetition(step):
        return Command(update=step.update())
    if (step.loop["last_wave"] and not steered) or not parts.plans:
        step.conclude({"stop_reason": "completed"})
    elif not step.at_limit():
        await _ask_in_time(step)
        while _can_be_steered(step) and await step.listen(["configure", "steer"]):
            step.loop["outcome"] = None
            # Each of these plans is one more, whatever made it due.
            if not step.cut_short() and not step.at_limit():
                await _ask_in_time(step)
    return Command(update=step.update())


async def _count_runs_before(step: Step) -> None:
    """Count what a run used that was killed between this very plan's reply and the rerun that a hook wanted."""
    used = await used_before(step.config, step.runtime)
    if not used["model_calls"]:
        return
    step.count(used)
    calls = used["model_calls"]
    told = f"A run that was cut off had made {calls} model call(s) for this plan, which count; it is planned anew."
    step.events.append(event("warning", step.loop["step"], message=told))


def _can_be_steered(step: Step) -> bool:
    """Whether the plan was that nothing more is to be done, or was an answer that nobody has read yet.

    What a hook answers, and a refusal, stand as they are; so does an answer that no other can replace at a limit.
    """
    outcome = step.loop["outcome"]
    if outcome is None or outcome["stop_reason"] != "completed":
        return False
    if "draft" not in outcome:
        return True
    limited = (
        step.limit_met
        or step.state["remaining_steps"] < STEPS_FOR_A_WAVE
        or step.budget_met(NO_USAGE, step.newest_reply)
    )
    return outcome["draft"] is step.direct_answer and "shown" not in outcome and not limited


async def _ask_in_time(step: Step) -> None:
    """Ask the model for the next wave, unless an abort or the deadline comes first."""
    if step.parts.toolbox.outdated:
        await step.parts.prepare()
    step.direct_answer = None
    with step.run.interruptible(work_left_s(step.run, step.loop, step.settings)) as scope:
        await _ask(step)
    if scope.cancelled_caught:
        reason: StopReason = "aborted" if step.run.aborted else "deadline"
        step.stop(reason, None if step.run.aborted else step.settings.deadline_s, cut_short=True)


async def _ask(step: Step) -> None:
    """Ask the model for the next wave, and make ready what it wants."""
    logger.info("Agentic iteration %d/%d", step.loop["step"] + 1, step.settings.max_steps)
    try:
        planned = await _planned(step)
    except RefusedError as refused:
        step.conclude({"stop_reason": "completed", "draft": refused.message, "unguarded": True})
        return
    except PlanningError as error:
        step.fail("planning", str(error), error)
        return
    except HookError as error:
        step.fail("hook", str(error), error)
        return
    except LimitMetError as met:
        step.stop(met.reason, met.limit)
        return
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a provider may raise anything; the outcome says what
        logger.error("The planning request failed: %s", describe_model_error(error), extra=IN_HISTORY)
        log_traceback(logger, "The planning request", error)
        step.fail(classify_model_error(error), describe_model_error(error), error)
        return
    step.loop["step"] += 1
    step.events.append(planned.event(step.loop["step"]))
    step.newest_reply = planned.message
    step.loop["last_wave"] = planned.last
    if planned.ended and planned.calls:
        step.end_unrun(planned.message, planned.calls, answers=planned.final)
    elif not planned.calls:
        logger.info("Final response received (no tool calls)")
        outcome: Outcome = {"stop_reason": "completed"}
        if planned.final:
            outcome["draft"] = planned.message
        elif planned.answers and step.parts.may_answer_while_planning(step.settings):
            await _take_answer(step, planned.message, outcome)
        elif planned.empty and step.parts.may_answer_while_planning(step.settings):
            outcome["empty"] = True
        step.conclude(outcome)
    elif step.state["remaining_steps"] < STEPS_FOR_A_WAVE:
        step.stop_at_recursion_limit()
    else:
        _begin_wave(step, planned)


async def _take_answer(step: Step, reply: AIMessage, outcome: Outcome) -> None:
    """Take a planning reply for the answer, unless it does not fit the response format: then one is composed."""
    if step.parts.response is not None:
        try:
            if cut_off(reply) is not None and not is_json(reply.text):
                raise ValueError("The reply was cut off.")
            await asyncio.to_thread(step.parts.response.read, reply.text)
        except (ValueError, SlowSchemaError) as fault:
            if step.streamed is not None and step.streamed.text:
                outcome["unfit"] = True
                step.events.append(event("warning", step.loop["step"], message=replaced_answer(str(fault))))
            return
    step.direct_answer = outcome["draft"] = reply
    if step.streamed is not None and step.streamed.text:
        outcome["shown"] = True


def _begin_wave(step: Step, planned: Planned) -> None:
    logger.info("Executing %d tool call(s)", len(planned.calls))
    step.loop["waves"] += 1
    step.say(planned.message)
    # Only a structured plan's arguments hold references; elsewhere "${" is the model's own text.
    structured = step.parts.mode(step.settings) == "wave"
    calls = [refused(call, step.loop.get("withheld", ())) for call in planned.calls]
    if not step.parts.parallel_client_calls:
        calls = one_at_a_time(calls, step.parts.toolbox.client_tools)
    chosen = select(calls, {}, ()) if structured else Selection(calls, [], [])
    step.loop["waiting"] = chosen.waiting
    step.make_ready(chosen.ready)


async def _planned(step: Step) -> Planned:
    parts = step.parts
    requests = await ModelRequests.open(parts, step.settings, step.history, step.loop, step.config, step.budget_met)
    try:
        requests.warn_of_withheld_choice()
        if parts.hooks or parts.rewriters:
            hooked = HookedRequests(requests, step.run.session_id)
            planned = await hooked.plan(lambda usage: note_used(usage, step.config, step.runtime))
        else:
            planned = await requests.plan()
    finally:
        step.loop = {**requests.active.loop}
        step.streamed, step.cut_off = requests.stream, requests.cut_off
        step.events += requests.active.events
        step.count(requests.usage)
    if step.parts.mode(step.settings) != "wave":
        return planned
    return with_free_ids(planned, answered_ids(step.state.get("events", [])), structured=True)
