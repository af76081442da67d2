"""`plan`: take in what is new, then ask the model for the next wave of calls, or find that there is none to make."""

from __future__ import annotations

import logging
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent.config import LoopConfig
from graph_agent.context import effective_config
from graph_agent.delegation import CALL_PREFIX
from graph_agent.events import StoredEvent, event
from graph_agent.intake import new_user_messages, rewrite
from graph_agent.limits import STEPS_FOR_A_WAVE, limit_met
from graph_agent.models.capabilities import rejects_tools
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.parts import AgentParts
from graph_agent.planned import Planned, read_reply
from graph_agent.request import plan_request
from graph_agent.settlement import settle
from graph_agent.state import NOT_BEGUN, Bookkeeping, Outcome, PlanState, fresh
from graph_agent.types import NO_USAGE, Call, SessionStatus, StopReason

logger = logging.getLogger(__name__)


async def plan_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, parts: AgentParts
) -> Command[Any]:
    """Plan one step.

    Returns:
        An update whose `ready` holds the calls to run; empty with an `outcome` when planning is over. It is a list of
        pairs because LangGraph's message stream shows the messages of a mapping, and nothing of a plan belongs there.
    """
    settings = effective_config(parts.config, runtime.context)
    step = _Step(state, settings)
    if not state.get("arrived"):
        await step.take_input(parts, config, runtime)
    if not parts.toolbox:
        step.conclude({"stop_reason": "completed"})
    elif met := limit_met(step.loop["step"], step.loop["turn"], state["remaining_steps"], settings):
        step.stop(*met)
    else:
        await step.ask(parts, runtime)
    return Command(update=step.update())


class _Step:
    """One pass through `plan`: what it reads, and the update it gathers."""

    def __init__(self, state: PlanState, settings: LoopConfig) -> None:
        self.state = state
        self.settings = settings
        self.history = state["messages"]
        self.loop: Bookkeeping = {**state.get("loop", NOT_BEGUN)}
        self.events: list[StoredEvent] = []
        self.changes: dict[str, Any] = {}

    async def take_input(self, parts: AgentParts, config: RunnableConfig, runtime: Runtime[Any]) -> None:
        """Settle what an earlier run left open, note the user's words, and start counting anew."""
        settled, events = await settle(self.history, config, runtime, self.loop["step"])
        if settled is not self.history:
            self.changes["messages"] = rewrite(self.history, settled)
            self.history = settled
        self.events += events
        self.loop = {**self.loop, "step": 0, "waves": 0, "outcome": None}
        if users := new_user_messages(self.history, self.loop["last_input_id"]):
            self.events += [event("user_message", 0, content=message.content) for message in users]
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

    async def ask(self, parts: AgentParts, runtime: Runtime[Any]) -> None:
        """Ask the model for the next wave, and make ready what it wants."""
        logger.info("Agentic iteration %d/%d", self.loop["step"] + 1, self.settings.max_steps)
        try:
            reply = await self._reply(parts)
        except Exception as error:
            logger.debug("The planning request failed", exc_info=True)
            self.fail(classify_model_error(error), describe_model_error(error))
            return
        planned = read_reply(reply, parts.toolbox.names, text=self._in_text(parts))
        self.loop["step"] += 1
        self.loop["turn"] += 1
        usage = fresh(planned.usage) if "usage" in self.changes else planned.usage
        self.changes["usage"] = usage
        self.events.append(planned.event(self.loop["step"]))
        if not planned.calls:
            logger.info("Final response received (no tool calls)")
            draft = {"draft": planned.message} if self.settings.finalize == "direct" else {}
            self.conclude({"stop_reason": "completed", **draft})  # type: ignore[typeddict-item]  # a literal union of two
        elif self.state["remaining_steps"] < STEPS_FOR_A_WAVE:
            self.stop("step_limit", self.loop["step"])
        else:
            self._make_ready(planned, runtime)

    def _make_ready(self, planned: Planned, runtime: Runtime[Any]) -> None:
        logger.info("Executing %d tool call(s)", len(planned.calls))
        self.loop["waves"] += 1
        self.changes["messages"] = [*self.changes.get("messages", []), planned.message]
        self.changes["ready"] = planned.calls
        for call in planned.calls:
            self.events.append(_call_event(call, self.loop["step"]))
            runtime.stream_writer(_progress(call, self.loop["step"]))

    async def _reply(self, parts: AgentParts) -> AIMessage:
        text = self._in_text(parts)
        # Prose before calls is plan text in direct mode; the JSON of calls in text is nobody's answer.
        quiet = text or self.settings.finalize == "compose"
        request = plan_request(parts, self.history, self.settings, text=text)
        try:
            return await parts.client.plan(request, self.settings, text=text, quiet=quiet)
        except Exception as error:
            if text or not rejects_tools(error):
                raise
            self.loop["text_tools"] = True
            warning = (
                f"The model takes no tools ({describe_model_error(error)}); calls are asked for in text from now on."
            )
            self.events.append(event("warning", self.loop["step"], message=warning))
            logger.warning("%s", warning)
        request = plan_request(parts, self.history, self.settings, text=True)
        return await parts.client.plan(request, self.settings, text=True, quiet=True)

    def _in_text(self, parts: AgentParts) -> bool:
        return self.loop["text_tools"] or parts.in_text(self.settings)

    def stop(self, reason: StopReason, limit: float) -> None:
        """End planning at a limit."""
        logger.warning("Max agentic iterations reached without final response")
        self.events.append(event("limit", self.loop["step"], reason=reason, limit=limit))
        self.conclude({"stop_reason": reason, "limit": limit})

    def fail(self, kind: str, message: str) -> None:
        """End planning because the model cannot be had."""
        self.events.append(event("error", self.loop["step"], kind=kind, message=message))
        self.conclude({"stop_reason": "failed", "error": message})

    def conclude(self, outcome: Outcome) -> None:
        """End planning."""
        self.changes["ready"] = []
        self.loop["outcome"] = outcome

    def update(self) -> list[tuple[str, Any]]:
        """Everything gathered."""
        return [*self.changes.items(), ("loop", self.loop), ("events", self.events)]


def _call_event(call: Call, step: int) -> StoredEvent:
    if call["name"].startswith(CALL_PREFIX):
        task = str(call["arguments"].get("task", ""))
        return event(
            "delegation_request", step, id=call["id"], target=call["name"].removeprefix(CALL_PREFIX), task=task
        )
    return event("tool_call", step, id=call["id"], name=call["name"], arguments=call["arguments"])


def _progress(call: Call, step: int) -> dict[str, Any]:
    if call["name"].startswith(CALL_PREFIX):
        target = call["name"].removeprefix(CALL_PREFIX)
        return {"type": "progress", "step": step, "action": "delegate", "target": target}
    return {"type": "progress", "step": step, "action": "tool_call", "target": call["name"]}
