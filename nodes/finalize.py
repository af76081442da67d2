"""`finalize`: turn what was gathered into the answer, stream it, and close the input."""

from __future__ import annotations

import logging
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent.account import account
from graph_agent.budget import exhausted, has_budget
from graph_agent.config import LoopConfig, Planner
from graph_agent.errors import UserError
from graph_agent.events import StoredEvent, event
from graph_agent.limits import STEPS_FOR_A_WAVE
from graph_agent.listening import listen
from graph_agent.models.client import Mode
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.models.retry import Spoken
from graph_agent.parts import AgentParts
from graph_agent.planned import usage_of
from graph_agent.request import answer_request
from graph_agent.rollout import planner_of
from graph_agent.run_parts import parts_of_run
from graph_agent.runs import run_of
from graph_agent.spending import answer_left_s, spent
from graph_agent.state import Bookkeeping, Outcome, PlanState, add_usage
from graph_agent.status import status_event
from graph_agent.types import NO_USAGE, STATUS_OF, StopReason, Usage

logger = logging.getLogger(__name__)

_IN_WORDS = "No tool can be called any more. Answer in words, from what you know."

REPAIRS = 2
"""Times an answer that does not fit its schema is sent back."""


async def finalize_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, parts: AgentParts
) -> dict[str, Any] | Command[Any]:
    """Answer, by a streamed model call where the plan gave no answer itself.

    Returns:
        An update with the answer, its event and the session's status. A failed model leaves the status `FAILED` and an
        `error` event, and no message: nothing was said. Where the user has something to follow up with, the update
        holds it behind the answer and leads back to `plan`, as new input in the same run.
    """
    parts = parts_of_run(parts, runtime)
    answering = _Answering(state, parts.settings(runtime, config, state["loop"]), parts, config)
    await answering.run()
    if not await answering.follow_up():
        return answering.update()
    return Command(update=answering.update(), goto="plan")


class _Answering:
    """One pass through `finalize`: what it reads, and the update it gathers."""

    def __init__(self, state: PlanState, settings: LoopConfig, parts: AgentParts, config: RunnableConfig) -> None:
        self.loop: Bookkeeping = {**state["loop"]}
        self.under_way = run_of(config)
        self.spoken = Spoken()
        self.followed_by: list[HumanMessage] = []
        outcome: Outcome = self.loop["outcome"] or {"stop_reason": "completed"}
        self.state = state
        self.settings = settings
        self.parts = parts
        self.outcome: Outcome = outcome
        self.reason: StopReason = outcome["stop_reason"]
        self.step = self.loop["step"]
        mode = parts.mode(settings)
        self.mode: Mode = "text" if mode == "native" and self.loop["text_tools"] else mode
        self.planner: Planner = planner_of(config["configurable"].get("thread_id", ""), settings, parts.agentic_loop)
        self.answer: AIMessage | None = None
        self.structured: Any = None
        self.usage: Usage = NO_USAGE
        self.events: list[StoredEvent] = []

    async def run(self) -> None:
        """Find the answer."""
        if self.reason == "failed":
            return
        draft = self.outcome.get("draft")
        if draft is not None:
            self.answer = draft
            return
        unaffordable = self._exhausted()
        sentence = self._sentence()
        if sentence and self.settings.on_limit == "message":
            self.answer = AIMessage(sentence)
            return
        if unaffordable or self.reason == "aborted":
            self.answer = AIMessage(self._with_account(sentence))
            return
        with self.under_way.interruptible(answer_left_s(self.under_way, self.loop, self.settings)) as scope:
            await self._ask(sentence)
        if scope.cancelled_caught:
            self._cut_short()

    async def _ask(self, sentence: str) -> None:
        try:
            await (self._structured(sentence) if self.parts.response else self._compose(sentence))
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; the outcome says what
            logger.error("The request for the answer failed: %s", describe_model_error(error))
            self._fail(classify_model_error(error), describe_model_error(error))
            if sentence:
                self.answer = AIMessage(sentence)
        if sentence:
            # The limit is what ended this input, whatever became of the answer.
            self.reason = self.outcome["stop_reason"]

    async def _compose(self, sentence: str) -> None:
        request = answer_request(self.parts, self.state["messages"], self.settings, self.mode, self.planner)
        client = self.parts.client
        failure: Exception | None = None
        if sentence:
            self.answer, failure = await client.answer_after(
                sentence, request, self.settings, mode=self.mode, spoken=self.spoken
            )
        else:
            self.answer = await client.answer(request, self.settings, mode=self.mode, quiet=False, spoken=self.spoken)
            if not self.answer.text.strip() and self.parts.toolbox:
                # It called a tool all the same, and that call was left out.
                self.usage = usage_of(self.answer, self.settings.prices)
                request = [*request, HumanMessage(_IN_WORDS)]
                self.answer = await client.answer(
                    request, self.settings, mode=self.mode, quiet=False, spoken=self.spoken
                )
        if isinstance(failure, UserError):
            raise failure
        if failure is not None:
            self._fail(classify_model_error(failure), describe_model_error(failure))
        self.usage = add_usage(self.usage, usage_of(self.answer, self.settings.prices))

    async def _structured(self, sentence: str) -> None:
        """Ask for an answer that fits the schema. Its tries are not streamed: only one of them is the answer."""
        assert self.parts.response is not None
        request = answer_request(self.parts, self.state["messages"], self.settings, self.mode, self.planner)
        fault = ""
        for _ in range(1 + REPAIRS):
            reply = await self.parts.client.answer(
                request, self.settings, mode=self.mode, quiet=True, schema=self.parts.response.json_schema
            )
            self.usage = add_usage(self.usage, usage_of(reply, self.settings.prices))
            self.answer = reply
            try:
                self.structured = self.parts.response.read(reply.text)
            except ValueError as error:
                fault = str(error)
                told = HumanMessage(f"That does not fit: {fault} Send the corrected object.")
                request = [*request, reply, told]
            else:
                break
        else:
            times = f"{REPAIRS} repairs"
            self._fail("response_format", f"The answer did not fit the response format after {times}: {fault}")
        if sentence and self.answer is not None:
            self.answer = AIMessage(f"{sentence}\n\n{self.answer.text}", id=self.answer.id)

    def _sentence(self) -> str:
        if self.reason == "completed":
            return ""
        return self.parts.prompts.render("limit", reason=self.reason, limit=self.outcome.get("limit"))

    def _with_account(self, sentence: str) -> str:
        """A sentence with what was done below it, for an answer that no model gives."""
        done = self.parts.prompts.render("account", **account(self.state["events"]))
        return f"{sentence}\n\n{done}" if done else sentence

    def _exhausted(self) -> bool:
        """Whether a budget has nothing left for a model call; it is what stopped the input then, if nothing else has."""
        if not has_budget(self.settings):
            return False
        used = spent(self.under_way, self.loop, self.state["usage"], self.state["messages"], self.settings)
        met = exhausted(used, self.settings)
        if met is not None and self.reason == "completed":
            self._stop(*met)
        return met is not None

    def _stop(self, reason: StopReason, limit: float) -> None:
        self.reason = reason
        self.outcome = {"stop_reason": reason, "limit": limit}
        self.events.append(event("limit", self.step, reason=reason, limit=limit))

    def _cut_short(self) -> None:
        """Keep what has reached the reader of an answer that an abort or the deadline ended."""
        if self.under_way.aborted:
            self.reason = "aborted"
            self.outcome = {"stop_reason": "aborted"}
        elif self.reason == "completed":
            self._stop("deadline", self.settings.deadline_s or 0.0)
        sentence = self._sentence()
        said = self.spoken.text
        if said and not said.startswith(sentence):
            sentence = f"{said}\n\n{sentence}"
        elif said:
            sentence = said
        else:
            sentence = self._with_account(sentence)
        self.answer = AIMessage(sentence, id=self.spoken.id)
        self.structured = None

    async def follow_up(self) -> bool:
        """Take in what the user has queued behind this answer; False when there is nothing, or no answer to follow."""
        if self.answer is None or self.reason in ("failed", "aborted"):
            return False
        if self.state["remaining_steps"] < STEPS_FOR_A_WAVE:
            return False
        heard = await listen(self.under_way, self.loop, ["follow_up"], self.step)
        self.followed_by = heard.messages
        return bool(self.followed_by)

    def _fail(self, kind: str, message: str) -> None:
        self.reason = "failed"
        self.events.append(event("error", self.step, kind=kind, message=message))

    def update(self) -> dict[str, Any]:
        """Everything gathered."""
        status = STATUS_OF[self.reason].value
        if self.answer is not None:
            self.events.append(event("agent_response", self.step, content=self.answer.content))
        self.events.append(status_event(self.state["status"], status, self.step))
        said: list[AnyMessage] = [self.answer] if self.answer is not None else []
        return {
            **({"messages": [*said, *self.followed_by]} if said else {}),
            "events": self.events,
            "status": status,
            "stop_reason": self.reason,
            "structured_response": self.structured,
            "loop": {**self.loop, "outcome": None},
            "usage": self.usage,
        }
