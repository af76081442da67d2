"""Produces the answer of an input, and builds the state update of a pass through the node `finalize`.

Planning ends with an outcome: a reason, and a draft if a reply of planning is the answer or a part of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.errors import SlowSchemaError, UserError
from graph_agent.base.finish import LONGER, answer_cut_off, cut_off_warning
from graph_agent.base.history.call_events import account
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.input_messages import CONTEXT_MARK
from graph_agent.base.types import NO_USAGE, STATUS_OF, CutOff, StopReason, Usage
from graph_agent.base.usage import LimitMet, LimitMetError, add_usage, budget_met, exhausted, has_budget, limit_met
from graph_agent.core.execution.deps import Task, answer_left_s, spent
from graph_agent.core.planning.answer_request import (
    after_sentence,
    ask_for_answer,
    ask_for_answer_after,
    guarded_answer,
)
from graph_agent.core.planning.exchange import Exchange, Outcome
from graph_agent.core.planning.failures import failure_account, failure_event, logged_event
from graph_agent.core.planning.hooked_requests import prepare, reviewed
from graph_agent.core.planning.middleware_replies import composed_answer, drop_replaced, stream_unshown
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.refusals import RefusedError
from graph_agent.core.planning.structured_answer import EMPTY_ANSWER, ask_for_structure
from graph_agent.core.planning.update import limit_event
from graph_agent.core.state.channels import collect_writes, status_event, take_extras
from graph_agent.core.state.messages import failure_error, failure_message, stream_rest, with_name
from graph_agent.core.state.notes import ReceivedNotes, listen
from graph_agent.core.state.run import WorkStoppedError
from graph_agent.core.state.schema import LoopOutcome, LoopState, PlanState
from graph_agent.models.reply_end import REPEATED, repetition_at_end, repetition_warning
from graph_agent.models.sanitize import with_text
from graph_agent.models.stream_filters import has_no_answer, is_blank
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.wire.traits import CITATIONS

logger = get_logger("graph_agent.nodes.finalize")
AnswerWork: TypeAlias = Callable[[Exchange, str], Awaitable[None]]
"""Sends requests for the answer through an exchange, and stores what it finds in the `AnswerUpdate`.

The text is the fixed sentence that must begin the answer, such as the one about a limit; empty if there is none.
"""
_EMPTY = "The model's answer was empty, and so was the answer to a second request."


class AnswerUpdate:
    """One pass through the node `finalize`: its task, the answer as far as it is produced, and the resulting state
    update.

    The methods change these attributes; `update` returns them as an update of the graph's state.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.loop: LoopState = {**task.loop}
        self.active_run = task.run
        self.steering = ReceivedNotes()
        self.state = cast("PlanState", task.state)
        self.settings = task.settings
        self.deps = task.deps
        self.outcome: LoopOutcome = {**(self.loop["outcome"] or {"stop_reason": "completed"})}
        self.reason: StopReason = self.outcome["stop_reason"]
        self.step = self.loop["step"]
        self.exchange: Exchange | None = None
        """Sends the requests of the pass; None before the first one."""
        self.answer: AIMessage | None = None
        self.partial = AIMessage("")
        """The part of a failed answer that was already streamed; empty if nothing was."""
        self.error: StoredEvent | None = None
        """The `error` event; None without a failure."""
        self.structured: Any = None
        self.usage: Usage = NO_USAGE
        self.truncated: CutOff | None = None
        self.events: list[StoredEvent] = []
        self.written: list[tuple[str, Any]] = []
        """State writes of middleware, as pairs of field and value, which are applied after the answer."""

    async def run(self) -> None:
        """Set `answer` to the answer of the input; if `produce` set `error` instead, to a report of the failure for the
        user.

        The message gets the agent's name. If the answer was cut off, `truncated` gets the cause, with a `warning` event
        unless a content filter is the cause. A structured answer that was parsed counts as complete. Raises `UserError`
        if the program's configuration or input is at fault.
        """
        await self.produce()
        if self.error is not None:
            self._report_failure(self.error)
        # A complete structured answer may be cut off in endless trailing white space.
        elif self.answer is not None and self.structured is None:
            self.truncated = answer_cut_off(self.answer)
            # The text of an answer that a content filter cut off states the refusal.
            if self.truncated is not None and self.truncated != "content_filter":
                self._warn_of_cut_off(self.answer, self.truncated)
        if self.answer is not None:
            self.answer = with_name(self.answer, self.active_run.identity.agent_name)

    async def produce(self) -> None:
        """Set `answer`, or set `error` to the event of what prevented it. The first rule that applies does so.

        The rules, in order: planning failed; planning or a hook has the answer; a streamed reply was stopped; a limit
        is answered by its sentence; no budget is left for a request; the model is asked. Raises `UserError` if the
        program's configuration or input is at fault.
        """
        rules: tuple[Callable[[], Awaitable[bool]], ...] = (
            self._keep_failure,
            self._accept_planned,
            self._complete_streamed,
            self._report_limit,
            self._account_for_stop,
            self._ask_model,
        )
        for rule in rules:
            if await rule():
                return

    async def _keep_failure(self) -> bool:
        """If planning failed, set `error` to its `error` event and `partial` to the streamed part.

        Returns whether it failed.
        """
        if self.reason != "failed" and "failed" not in self.outcome:
            return False
        self.partial = self.outcome.get("draft", self.partial)
        self.error = next(entry for entry in reversed(self.state["events"]) if entry["type"] == "error")
        return True

    async def _accept_planned(self) -> bool:
        """Set `answer` to the answer that planning or hooks have produced. Returns whether there is one.

        Without middleware hooks, that is the outcome's `draft`, if planning was completed. If hooks have processed the
        answer (`composed` is set in the outcome), it is that of `composed_answer`, whatever the stop reason. Such an
        answer is streamed unless the reader has received it; a streamed text that it replaces gets a `warning` event.
        """
        planned = self.outcome.get("draft") if self.reason == "completed" else None
        if "composed" not in self.outcome:
            if planned is not None:
                await self._accept_draft(planned)
            return planned is not None
        if (kept := composed_answer(self.outcome, self.state["messages"]) or planned) is None:
            return False
        self.events += drop_replaced(self.outcome, kept, self.step)
        await self._accept_draft(kept)
        stream_unshown(self.answer, self.outcome)
        return True

    async def _complete_streamed(self) -> bool:
        """If a limit or abort stopped a reply, set `answer` to its streamed part, followed by the sentence about the
        stop.

        Returns whether there is such a part, the outcome's `draft`.
        """
        draft = self.outcome.get("draft")
        if draft is not None:
            self.answer = draft.model_copy(update={"content": f"{draft.text}\n\n{self._sentence()}"})
        return draft is not None

    async def _report_limit(self) -> bool:
        """At a limit or abort, with `on_limit="message"`, set `answer` to the sentence about it. Returns whether it
        did.

        If planning was completed, but a budget is used up by now, that budget becomes the stop reason first.
        """
        self._is_exhausted()  # the reason that the sentence states
        sentence = self._sentence()
        if not sentence or self.settings.on_limit != "message":
            return False
        self.answer = AIMessage(sentence)
        return True

    async def _account_for_stop(self) -> bool:
        """After an abort, or if no budget is left for a request, answer with the sentence about that and a list of the
        calls.

        Returns whether it did.
        """
        if not self._is_exhausted() and self.reason != "aborted":
            return False
        self.answer = AIMessage(self._with_account(self._sentence()))
        return True

    async def _ask_model(self) -> bool:
        """Ask the model for the answer, structured if the agent has a response format.

        Always returns True, as the last rule.
        """
        work = self._compose_structured if self.deps.response else self._compose
        await self._send_before_deadline(work, self._sentence())
        return True

    async def _accept_draft(self, draft: AIMessage) -> None:
        """Set `answer` to a reply of planning, and `structured` to its parsed value if the agent has a response format.

        A reply marked `unguarded` first passes the middleware and loop hooks that may rewrite answers. The deadline
        and their errors have the effects of `_send_before_deadline`.
        """
        self.answer = draft
        if self.outcome.get("unguarded") and self.deps.guarded:

            async def guard(exchange: Exchange, sentence: str) -> None:
                self.answer = await reviewed(exchange, await guarded_answer(exchange, draft))

            await self._send_before_deadline(guard, "")
        if self.deps.response is not None:
            await self._read_structured()

    async def _read_structured(self) -> None:
        """Parse the answer by the agent's response format into `structured`, in a thread.

        `structured` is left unchanged if there is no format or no answer, or if the answer does not fit.
        """
        if self.deps.response is not None and self.answer is not None:
            # The code that produced the answer has reported a misfit.
            with contextlib.suppress(ValueError, SlowSchemaError):
                self.structured = await asyncio.to_thread(self.deps.response.read, self.answer.text)

    async def _send_before_deadline(self, work: AnswerWork, sentence: str) -> None:
        """Await work that sends requests.

        An abort or the deadline cancels it; see `_cut_short`. Otherwise its effects and errors are those of `_send`.

        Args:
            work: Sends the requests, and sets `answer`.
            sentence: The fixed sentence that begins the answer; empty if there is none.
        """
        left_s = answer_left_s(self.active_run, self.loop, self.settings)
        try:
            await self.active_run.stop.stoppable(self._send(work, sentence), "The request for the answer", left_s)
        except WorkStoppedError:
            self._cut_short()

    async def _send(self, work: AnswerWork, sentence: str) -> None:
        """Prepare the requests, await the work, and take over its events, usage and loop state.

        A refusal of the model becomes the answer, after the sentence. A used-up budget gives an answer without a model.
        Any other exception sets `error`, and `partial` to the sentence, or without one to the text streamed so far;
        `answer` stays None. The reason of a limit that ended planning stays.

        Args:
            work: Sends the requests, and sets `answer`.
            sentence: The fixed sentence about the limit that ended planning; empty if planning was completed.

        Raises:
            UserError: The program's configuration or input is at fault.
        """
        # At a limit, hooks get no rerun.
        limit: LimitMet | None = (self.reason, self.outcome.get("limit", 0)) if sentence else None
        request = await NextRequest.of(self.task, self.settings, self.state["messages"], self.loop)
        exchange = Exchange(request, lambda used, newest: limit or self._budget_met(used, newest))
        self.exchange, self.answer = exchange, None

        async def prepared_work() -> None:
            await prepare(exchange, self.state["events"], may_summarize=not sentence)
            collect_writes(self.written)
            await work(exchange, sentence)

        try:
            self._take(await exchange.outcome_of(prepared_work()))
        except UserError:
            raise
        except RefusedError as refused:
            self.answer = after_sentence(sentence, refused.message)
        except LimitMetError as met:
            self._stop(met.reason, met.limit)
            self.answer = AIMessage(self._with_account(self._sentence()))
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; the outcome records the error
            self._fail_with(error)
            self.partial = AIMessage(sentence or exchange.stream.text, id=exchange.stream.id)
        if sentence:
            # The limit ended this input, whether or not the answer was composed.
            self.reason = self.outcome["stop_reason"]

    def _take(self, outcome: Outcome[None]) -> None:
        """Take over the loop state, usage and events of the requests, and raise the exception that ended them, if there
        is one.

        Messages and a structured response that middleware wrote meanwhile move from `written` to `extras` of the loop
        state.
        """
        self.loop, self.usage = outcome.loop, outcome.usage
        if self.written and (extras := take_extras(self.written, CONTEXT_MARK)):
            self.loop["extras"] = extras
        # Before those of this pass, which report how the requests ended.
        self.events[:0] = outcome.events
        try:
            outcome.result()
        finally:
            del outcome  # as in `Outcome.result`

    async def _compose(self, exchange: Exchange, sentence: str) -> None:
        """Ask for an answer in free text, and set `answer`. If the reply is empty, ask once more without tools; if that
        one is empty, too, set `error`.

        There is no second request if the outcome records an empty reply of planning already. If a budget is used up
        before the second request, the answer is the sentence about it and a list of the input's calls. If no model
        answers below a streamed sentence, `error` and `partial` are set. Loop hooks may change the final reply.

        Args:
            exchange: Sends the requests.
            sentence: The fixed sentence about a limit that begins the answer; empty if there is none. It is streamed
                first, unless guards must see the whole answer.

        Raises:
            UserError: The program's configuration or input is at fault.
            Exception: The errors of `reviewed`, and those of `ask_for_answer`, also for a second request.
        """
        id_, streamed = None, ""
        if sentence and not self.deps.guarded:
            message, failure = await ask_for_answer_after(exchange, sentence)
            if isinstance(failure, UserError):
                raise failure
            if failure is not None:
                self._fail_with(failure)
                self.partial = message
                return
            if not has_no_answer(message.text.removeprefix(sentence)):
                self.answer = message
                return
            reply, id_, streamed = AIMessage(""), message.id, exchange.stream.text
            self.partial = with_text(message, message.text.rstrip())
        else:
            reply = await ask_for_answer(exchange, exchange.request, quiet=self.deps.withholds(self.settings))
        if is_blank(reply.text) and not self.outcome.get("empty"):
            # The reply may have held a tool call, which was removed.
            if self._is_exhausted(exchange.usage):
                self.answer = AIMessage(self._with_account(self._sentence()), id=id_)
                if streamed:
                    stream_rest(self.answer, streamed)
                return
            # The sentence has been streamed as a message already.
            quiet = self.deps.withholds(self.settings) or bool(sentence)
            notice = [HumanMessage(EMPTY_ANSWER)]
            reply = await ask_for_answer(exchange, exchange.request, notice, quiet=quiet, without_tools=True)
        if is_blank(reply.text):
            self._fail(logged_event(self.step, "empty_answer", _EMPTY))
        else:
            answer = after_sentence(sentence, await reviewed(exchange, reply))
            self.answer = answer if id_ is None else answer.model_copy(update={"id": id_})
            if streamed:
                stream_rest(self.answer, streamed)

    async def _compose_structured(self, exchange: Exchange, sentence: str) -> None:
        """Ask the model for an answer that fits the response format, and set `answer` and `structured`.

        `error` is set, too, if the answer is empty or no repair makes it fit. If hooks change the answer, it is parsed
        again; a changed answer that does not fit leaves `structured` None. If a budget forbids a repair, the answer is
        the sentence about it and a list of the input's calls.

        Args:
            exchange: Sends the requests.
            sentence: The fixed sentence about a limit that begins the answer; empty if there is none.

        Raises:
            Exception: The errors of `ask_for_structure`, and what a hook raises.
        """
        assert self.deps.response is not None
        answered = await ask_for_structure(
            exchange,
            self.deps.response,
            quiet=bool(sentence) or self.deps.withholds(self.settings) or self.outcome.get("unfit", False),
            was_empty=self.outcome.get("empty", False),
            is_exhausted=lambda: self._is_exhausted(exchange.usage),
            max_tokens=self.settings.max_output_tokens,
        )
        if answered is None:
            self.answer = AIMessage(self._with_account(sentence or self._sentence()))
            return
        if is_blank(answered.message.text):
            self._fail(logged_event(self.step, "empty_answer", _EMPTY))
            return
        reply, self.structured = answered.message, answered.value
        if answered.error is not None:
            kind, message = answered.error
            self._fail(logged_event(self.step, kind, message, advises=kind == "response_schema"))
        else:
            self.answer = await reviewed(exchange, reply)
            if self.answer is not reply:
                self.structured = None
                await self._read_structured()
            reply = self.answer
        self.answer = after_sentence(sentence, reply)

    def _sentence(self) -> str:
        """Return the sentence about the limit or abort that ended planning; empty if planning was completed."""
        if self.reason == "completed":
            return ""
        return self.deps.prompts.render("limit", reason=self.reason, limit=self.outcome.get("limit"))

    def _with_account(self, sentence: str) -> str:
        """Return the text of an answer that no model writes: a sentence, and the rendered list of the input's calls if
        there are any.
        """
        done = self.deps.prompts.render("account", **account(self.state["events"]))
        return f"{sentence}\n\n{done}" if done else sentence

    def _is_exhausted(self, asked: Usage = NO_USAGE) -> bool:
        """Whether the remaining tokens, cost or time are too few for a model call; False without a budget.

        If so, and planning was completed, this budget becomes the stop reason, with a logged `limit` event.

        Args:
            asked: Usage of requests that the state does not include yet.
        """
        met = self._budget_met(asked)
        if met is not None and self.reason == "completed":
            self._stop(*met)
        return met is not None

    def _budget_met(
        self, asked: Usage, newest: AIMessage | None = None, met: Callable[..., LimitMet | None] = exhausted
    ) -> LimitMet | None:
        """Return the budget that forbids another model call, and its size; None if there is none.

        Args:
            asked: Usage that the state does not include yet.
            newest: The newest reply, whose tokens estimate those of the next one; None to use the newest of the
                history.
            met: Compares the usage with the budgets: `exhausted`, or `budget_met`, which reserves a part for the
                answer.
        """
        if not has_budget(self.settings):
            return None
        usage = add_usage(self.state["usage"], asked)
        replies = self.state["messages"] if newest is None else [newest]
        return met(spent(self.active_run, self.loop, usage, replies, self.settings), self.settings)

    def _stop(self, reason: StopReason, limit: float) -> None:
        """Make a limit the stop reason of the input: replace the outcome, log the limit, and add the `limit` event."""
        self.reason = reason
        self.outcome = {"stop_reason": reason, "limit": limit}
        self.events.append(limit_event(self.deps.prompts, self.step, reason, limit))

    def _cut_short(self) -> None:
        """After an abort or the deadline, set `answer` to the text streamed so far and a sentence about the stop,
        unless the text begins with that.

        If nothing was streamed, the answer is the sentence and a list of the input's calls. The stop reason is
        `aborted` after an abort, else the limit that had ended planning, else `deadline`, with its `limit` event. Known
        token counts of the cut-off reply are kept. `structured` becomes None.
        """
        if self.active_run.stop.aborted:
            self.reason = "aborted"
            self.outcome = {"stop_reason": "aborted"}
        elif self.reason == "completed":
            self._stop("deadline", self.settings.deadline_s or 0.0)
        sentence = self._sentence()
        stream = self.exchange.stream if self.exchange is not None else StreamWatch()
        streamed = stream.text
        if not streamed:
            text = self._with_account(sentence)
        else:
            text = streamed if streamed.startswith(sentence) else f"{streamed}\n\n{sentence}"
        self.answer = AIMessage(text, id=stream.id)
        if streamed and self.exchange is not None and (cut_off := self.exchange.cut_off) is not None:
            figures = {"usage_metadata": cut_off.usage_metadata, "response_metadata": cut_off.response_metadata}
            self.answer = self.answer.model_copy(update=figures)
        self.structured = None

    def _fail_with(self, error: Exception) -> None:
        """Store the exception that prevented the answer as the run's cause, and set `error` to its `error` event."""
        self.active_run.record_cause(error)
        self._fail(failure_event(error, self.step, "The request for the answer"))

    async def receive_steering(self) -> bool:
        """Read steering (user messages sent to the running input) that arrived meanwhile into `steering`, and return
        whether there is any.

        Nothing is read without an inbox or an answer, if the input was not completed, if a limit forbids another plan,
        or if the answer is a draft of planning that no reader has received.
        """
        replaceable = self.answer is not None and ("draft" not in self.outcome or "shown" in self.outcome)
        if self.active_run.inbox is None or self.reason != "completed" or not replaceable or self._limited():
            return False
        self.steering = await listen(self.active_run, self.loop, ["steer"], self.step)
        return bool(self.steering.messages)

    def _limited(self) -> bool:
        """Whether a limit of steps or turns, a budget, or the supersteps that LangGraph still allows forbid another
        plan.
        """
        met: LimitMet | None = limit_met(self.step, self.loop["turn"], self.settings)
        met = met or self._budget_met(self.usage, self.answer, met=budget_met)
        return met is not None or self.state["remaining_steps"] < self.deps.steps_for_a_wave + 1

    def update_for_next_plan(self) -> dict[str, Any]:
        """Return the state update by which an input goes on with steering, i.e. messages of the user that arrived
        during the answer: it leads to another plan, with no outcome and `wave_finished` set.

        An answer that the reader has received stays in the history; its `agent_response` event is stored and reported.
        Any other answer is dropped.
        """
        shown = "shown" in self.outcome or bool(self.exchange is not None and self.exchange.stream.text)
        messages: list[AnyMessage] = []
        if shown and self.answer is not None:
            messages.append(self.answer)
            cited = {"citations": each} if (each := self.answer.response_metadata.get(CITATIONS)) else {}
            self.events.append(event("agent_response", self.step, content=self.answer.content, **cited))
            self.active_run.report(self.loop, self.events[-1])
        return {
            "messages": [*messages, *self.steering.messages],
            "events": [*self.events, *self.steering.events],
            "loop": {**self.loop, "outcome": None, "last_wave": False},
            "usage": self.usage,
            # Distinguishes this pass of `plan` from one for a new input.
            "wave_finished": True,
        }

    def _fail(self, error: StoredEvent) -> None:
        """Make an `error` event the reason for which the input ends; sets `reason` and `error`, and adds the event."""
        self.reason, self.error = "failed", error
        self.events.append(error)

    def _report_failure(self, error: StoredEvent) -> None:
        """Set `answer` to a report of the failure for the user, after the partial answer; if a part of that was
        streamed, the rest is streamed.

        If a limit ended planning and no part was streamed, the sentence about the limit stands in place of the part. If
        the input failed and `on_failure` is `raise`, the exception is stored in the run, which raises it at its end.
        `structured` becomes None.
        """
        kind, text = error["kind"], error["message"]
        failed = self.reason == "failed"
        if not failed and not self.partial.text:
            self.partial = AIMessage(self._sentence())
        events, messages = [*self.state["events"], *self.events], self.state["messages"]
        report = failure_account(error, self.deps.prompts, events, messages, failed=failed)
        streamed = self.partial.text
        self.answer = failure_message(streamed, report, stop_reason=self.reason, kind=kind, id_=self.partial.id)
        self.structured = None
        if streamed:
            stream_rest(self.answer, streamed)
        if failed and self.settings.on_failure == "raise":
            self.active_run.failure = failure_error(text, kind=kind, answer=self.answer.text)
            self.active_run.failure.__cause__ = self.active_run.cause

    def _warn_of_cut_off(self, answer: AIMessage, cause: CutOff) -> None:
        """Add a `warning` event about an answer that was cut off by `cause`. For a length limit, it has a hint for the
        developer, and another text if the answer ends in a repetition.
        """
        message = cut_off_warning(cause, answer, self.settings.max_output_tokens)
        hint = {"hint": LONGER} if cause == "length" else {}
        if cause == "length" and (repeated := repetition_at_end(answer.text)) is not None:
            message, hint = f"{message} {repetition_warning(repeated)}", {"hint": REPEATED}
        self.events.append(event("warning", self.step, message=message, **hint))

    async def update(self) -> dict[str, Any]:
        """Return the state update that ends the input: the answer, its event, status, stop reason and structured
        response.

        Before that, work that began early and was not used is cancelled; and facts about the user are extracted, if the
        agent's memory is set to extract them and the input was completed without an error and within its budget. If the
        model gave no structured response and there is no error, one that middleware wrote counts. The end is logged.
        Raises the errors of `extract_facts`.
        """
        status = STATUS_OF[self.reason].value
        if self.active_run.speculation is not None:
            self.active_run.speculation.end()
        extras = self.loop.pop("extras", {})
        if added := extras.get("messages"):
            self.written.append(("messages", added))
        if self.structured is None and self.error is None:
            self.structured = extras.get("structured")
        if self.answer is not None:
            cited = self.answer.response_metadata.get(CITATIONS)
            optional = {"truncated": self.truncated, "error": self.error and self.error["kind"], "citations": cited}
            fields = {name: value for name, value in optional.items() if value}
            self.events.append(event("agent_response", self.step, content=self.answer.content, **fields))
            self.active_run.report(self.loop, self.events[-1])
        memory, completed = self.deps.memory, self.reason == "completed" and self.error is None
        if memory is not None and memory.extracts and completed and self._budget_met(self.usage) is None:
            # Imported here: few agents have such a memory.
            from graph_agent.core.planning.extraction import extract_facts

            await extract_facts(self, memory)
        logger.info("The input ended: %s", self.reason)
        self.events.append(status_event(self.state["status"], status, self.step))
        if self.loop.get("model_calls") or self.active_run.speculation is not None:
            self.active_run.report(self.loop, self.events[-1])
        return {
            **({"messages": [self.answer]} if self.answer is not None else {}),
            "events": self.events,
            "status": status,
            "stop_reason": self.reason,
            "structured_response": self.structured,
            "loop": {**self.loop, "outcome": None},
            "usage": self.usage,
        }
