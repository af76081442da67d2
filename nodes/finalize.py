"""The `finalize` node: compose and stream the answer, and close the input."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent._internal.failure_log import IN_HISTORY, log_traceback
from graph_agent.budgets import STEPS_FOR_A_WAVE, LimitMet, LimitMetError, budget_met, exhausted, has_budget, limit_met
from graph_agent.config import LoopConfig
from graph_agent.deps import AgentDeps, deps_of_run
from graph_agent.errors import SlowSchemaError, UserError
from graph_agent.events.calls import account
from graph_agent.events.types import StoredEvent, event
from graph_agent.hooks.protocol import HookError
from graph_agent.models.cleaning import with_text
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.models.finish_reasons import cut_off, cut_off_warning
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.usage import add_usage
from graph_agent.models.visibility import has_no_answer, is_blank
from graph_agent.planning.ask import RefusedError
from graph_agent.planning.failure_account import failure_account
from graph_agent.planning.handoff import handoff_command
from graph_agent.planning.hook_results import composed_answer, stream_unshown
from graph_agent.planning.hooked_requests import HookedRequests
from graph_agent.planning.requests import ModelRequests
from graph_agent.planning.structured_answer import EMPTY_ANSWER, ask_for_structure
from graph_agent.planning.summary import renew_summary, use_summary
from graph_agent.runs.notes import ReceivedNotes, listen
from graph_agent.runs.run import run_of
from graph_agent.runs.spending import answer_left_s, spent
from graph_agent.state.channels import status_event
from graph_agent.state.messages import after_sentence, failure_error, failure_message, stream_rest
from graph_agent.state.schema import Bookkeeping, LoopOutcome, PlanState
from graph_agent.types import NO_USAGE, STATUS_OF, CutOff, StopReason, Usage

logger = logging.getLogger(__name__)
_EMPTY = "The model's answer was empty, and so was the answer to a second request."


async def finalize_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps
) -> dict[str, Any] | Command[Any]:
    """Answer the input, with a streamed model call if planning gave no answer.

    Returns:
        An update with the answer, its event and the session's status. If a model failed: status `FAILED`, an `error`
        event, and a message with the failure. Back to `plan` if an edit left no call to run, or the user steered.
    """
    if "loop" not in state or state["loop"]["outcome"] is None:
        return Command(goto="plan")
    if (leaving := handoff_command(state)) is not None:
        return leaving
    deps = deps_of_run(deps, runtime)
    answer = AnswerUpdate(state, deps.settings(runtime, config, state["loop"]), deps, config)
    await answer.run()
    if await answer.receive_steering():
        return Command(update=answer.update_for_next_plan(), goto="plan")
    return answer.update()


class AnswerUpdate:
    """The input of one pass through `finalize`, and the state update that the pass builds."""

    def __init__(self, state: PlanState, settings: LoopConfig, deps: AgentDeps, config: RunnableConfig) -> None:
        self.loop: Bookkeeping = {**state["loop"]}
        self.active_run = run_of(config)
        self.steering = ReceivedNotes()
        self.state = state
        self.settings = settings
        self.deps = deps
        self.outcome: LoopOutcome = self.loop["outcome"] or {"stop_reason": "completed"}
        self.reason: StopReason = self.outcome["stop_reason"]
        self.step = self.loop["step"]
        self.config = config
        self.requests: ModelRequests | None = None
        self.answer: AIMessage | None = None
        self.partial = AIMessage("")
        """The streamed part of an answer that failed."""
        self.error: StoredEvent | None = None
        """The `error` event; None without a failure."""
        self.structured: Any = None
        self.usage: Usage = NO_USAGE
        self.truncated: CutOff | None = None
        self.events: list[StoredEvent] = []

    async def run(self) -> None:
        """Produce the answer, or report the failure."""
        await self.produce()
        if self.error is not None:
            self._report_failure(self.error)
        elif self.answer is not None:
            self._record_cut_off(self.answer)

    async def produce(self) -> None:
        """Produce the answer, or the error that prevented it."""
        draft = self.outcome.get("draft")
        if self.reason == "failed" or "failed" in self.outcome:
            self.partial = draft or self.partial
            self.error = next(entry for entry in reversed(self.state["events"]) if entry["type"] == "error")
            return
        kept = composed_answer(self.outcome, self.state["messages"]) or (draft if self.reason == "completed" else None)
        if kept is not None:
            await self._accept_draft(kept)
            stream_unshown(self.answer, self.outcome)
            return
        if draft is not None:
            # The reader has received this beginning of an answer.
            self.answer = draft.model_copy(update={"content": f"{draft.text}\n\n{self._sentence()}"})
            return
        exhausted, sentence = self._is_exhausted(), self._sentence()
        if sentence and self.settings.on_limit == "message":
            self.answer = AIMessage(sentence)
            return
        if exhausted or self.reason == "aborted":
            self.answer = AIMessage(self._with_account(sentence))
            return
        await self._send_before_deadline(self._compose_structured if self.deps.response else self._compose, sentence)

    async def _accept_draft(self, draft: AIMessage) -> None:
        """Use the answer of planning; hooks and middleware see it first if they have not."""
        self.answer = draft
        if self.outcome.get("unguarded") and self.deps.guarded:

            async def guard(requests: ModelRequests, sentence: str) -> None:
                self.answer = await self._guarded(requests, await requests.guarded(draft))

            await self._send_before_deadline(guard, "")
        await self._read_structured()

    async def _read_structured(self) -> None:
        if self.deps.response is not None and self.answer is not None:
            # The code that produced the answer has reported a misfit.
            with contextlib.suppress(ValueError, SlowSchemaError):
                self.structured = await asyncio.to_thread(self.deps.response.read, self.answer.text)

    async def _send_before_deadline(self, work: Callable[[ModelRequests, str], Awaitable[None]], sentence: str) -> None:
        """Do work that sends requests, unless an abort or the deadline cancels it."""
        with self.active_run.interruptible(answer_left_s(self.active_run, self.loop, self.settings)) as scope:
            await self._send(work, sentence)
        if scope.cancelled_caught:
            self._cut_short()

    async def _send(self, work: Callable[[ModelRequests, str], Awaitable[None]], sentence: str) -> None:
        # At a limit, hooks get no rerun.
        limit: LimitMet | None = (self.reason, self.outcome.get("limit", 0)) if sentence else None
        history, check = self.state["messages"], lambda used, newest: limit or self._budget_met(used, newest)
        requests = await ModelRequests.open(self.deps, self.settings, history, self.loop, self.config, check)
        self.requests, self.answer = requests, None
        try:
            use_summary(requests, self.state["events"])
            await HookedRequests(requests, self.active_run.session_id).rewrite_results()
            await renew_summary(requests, self.state["events"], allowed=not sentence)
            await work(requests, sentence)
        except UserError:
            raise
        except RefusedError as refused:
            self.answer = after_sentence(sentence, refused.message)
        except HookError as error:
            self.active_run.cause = error
            self._fail("hook", str(error))
        except LimitMetError as met:
            self._stop(met.reason, met.limit)
            self.answer = AIMessage(self._with_account(self._sentence()))
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; the outcome records the error
            self._fail_with(error)
            self.partial = AIMessage(sentence or requests.stream.text, id=requests.stream.id)
        finally:
            self.loop, self.usage = {**requests.active.loop}, requests.usage
            self.events[:0] = requests.active.events
        if sentence:
            # The limit ended this input, whether or not the answer was composed.
            self.reason = self.outcome["stop_reason"]

    async def _compose(self, requests: ModelRequests, sentence: str) -> None:
        id_, streamed, hint = None, "", self._hint()
        if sentence and not self.deps.guarded:
            message, failure = await requests.answer_after(sentence, hint)
            if isinstance(failure, UserError):
                raise failure
            if failure is not None:
                self._fail_with(failure)
                self.partial = message
                return
            if not has_no_answer(message.text.removeprefix(sentence).removesuffix(hint)):
                self.answer = message
                return
            reply, id_, streamed = AIMessage(""), message.id, requests.stream.text
            self.partial = with_text(message, message.text.rstrip())
        else:
            reply = await requests.answer(quiet=self.deps.guarded)
        if is_blank(reply.text) and not self.outcome.get("empty"):
            # The reply may have held a tool call, which was removed.
            if self._is_exhausted(requests.usage):
                self.answer = AIMessage(self._with_account(self._sentence()), id=id_)
                return
            # The sentence has been streamed as a message already.
            quiet = self.deps.guarded or bool(sentence)
            reply = await requests.answer([HumanMessage(EMPTY_ANSWER)], quiet=quiet)
        if is_blank(reply.text):
            self._fail("empty_answer", _EMPTY)
        else:
            answer = after_sentence(sentence, await self._guarded(requests, reply), hint)
            self.answer = answer if id_ is None else answer.model_copy(update={"id": id_})
            if streamed:
                stream_rest(self.answer, streamed)

    async def _guarded(self, requests: ModelRequests, answer: AIMessage) -> AIMessage:
        """Return an answer as the hooks leave it."""
        if not self.deps.hooks:
            return answer
        return await HookedRequests(requests, self.active_run.session_id).guard(answer)

    async def _compose_structured(self, requests: ModelRequests, sentence: str) -> None:
        """Ask for an answer that fits the schema."""
        assert self.deps.response is not None
        answered = await ask_for_structure(
            requests,
            self.deps.response,
            quiet=bool(sentence) or self.deps.guarded or self.outcome.get("unfit", False),
            was_empty=self.outcome.get("empty", False),
            is_exhausted=lambda: self._is_exhausted(requests.usage),
            max_tokens=self.settings.max_output_tokens,
        )
        if answered is None:
            self.answer = AIMessage(self._with_account(sentence or self._sentence()))
            return
        if is_blank(answered.message.text):
            self._fail("empty_answer", _EMPTY)
            return
        reply, self.structured = answered.message, answered.value
        if answered.error is not None:
            self._fail(*answered.error)
        else:
            self.answer = await self._guarded(requests, reply)
            if self.answer is not reply:
                self.structured = None
                await self._read_structured()
            reply = self.answer
        self.answer = after_sentence(sentence, reply)

    def _sentence(self) -> str:
        if self.reason == "completed":
            return ""
        return self.deps.prompts.render(
            "limit", reason=self.outcome.get("limit_name", self.reason), limit=self.outcome.get("limit")
        )

    def _hint(self) -> str:
        """The advice on allowing more steps if `max_steps` ended the input; empty otherwise."""
        limit = self.outcome.get("limit")
        if self.reason != "step_limit" or limit != self.settings.max_steps or "limit_name" in self.outcome:
            return ""
        return self.deps.prompts.render("limit_hint", limit=limit)

    def _with_account(self, sentence: str) -> str:
        """A sentence followed by an account of the calls, for an answer without a model."""
        done = self.deps.prompts.render("account", **account(self.state["events"]))
        return f"{sentence}\n\n{done}" if done else sentence

    def _is_exhausted(self, asked: Usage = NO_USAGE) -> bool:
        """Whether a budget has no room for a model call; if so, it becomes the stop reason unless there is one.

        Args:
            asked: The usage of this pass.
        """
        met = self._budget_met(asked)
        if met is not None and self.reason == "completed":
            self._stop(*met)
        return met is not None

    def _budget_met(
        self, asked: Usage, newest: AIMessage | None = None, met: Callable[..., LimitMet | None] = exhausted
    ) -> LimitMet | None:
        if not has_budget(self.settings):
            return None
        usage = add_usage(self.state["usage"], asked)
        replies = self.state["messages"] if newest is None else [newest]
        return met(spent(self.active_run, self.loop, usage, replies, self.settings), self.settings)

    def _stop(self, reason: StopReason, limit: float) -> None:
        self.reason = reason
        self.outcome = {"stop_reason": reason, "limit": limit}
        self.events.append(event("limit", self.step, reason=reason, limit=limit))

    def _cut_short(self) -> None:
        """Build the answer from the text that was streamed before an abort or the deadline."""
        if self.active_run.aborted:
            self.reason = "aborted"
            self.outcome = {"stop_reason": "aborted"}
        elif self.reason == "completed":
            self._stop("deadline", self.settings.deadline_s or 0.0)
        sentence = self._sentence()
        stream = self.requests.stream if self.requests is not None else StreamWatch()
        streamed = stream.text
        if not streamed:
            text = self._with_account(sentence)
        else:
            text = streamed if streamed.startswith(sentence) else f"{streamed}\n\n{sentence}"
        self.answer = AIMessage(text, id=stream.id)
        if streamed and self.requests is not None and (cut_off := self.requests.cut_off) is not None:
            figures = {"usage_metadata": cut_off.usage_metadata, "response_metadata": cut_off.response_metadata}
            self.answer = self.answer.model_copy(update=figures)
        self.structured = None

    def _fail_with(self, error: Exception) -> None:
        logger.error("The request for the answer failed: %s", describe_model_error(error), extra=IN_HISTORY)
        log_traceback(logger, "The request for the answer", error)
        self.active_run.cause = error
        self._fail(classify_model_error(error), describe_model_error(error))

    async def receive_steering(self) -> bool:
        """Receive steering that arrived while the answer was composed; False if there is none, or at a limit.

        An answer that was streamed stays in the history; any other answer is dropped and composed again.
        """
        replaceable = "draft" not in self.outcome or "shown" in self.outcome
        if self.reason != "completed" or self.answer is None or not replaceable or self._limited():
            return False
        self.steering = await listen(self.active_run, self.loop, ["steer"], self.step)
        return bool(self.steering.messages)

    def _limited(self) -> bool:
        """Whether a limit forbids another plan."""
        met: LimitMet | None = limit_met(self.step, self.loop["turn"], self.settings)
        met = met or self._budget_met(self.usage, self.answer, met=budget_met)
        return met is not None or self.state["remaining_steps"] < STEPS_FOR_A_WAVE + 1 + self.deps.hook_set.supersteps

    def update_for_next_plan(self) -> dict[str, Any]:
        """The state update for an input that continues with steering."""
        shown = "shown" in self.outcome or bool(self.requests is not None and self.requests.stream.text)
        messages: list[AnyMessage] = []
        if shown and self.answer is not None:
            messages.append(self.answer)
            self.events.append(event("agent_response", self.step, content=self.answer.content))
        return {
            "messages": [*messages, *self.steering.messages],
            "events": [*self.events, *self.steering.events],
            "loop": {**self.loop, "outcome": None, "last_wave": False},
            "usage": self.usage,
            # Distinguishes this pass of `plan` from one for a new input.
            "arrived": True,
        }

    def _fail(self, kind: str, message: str) -> None:
        self.reason = "failed"
        self.error = event("error", self.step, kind=kind, message=message)
        self.events.append(self.error)

    def _report_failure(self, error: StoredEvent) -> None:
        """Answer with a report of the failure; set the error that the run raises if configured."""
        kind, text = error["kind"], error["message"]
        failed = self.reason == "failed"
        if not failed and not self.partial.text:
            self.partial = AIMessage(self._sentence())
        events, messages = self.state["events"], self.state["messages"]
        report = failure_account(error, self.deps.prompts, events, messages, failed=failed)
        streamed = self.partial.text
        self.answer = failure_message(streamed, report, stop_reason=self.reason, kind=kind, id_=self.partial.id)
        self.structured = None
        if streamed:
            stream_rest(self.answer, streamed)
        if failed and self.settings.on_failure == "raise":
            self.active_run.failure = failure_error(text, kind=kind, answer=self.answer.text)
            self.active_run.failure.__cause__ = self.active_run.cause

    def _record_cut_off(self, answer: AIMessage) -> None:
        """Record that an answer is incomplete and warn the user, unless it is a refusal, whose text states it."""
        # A complete structured answer may be cut off in endless trailing white space.
        self.truncated = cut_off(answer) if self.structured is None else None
        if self.truncated is not None and self.truncated != "content_filter":
            message = cut_off_warning(self.truncated, answer, self.settings.max_output_tokens)
            self.events.append(event("warning", self.step, message=message))

    def update(self) -> dict[str, Any]:
        """The state update."""
        status = STATUS_OF[self.reason].value
        if self.answer is not None:
            optional = {"truncated": self.truncated, "error": self.error and self.error["kind"]}
            fields = {name: value for name, value in optional.items() if value}
            self.events.append(event("agent_response", self.step, content=self.answer.content, **fields))
        self.events.append(status_event(self.state["status"], status, self.step))
        return {
            **({"messages": [self.answer]} if self.answer is not None else {}),
            "events": self.events,
            "status": status,
            "stop_reason": self.reason,
            "structured_response": self.structured,
            "loop": {**self.loop, "outcome": None},
            "usage": self.usage,
        }
