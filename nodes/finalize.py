"""`finalize`: turn what was gathered into the answer, stream it, and close the input."""

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

from graph_agent._internal.failure_log import log_traceback
from graph_agent.budgets import STEPS_FOR_A_WAVE, LimitMet, LimitMetError, budget_met, exhausted, has_budget, limit_met
from graph_agent.config import LoopConfig
from graph_agent.deps import AgentParts, parts_of_run
from graph_agent.errors import SlowSchemaError, UserError
from graph_agent.events.queries import account
from graph_agent.events.types import IN_HISTORY, StoredEvent, event
from graph_agent.hooks.protocol import HookError
from graph_agent.models.cleaning import with_text
from graph_agent.models.errors import classify_model_error, describe_model_error
from graph_agent.models.finish_reasons import CutOff, cut_off, cut_off_warning
from graph_agent.models.sentinel import is_blank, says_nothing
from graph_agent.models.stream_watch import Spoken
from graph_agent.planning.ask import RefusedError
from graph_agent.planning.failure_account import failure_account
from graph_agent.planning.hooked_requests import HookedRequests
from graph_agent.planning.requests import ModelRequests
from graph_agent.planning.structured_answer import EMPTY_ANSWER, ask_for_structure
from graph_agent.runs.notes import Heard, listen
from graph_agent.runs.run import run_of
from graph_agent.runs.spending import answer_left_s, spent
from graph_agent.state.channels import status_event
from graph_agent.state.failure_message import failure_error, failure_message, stream_rest
from graph_agent.state.schema import Bookkeeping, Outcome, PlanState
from graph_agent.state.usage import add_usage
from graph_agent.types import NO_USAGE, STATUS_OF, StopReason, Usage

logger = logging.getLogger(__name__)

_EMPTY = "The model's answer was empty, and so it was when it was asked once more."


async def finalize_node(
    state: PlanState, config: RunnableConfig, runtime: Runtime[Any], *, parts: AgentParts
) -> dict[str, Any] | Command[Any]:
    """Answer, by a streamed model call where the plan gave no answer itself.

    Returns:
        An update with the answer, its event and the session's status. Where a model failed, the status is `FAILED`,
        there is an `error` event, and the message says what failed and what was done. Planning that is not over leads
        back to `plan`: a person's edit has left nothing to run, or the user has steered while the answer was made.
    """
    if "loop" not in state or state["loop"]["outcome"] is None:
        return Command(goto="plan")
    parts = parts_of_run(parts, runtime)
    answering = _Answering(state, parts.settings(runtime, config, state["loop"]), parts, config)
    await answering.run()
    if await answering.steered():
        return Command(update=answering.update_to_go_on(), goto="plan")
    return answering.update()


class _Answering:
    """One pass through `finalize`: what it reads, and the update it gathers."""

    def __init__(self, state: PlanState, settings: LoopConfig, parts: AgentParts, config: RunnableConfig) -> None:
        self.loop: Bookkeeping = {**state["loop"]}
        self.under_way = run_of(config)
        self.steering = Heard()
        outcome: Outcome = self.loop["outcome"] or {"stop_reason": "completed"}
        self.state = state
        self.settings = settings
        self.parts = parts
        self.outcome: Outcome = outcome
        self.reason: StopReason = outcome["stop_reason"]
        self.step = self.loop["step"]
        self.config = config
        self.requests: ModelRequests | None = None
        self.answer: AIMessage | None = None
        self.begun = AIMessage("")
        """What of an answer that cannot be had in full has been streamed."""
        self.error: StoredEvent | None = None
        """The event of what failed; None where nothing did."""
        self.structured: Any = None
        self.usage: Usage = NO_USAGE
        self.truncated: CutOff | None = None
        self.events: list[StoredEvent] = []

    async def run(self) -> None:
        """Find the answer, or report why there is none."""
        await self._find()
        if self.error is not None:
            self._report_failure(self.error)
        elif self.answer is not None:
            self._note_cut_off(self.answer)

    async def _find(self) -> None:
        draft = self.outcome.get("draft")
        if self.reason == "failed":
            self.begun = draft or self.begun
            self.error = next(entry for entry in reversed(self.state["events"]) if entry["type"] == "error")
            return
        sentence = self._sentence()
        if draft is not None and self.reason == "completed":
            await self._take(draft)
            return
        if draft is not None:
            # The reader has seen this beginning of an answer.
            self.answer = draft.model_copy(update={"content": f"{draft.text}\n\n{sentence}"})
            return
        unaffordable = self._exhausted()
        sentence = self._sentence()
        if sentence and self.settings.on_limit == "message":
            self.answer = AIMessage(sentence)
            return
        if unaffordable or self.reason == "aborted":
            self.answer = AIMessage(self._with_account(sentence))
            return
        await self._in_time(self._structured if self.parts.response else self._compose, sentence)

    async def _take(self, draft: AIMessage) -> None:
        """Take the answer that planning gave."""
        self.answer = draft
        if self.outcome.get("unguarded") and self.parts.guarded:

            async def guard(requests: ModelRequests, sentence: str) -> None:
                self.answer = await self._guarded(requests, await requests.guarded(draft))

            await self._in_time(guard, "")
        await self._read_structured()

    async def _read_structured(self) -> None:
        if self.parts.response is not None and self.answer is not None:
            with contextlib.suppress(ValueError, SlowSchemaError):  # whoever gave it has told of a misfit
                self.structured = await asyncio.to_thread(self.parts.response.read, self.answer.text)

    async def _in_time(self, work: Callable[[ModelRequests, str], Awaitable[None]], sentence: str) -> None:
        """Do what takes requests, as long as an abort and the deadline let it."""
        with self.under_way.interruptible(answer_left_s(self.under_way, self.loop, self.settings)) as scope:
            await self._ask(work, sentence)
        if scope.cancelled_caught:
            self._cut_short()

    async def _ask(self, work: Callable[[ModelRequests, str], Awaitable[None]], sentence: str) -> None:
        limit: LimitMet | None = (self.reason, self.outcome.get("limit", 0)) if sentence else None
        requests = await ModelRequests.open(
            self.parts,
            self.settings,
            self.state["messages"],
            self.loop,
            self.config,
            # At a limit, hooks get no rerun.
            lambda used, newest: limit or self._budget_met(used, newest),
        )
        self.requests, self.answer = requests, None
        try:
            if self.parts.rewriters:
                await HookedRequests(requests, self.under_way.session_id).rewrite_results()
            await work(requests, sentence)
        except UserError:
            raise
        except RefusedError as refused:
            self.answer = _below(sentence, refused.message)
        except HookError as error:
            self.under_way.cause = error
            self._fail("hook", str(error))
        except LimitMetError as met:
            self._stop(met.reason, met.limit)
            self.answer = AIMessage(self._with_account(self._sentence()))
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; the outcome says what
            self._fail_by(error)
            self.begun = AIMessage(sentence or requests.stream.text, id=requests.stream.id)
        finally:
            self.loop, self.usage = {**requests.active.loop}, requests.usage
            self.events[:0] = requests.active.events
        if sentence:
            # The limit is what ended this input, whatever became of the answer.
            self.reason = self.outcome["stop_reason"]

    async def _compose(self, requests: ModelRequests, sentence: str) -> None:
        id_, hint = None, self._hint()
        if sentence and not self.parts.guarded:
            message, failure = await requests.answer_after(sentence, hint)
            if isinstance(failure, UserError):
                raise failure
            if failure is not None:
                self._fail_by(failure)
                self.begun = message
                return
            if not says_nothing(message.text.removeprefix(sentence).removesuffix(hint)):
                self.answer = message
                return
            reply, id_ = AIMessage(""), message.id
            self.begun = with_text(message, message.text.rstrip())
        else:
            reply = await requests.answer(quiet=self.parts.guarded)
        if is_blank(reply.text) and not self.outcome.get("empty"):
            # It may have called a tool all the same, and that call was left out.
            if self._exhausted(requests.usage):
                self.answer = AIMessage(self._with_account(self._sentence()), id=id_)
                return
            # The sentence stands in a message of its own already.
            quiet = self.parts.guarded or bool(sentence)
            reply = await requests.answer([HumanMessage(EMPTY_ANSWER)], quiet=quiet)
        if is_blank(reply.text):
            self._fail("empty_answer", _EMPTY)
        else:
            answer = _below(sentence, await self._guarded(requests, reply), hint)
            self.answer = answer if id_ is None else answer.model_copy(update={"id": id_})

    async def _guarded(self, requests: ModelRequests, answer: AIMessage) -> AIMessage:
        """Return an answer as the hooks leave it."""
        if not self.parts.hooks:
            return answer
        return await HookedRequests(requests, self.under_way.session_id).guard(answer)

    async def _structured(self, requests: ModelRequests, sentence: str) -> None:
        """Ask for an answer that fits the schema."""
        assert self.parts.response is not None
        answered = await ask_for_structure(
            requests,
            self.parts.response,
            quiet=bool(sentence) or self.parts.guarded or self.outcome.get("unfit", False),
            was_empty=self.outcome.get("empty", False),
            is_exhausted=lambda: self._exhausted(requests.usage),
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
        self.answer = _below(sentence, reply)

    def _sentence(self) -> str:
        if self.reason == "completed":
            return ""
        return self.parts.prompts.render(
            "limit", reason=self.outcome.get("limit_name", self.reason), limit=self.outcome.get("limit")
        )

    def _hint(self) -> str:
        """How to allow more steps, where `max_steps` has ended the input; empty otherwise."""
        limit = self.outcome.get("limit")
        if self.reason != "step_limit" or limit != self.settings.max_steps or "limit_name" in self.outcome:
            return ""
        return self.parts.prompts.render("limit_hint", limit=limit)

    def _with_account(self, sentence: str) -> str:
        """A sentence with what was done below it, for an answer that no model gives."""
        done = self.parts.prompts.render("account", **account(self.state["events"]))
        return f"{sentence}\n\n{done}" if done else sentence

    def _exhausted(self, asked: Usage = NO_USAGE) -> bool:
        """Whether a budget has nothing left for a model call; where nothing else has stopped the input, it has.

        Args:
            asked: What this pass has used.
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
        return met(spent(self.under_way, self.loop, usage, replies, self.settings), self.settings)

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
        spoken = self.requests.stream if self.requests is not None else Spoken()
        said = spoken.text
        if not said:
            text = self._with_account(sentence)
        else:
            text = said if said.startswith(sentence) else f"{said}\n\n{sentence}"
        self.answer = AIMessage(text, id=spoken.id)
        if said and self.requests is not None and (cut_off := self.requests.cut_off) is not None:
            figures = {"usage_metadata": cut_off.usage_metadata, "response_metadata": cut_off.response_metadata}
            self.answer = self.answer.model_copy(update=figures)
        self.structured = None

    def _fail_by(self, error: Exception) -> None:
        logger.error("The request for the answer failed: %s", describe_model_error(error), extra=IN_HISTORY)
        log_traceback(logger, "The request for the answer", error)
        self.under_way.cause = error
        self._fail(classify_model_error(error), describe_model_error(error))

    async def steered(self) -> bool:
        """Take in how the user has steered while the answer was made; False when they have not, or a limit is met.

        An answer that they had read stays in the history; any other is dropped, as the next one takes its place.
        """
        replaceable = "draft" not in self.outcome or "shown" in self.outcome
        if self.reason != "completed" or self.answer is None or not replaceable or self._limited():
            return False
        self.steering = await listen(self.under_way, self.loop, ["steer"], self.step)
        return bool(self.steering.messages)

    def _limited(self) -> bool:
        """Whether a limit forbids another plan."""
        remaining = self.state["remaining_steps"]
        met: LimitMet | None = limit_met(self.step, self.loop["turn"], self.settings)
        met = met or self._budget_met(self.usage, self.answer, met=budget_met)
        return met is not None or remaining < STEPS_FOR_A_WAVE + 1

    def update_to_go_on(self) -> dict[str, Any]:
        """Everything gathered, for an input that goes on with what the user has steered."""
        shown = "shown" in self.outcome or bool(self.requests is not None and self.requests.stream.text)
        said: list[AnyMessage] = []
        if shown and self.answer is not None:
            said.append(self.answer)
            self.events.append(event("agent_response", self.step, content=self.answer.content))
        return {
            "messages": [*said, *self.steering.messages],
            "events": [*self.events, *self.steering.events],
            "loop": {**self.loop, "outcome": None, "last_wave": False},
            "usage": self.usage,
            # What tells `plan` from a new input.
            "arrived": True,
        }

    def _fail(self, kind: str, message: str) -> None:
        self.reason = "failed"
        self.error = event("error", self.step, kind=kind, message=message)
        self.events.append(self.error)

    def _report_failure(self, error: StoredEvent) -> None:
        """End with a message that says what failed and what was done; note what the run is to raise."""
        kind, said = error["kind"], error["message"]
        failed = self.reason == "failed"
        if not failed and not self.begun.text:
            self.begun = AIMessage(self._sentence())
        events, messages = self.state["events"], self.state["messages"]
        report = failure_account(error, self.parts.prompts, events, messages, failed=failed)
        self.answer = failure_message(self.begun.text, report, stop_reason=self.reason, kind=kind, id_=self.begun.id)
        self.structured = None
        if self.begun.text:
            stream_rest(self.answer, self.begun.text)
        if failed and self.settings.on_failure == "raise":
            self.under_way.failure = failure_error(said, kind=kind, answer=self.answer.text)
            self.under_way.failure.__cause__ = self.under_way.cause

    def _note_cut_off(self, answer: AIMessage) -> None:
        """Note that an answer is incomplete, and tell the user so, unless it was refused, which its text says."""
        # A structured answer that is complete may still end in white space without end.
        self.truncated = cut_off(answer) if self.structured is None else None
        if self.truncated is not None and self.truncated != "content_filter":
            told = cut_off_warning(self.truncated, answer, self.settings.max_output_tokens)
            self.events.append(event("warning", self.step, message=told))

    def update(self) -> dict[str, Any]:
        """Everything gathered."""
        status = STATUS_OF[self.reason].value
        if self.answer is not None:
            about = {"truncated": self.truncated, "error": self.error and self.error["kind"]}
            told = {name: value for name, value in about.items() if value}
            self.events.append(event("agent_response", self.step, content=self.answer.content, **told))
        self.events.append(status_event(self.state["status"], status, self.step))
        said: list[AnyMessage] = [self.answer] if self.answer is not None else []
        return {
            **({"messages": said} if said else {}),
            "events": self.events,
            "status": status,
            "stop_reason": self.reason,
            "structured_response": self.structured,
            "loop": {**self.loop, "outcome": None},
            "usage": self.usage,
        }


def _below(sentence: str, answer: AIMessage, hint: str = "") -> AIMessage:
    """The answer below a sentence of ours, with a hint as its last line; itself without a sentence."""
    return AIMessage("\n\n".join(filter(None, [sentence, answer.text, hint])), id=answer.id) if sentence else answer
