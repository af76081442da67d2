"""`plan`: take in what is new, then find the next calls to run: those that waited, or what the model wants next."""

from __future__ import annotations

import logging
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent.asking import Asking
from graph_agent.config import LoopConfig
from graph_agent.errors import UserError
from graph_agent.events import StoredEvent, event
from graph_agent.intake import new_user_messages, rewrite
from graph_agent.limits import STEPS_FOR_A_WAVE, limit_met
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.parts import AgentParts
from graph_agent.planned import Planned, with_free_ids
from graph_agent.planning import PlanningError, RefusedError
from graph_agent.settlement import never_run, settle
from graph_agent.state import NOT_BEGUN, Bookkeeping, Outcome, PlanState, fresh
from graph_agent.telling import call_event, progress_of
from graph_agent.text import plain
from graph_agent.types import NO_USAGE, Call, SessionStatus, StopReason, Usage
from graph_agent.wave_results import answered_ids, failed_ids, results_of_wave
from graph_agent.waves import Selection, select

logger = logging.getLogger(__name__)


async def plan_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, parts: AgentParts
) -> Command[Any]:
    """Plan one step.

    Returns:
        An update whose `ready` holds the calls to run; empty with an `outcome` when planning is over. It is a list of
        pairs because LangGraph's message stream shows the messages of a mapping, and nothing of a plan belongs there.
    """
    settings = parts.settings(runtime)
    step = _Step(state, settings, runtime)
    if not state.get("arrived"):
        await step.take_input(parts, config)
    elif step.go_on_with_the_wave():
        return Command(update=step.update())
    if step.loop["last_wave"] or not parts.toolbox:
        step.conclude({"stop_reason": "completed"})
    elif met := limit_met(step.loop["step"], step.loop["turn"], state["remaining_steps"], settings):
        step.stop(*met)
    else:
        await step.ask(parts, config)
    return Command(update=step.update())


class _Step:
    """One pass through `plan`: what it reads, and the update it gathers."""

    def __init__(self, state: PlanState, settings: LoopConfig, runtime: Runtime[Any]) -> None:
        self.state = state
        self.settings = settings
        self.runtime = runtime
        self.history = state["messages"]
        self.loop: Bookkeeping = {**NOT_BEGUN, **state.get("loop", NOT_BEGUN)}
        self.events: list[StoredEvent] = []
        self.changes: dict[str, Any] = {}

    async def take_input(self, parts: AgentParts, config: RunnableConfig) -> None:
        """Settle what an earlier run left open, note the user's words, and start counting anew."""
        unstarted = {call["id"] for call in self.loop["waiting"]}
        settled, events = await settle(self.history, config, self.runtime, self.loop["step"], unstarted)
        if settled is not self.history:
            self.changes["messages"] = rewrite(self.history, settled)
            self.history = settled
        self.events += events
        self.loop = {**self.loop, "step": 0, "waves": 0, "outcome": None, "waiting": [], "last_wave": False}
        self.loop.pop("recovery", None)
        if users := new_user_messages(self.history, self.loop["last_input_id"]):
            self.events += [event("user_message", 0, content=plain(message.content)) for message in users]
            self.loop["last_input_id"] = users[-1].id or ""
        status = self.state.get("status", SessionStatus.CREATED.value)
        if status != SessionStatus.RUNNING:
            self.events.append(event("status", 0, **{"from": status, "to": SessionStatus.RUNNING.value}))
        self.events += [event("warning", 0, message=warning) for warning in parts.warnings]
        self.changes |= {
            "status": SessionStatus.RUNNING.value,
            "stop_reason": None,
            "structured_response": None,
            "usage": fresh(NO_USAGE),
        }

    def go_on_with_the_wave(self) -> bool:
        """Make ready those of the wave's waiting calls that can run now; False when there are none."""
        if not self.loop["waiting"]:
            return False
        told = self.state["events"]
        chosen = select(self.loop["waiting"], results_of_wave(told), failed_ids(told))
        self._skip(chosen.skipped)
        self.loop["waiting"] = chosen.waiting
        if not chosen.ready:
            return False
        if self.state["remaining_steps"] < STEPS_FOR_A_WAVE:
            reason = "Not run: the limit was reached before its turn came."
            self._skip([(call, reason) for call in [*chosen.ready, *chosen.waiting]])
            self.loop["waiting"] = []
            self.stop("step_limit", self.loop["step"])
        else:
            self._make_ready(chosen.ready)
        return True

    async def ask(self, parts: AgentParts, config: RunnableConfig) -> None:
        """Ask the model for the next wave, and make ready what it wants."""
        logger.info("Agentic iteration %d/%d", self.loop["step"] + 1, self.settings.max_steps)
        try:
            planned = await self._planned(parts, config)
        except RefusedError as refused:
            self.conclude({"stop_reason": "completed", "draft": refused.message})
            return
        except PlanningError as error:
            self.fail("planning", str(error))
            return
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; the outcome says what
            logger.error("The planning request failed: %s", describe_model_error(error))
            self.fail(classify_model_error(error), describe_model_error(error))
            return
        self.loop["step"] += 1
        self.events.append(planned.event(self.loop["step"]))
        self.loop["last_wave"] = planned.last
        if not planned.calls:
            logger.info("Final response received (no tool calls)")
            outcome: Outcome = {"stop_reason": "completed"}
            if parts.answers_directly(self.settings):
                outcome["draft"] = planned.message
            self.conclude(outcome)
        elif self.state["remaining_steps"] < STEPS_FOR_A_WAVE:
            self.stop("step_limit", self.loop["step"])
        else:
            logger.info("Executing %d tool call(s)", len(planned.calls))
            self.loop["waves"] += 1
            self._say(planned.message)
            # Only a structured plan's arguments hold references; elsewhere "${" is the model's own text.
            structured = parts.mode(self.settings) == "wave"
            chosen = select(planned.calls, {}, ()) if structured else Selection(planned.calls, [], [])
            self.loop["waiting"] = chosen.waiting
            self._make_ready(chosen.ready)

    async def _planned(self, parts: AgentParts, config: RunnableConfig) -> Planned:
        asking = await Asking.begin(parts, self.settings, self.history, self.loop, config)
        try:
            planned = await asking.plan()
        finally:
            self.loop = {**asking.loop}
            self.events += asking.events
            self._count(asking.usage)
        if parts.mode(self.settings) != "wave":
            return planned
        return with_free_ids(planned, answered_ids(self.state.get("events", [])))

    def _make_ready(self, calls: list[Call]) -> None:
        self.changes["ready"] = calls
        for call in calls:
            self.events.append(call_event(call, self.loop["step"]))
            self.runtime.stream_writer(progress_of(call, self.loop["step"]))

    def _skip(self, calls: list[tuple[Call, str]]) -> None:
        for call, reason in calls:
            message, told = never_run(call["id"], call["name"], reason, self.loop["step"])
            self._say(message)
            self.history = [*self.history, message]
            self.events.append(told)

    def _say(self, message: Any) -> None:
        self.changes["messages"] = [*self.changes.get("messages", []), message]

    def _count(self, usage: Usage) -> None:
        self.loop["turn"] += usage["model_calls"]
        self.changes["usage"] = fresh(usage) if "usage" in self.changes else usage

    def stop(self, reason: StopReason, limit: float) -> None:
        """End planning at a limit."""
        logger.warning("Max agentic iterations reached without final response")
        self.events.append(event("limit", self.loop["step"], reason=reason, limit=limit))
        self.conclude({"stop_reason": reason, "limit": limit})

    def fail(self, kind: str, message: str) -> None:
        """End planning because no plan can be had."""
        self.events.append(event("error", self.loop["step"], kind=kind, message=message))
        self.conclude({"stop_reason": "failed"})

    def conclude(self, outcome: Outcome) -> None:
        """End planning."""
        self.changes["ready"] = []
        self.loop["outcome"] = outcome

    def update(self) -> list[tuple[str, Any]]:
        """Everything gathered."""
        return [*self.changes.items(), ("loop", self.loop), ("events", self.events)]
