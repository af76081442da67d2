"""Sends a node's requests to the model, recovers after a failure, and counts usage."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata

from graph_agent.base.calls import calls_of
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import NO_USAGE, Usage
from graph_agent.base.usage import LimitMet, add_usage, metered, usage_of
from graph_agent.core.execution.deps import Task, answer_left_s
from graph_agent.core.planning.ask import (
    LimitCheck,
    PlanningError,
    RefusedError,
    RepairRequestError,
    ask_for_calls,
    ask_for_plan,
    finish_refusal,
    finish_stream,
)
from graph_agent.core.planning.reply import Planned, answer_in, is_better, schema_misfit, with_answer, with_free_ids
from graph_agent.core.planning.request_state import PreparedHistory, RequestState, closing, plan_request, planner_of
from graph_agent.core.runs.run import RunHandle
from graph_agent.core.state.call_events import EarlierCalls
from graph_agent.core.state.events import Purpose
from graph_agent.core.state.messages import stream_rest
from graph_agent.core.state.schema import LoopState
from graph_agent.models.continuation import MOST_PAUSES, joined_turn, with_earlier_blocks
from graph_agent.models.errors import is_content_refusal
from graph_agent.models.finish import REFUSED, is_paused, refusal_text
from graph_agent.models.reply_end import ended_prose, invention_warning
from graph_agent.models.sanitize import with_text
from graph_agent.models.stream_filters import (
    AnswerFilter,
    CallFilter,
    LeadingCallFilter,
    MarkupFilter,
    SentinelFilter,
    TextCallFilter,
    TurnFilter,
    without_sentinel,
)
from graph_agent.models.stream_watch import Forwarder, StreamWatch, Visibility
from graph_agent.models.structured import ModelCall
from graph_agent.models.waits import alternative

T = TypeVar("T")
_CROWDED = 0.8
"""Share of the context window from which on the user is warned."""


class ModelRequests:
    """The requests of one pass through a node.

    A request that fails before its first token is sent again if `RequestState.recover` finds a change that may help.

    Args:
        budget_met: Returns the budget that forbids another request, and its size; None if there is none. Called with
            the usage of these requests and the newest reply.
        forwarder: Builds the watch that forwards one reply to a reader, unless it is quiet; None for no reader.
        left_s: Seconds to the deadline of the input; None without one.
    """

    def __init__(
        self,
        active: RequestState,
        budget_met: LimitCheck,
        forwarder: Forwarder | None = None,
        session_id: str = "",
        left_s: float | None = None,
    ) -> None:
        self.active = active
        self.session_id = session_id
        self.usage: Usage = NO_USAGE
        """Usage of all replies, unusable ones included."""
        self.stream = StreamWatch()
        """The text of the newest request's reply that the reader has received."""
        self.cut_off: AIMessage | None = None
        """The part of the newest request's reply that arrived before a cut-off, with its tokens; None otherwise."""
        self.earlier = EarlierCalls()
        """The session's calls so far."""
        self._budget_met, self._forwarder = budget_met, forwarder
        self._ends = None if left_s is None else time.monotonic() + left_s

    @classmethod
    async def open(
        cls, task: Task, settings: LoopConfig, history: Sequence[AnyMessage], loop: LoopState, budget_met: LimitCheck
    ) -> Self:
        """Build the requests of a node, with its present settings, history and loop state.

        Raises:
            ConfigError: If the run names a model that cannot be built.
        """
        deps, run = task.deps, task.run
        planner = planner_of(task.config["configurable"].get("thread_id", ""), settings, deps.agentic_loop)
        chain = await deps.models.chain(settings)
        prepared = run.shared("prepared history", PreparedHistory)
        active = RequestState(deps, chain, settings, history, loop, planner, prepared)
        forwarder = run.parent.forwarder if isinstance(run.parent, RunHandle) else None
        return cls(active, budget_met, forwarder, run.identity.session_id, answer_left_s(run, loop, settings))

    async def plan_once(self, tail: Sequence[AnyMessage] = (), *, quiet: bool = False) -> Planned:
        """Send one planning request.

        Args:
            tail: Messages after the conversation.
            quiet: Stream nothing of the reply.

        Raises:
            RefusedError, PlanningError, Exception: As `plan`.
        """
        active = self.active

        async def ask(stream: StreamWatch) -> Planned:
            # Read per attempt: a failed attempt may have shortened the history.
            history = [*active.history, *tail] if tail else active.prepared_history
            if active.mode == "wave":
                # A structured plan is no text for the reader; its answer is sent whole.
                stream.is_quiet = True
                return await ask_for_plan(
                    active.deps, history, active.settings, active.planner, self.limit_met, self.earlier
                )
            return await ask_for_calls(
                active.deps,
                history,
                active.settings,
                active.mode,
                stream,
                quiet=quiet or (active.deps.response is not None and self._forwarder is not None),
                schema=self._schema_of_plan(),
            )

        async def send() -> Planned:
            planned = await self.send(ask, purpose="plan", visibility=self._visibility())
            self.count(planned.usage, planned.message.usage_metadata)
            self.warn_of_invention(planned.invented)
            return planned

        planned, given = await send(), tail
        so_far = planned.message
        for _ in range(MOST_PAUSES):
            if planned.calls or not is_paused(planned.message) or self.limit_met(NO_USAGE, so_far) is not None:
                break
            await self._end_paused(planned)
            tail, earlier = [*given, so_far], so_far
            planned = await send()
            so_far = joined_turn(earlier, planned.message)
            planned = replace(planned, message=with_earlier_blocks(earlier, planned.message))
        if active.mode == "wave" or not planned.calls:
            return planned
        # Hooks send the calls back to the provider, which refuses an id that its request holds already.
        return with_free_ids(planned, self.earlier.ids_with(active.history))

    async def _end_paused(self, paused: Planned) -> None:
        """Make the text of a paused turn commentary: the answer follows in another message."""
        await self.stream.finish(paused.raw_text, paused.raw_text, paused.message.id)
        text = {"commentary": paused.raw_text} if paused.raw_text.strip() else {}
        self.active.warn(f"The provider of {self.active.model.name} paused its turn, which goes on.", **text)

    @property
    def seeks_turns(self) -> bool:
        """Whether a reply without calls ends at a result or turn that the model invents."""
        return self.active.mode != "native"

    @property
    def seeks_markup(self) -> bool:
        """Whether the markup of a call in an answer is one that the model's server has not read."""
        return bool(self.active.deps.toolbox) and (self.active.mode != "native" or not self.active.model.is_known)

    def warn_of_invention(self, invented: int) -> None:
        """Warn that a number of characters was dropped; 0 is none."""
        if invented:
            self.active.warn(invention_warning(self.active.model.name, invented))

    def _schema_of_plan(self) -> dict[str, Any] | None:
        """The schema that the provider enforces on a planning reply without calls; None if there is none."""
        active, deps = self.active, self.active.deps
        if deps.response is None or not deps.may_answer_while_planning(active.settings):
            return None
        enforced = deps.client.enforces_schema(deps.response.json_schema, active.settings, active.mode)
        return deps.response.json_schema if enforced else None

    async def fits(self, planned: Planned) -> bool:
        """Whether a planning reply is an answer on which the provider has enforced the schema."""
        response = self.active.deps.response if self._schema_of_plan() else None
        return response is not None and await schema_misfit(response, planned.raw_text) is None

    def _visibility(self) -> Callable[[], Visibility]:
        """The rule for the parts of a planning reply that are held back from the reader."""
        if self.active.mode == "text":
            return TextCallFilter
        if self._schema_of_plan() is not None:
            return SentinelFilter
        if not self.may_correct():
            return MarkupFilter if self.seeks_markup else SentinelFilter
        return LeadingCallFilter if self.active.model.takes_tools else CallFilter

    def _visibility_of_answer(self, prefix: str = "", *, free: bool = True) -> Callable[[], Visibility]:
        """The rule for the parts of an answer that are held back from the reader.

        Args:
            prefix: The fixed beginning of the answer.
            free: Whether a model may write a call in place of the answer.
        """

        def inner() -> Visibility:
            return AnswerFilter(prefix) if free else SentinelFilter()

        turns, markup = self.seeks_turns, free and self.seeks_markup
        return lambda: TurnFilter(inner(), len(prefix), turns=turns, markup=markup) if turns or markup else inner()

    def may_correct(self) -> bool:
        """Whether a native reply without calls may be requested again in text: once per input, before any work."""
        loop, name = self.active.loop, self.active.model.name
        tried = loop.get("recovery", {}).get("asked_in_text")
        worked = loop["waves"] or loop.get("request_only_messages") or name in loop.get("native_tools", ())
        return bool(self.active.deps.toolbox) and not tried and not worked

    async def answer(
        self,
        tail: Sequence[AnyMessage] = (),
        *,
        quiet: bool = False,
        schema: dict[str, Any] | None = None,
        without_tools: bool = False,
    ) -> AIMessage:
        """Ask for the answer.

        Args:
            tail: Messages after the request, such as an invalid reply and its error.
            quiet: Keep the reply's tokens out of the message stream.
            without_tools: Offer no tools, and write the calls of the history as text: for a model that calls a tool in
                place of its answer, because it ignores the tool choice.
            schema: JSON schema of the answer; None for free text. Its tokens are streamed if the provider enforces the
                schema and there is no reader, because a reader cannot take back an answer that is repaired.

        Raises:
            RefusedError, Exception: As `plan`.
        """
        active = self.active

        async def ask(stream: StreamWatch) -> AIMessage:
            request = [*self.answer_request(), *tail]
            whole = quiet or (schema is not None and self._forwarder is not None)
            client, mode = active.deps.client, active.mode
            if without_tools and mode == "native":
                client, mode = client.with_overrides((), {}), "text"
            reply = await client.ask(
                "answer", request, active.settings, mode=mode, quiet=whole, schema=schema, watch=stream
            )
            reply, invented = ended_prose(reply, turns=self.seeks_turns, markup=schema is None and self.seeks_markup)
            self.warn_of_invention(invented)
            if (refusal := refusal_text(reply, visible=True)) is not None:
                raise await finish_refusal(stream, reply, refusal, usage_of(reply, active.settings.prices))
            answer = self._answer_in(reply)
            if schema is not None and not await is_better(answer, reply.text, active.deps.response):
                answer = without_sentinel(reply.text)
            # An answer that differs, such as one with escapes in JSON, is streamed whole.
            await stream.finish(reply.text, answer if answer and answer in reply.text else None, reply.id)
            return with_text(reply, answer)

        # With a schema, the reply is streamed only if the provider enforces it.
        visibility = self._visibility_of_answer(free=schema is None and bool(active.deps.toolbox))
        reply = await self.send(ask, purpose="answer", visibility=visibility)
        self.count(usage_of(reply, active.settings.prices), reply.usage_metadata)
        return reply

    async def answer_after(self, sentence: str) -> tuple[AIMessage, Exception | None]:
        """Ask for an answer that follows a fixed sentence, streamed as one message.

        Returns:
            The message, and the error of the last model if the message holds the sentence alone.
        """
        active = self.active

        def recover(error: Exception) -> ModelCall | None:
            if not active.recover(error):
                return None
            return active.deps.client.answering(self.answer_request(), active.settings, mode=active.mode)

        active.fit()
        self.stream = StreamWatch(self._visibility_of_answer(sentence))
        with self._extra_usage("answer"), alternative(fallback=active.has_fallback, ends=self._ends):
            message, failure = await active.deps.client.answer_after(
                sentence, self.answer_request(), active.settings, mode=active.mode, recover=recover, watch=self.stream
            )
            if failure is None:
                self.count(usage_of(message, active.settings.prices), message.usage_metadata)
        if failure is not None and not is_content_refusal(failure):
            return message, failure
        message, invented = ended_prose(message, len(sentence), turns=self.seeks_turns, markup=self.seeks_markup)
        self.warn_of_invention(invented)
        body = message.text.removeprefix(sentence).strip()
        below = message.model_copy(update={"content": body})
        answer = self._answer_in(below)
        await self.stream.finish(message.text, message.text if answer == body else None)
        whole = message.text if body else sentence
        shown = whole if answer == body else "\n\n".join(filter(None, [sentence, answer]))
        refusal = refusal_text(below, visible=True) if failure is None else REFUSED
        if refusal is not None:
            active.warn_of_refusal()
            # Below the text so far, which may have been streamed.
            shown = "\n\n".join(filter(None, [shown, refusal.removeprefix(body).strip()]))
        if shown != message.text:
            message = with_text(message, shown)
            if self.stream.text:
                stream_rest(message, self.stream.text)
        return message, None

    def _answer_in(self, reply: AIMessage) -> str:
        return answer_in(reply, self.active.deps, self.active.mode, self.active.history)

    async def send(
        self,
        ask: Callable[[StreamWatch], Awaitable[T]],
        *,
        purpose: Purpose,
        recover: Callable[[Exception], bool] | None = None,
        visibility: Callable[[], Visibility] = SentinelFilter,
    ) -> T:
        """Send a request until it is answered or no recovery is left.

        Args:
            ask: Sends one attempt; receives the stream that its tokens pass through.
            recover: Replaces `RequestState.recover`.
            visibility: The rule for the parts of the reply that are held back from the reader.

        Raises:
            RefusedError, PlanningError, Exception: As `plan`.
        """
        with self._extra_usage(purpose):
            while True:
                self.active.fit()
                self.stream = StreamWatch(visibility) if self._forwarder is None else self._forwarder(visibility)
                try:
                    with alternative(fallback=self.active.has_fallback and recover is None, ends=self._ends):
                        return await ask(self.stream)
                except RefusedError as refused:
                    self.count(refused.usage, refused.message.usage_metadata)
                    self.active.warn_of_refusal()
                    raise
                except PlanningError as error:
                    self.count(error.usage, None)
                    raise
                except RepairRequestError as failed:
                    self.count(failed.usage, None)
                    failure = failed.error
                except Exception as error:  # noqa: BLE001 - a provider may raise anything; it is raised again below
                    failure = error
                if is_content_refusal(failure):
                    self.active.warn_of_refusal()
                    raise RefusedError(AIMessage(REFUSED), NO_USAGE) from failure
                if self.stream.seen or not (recover or self.active.recover)(failure):
                    raise failure

    @contextmanager
    def _extra_usage(self, purpose: Purpose) -> Iterator[None]:
        """Add usage recorded by `metered` inside the block, even if it raises.

        Args:
            purpose: The purpose of the requests sent inside the block.
        """
        with metered() as extra:
            try:
                yield
            finally:
                self.cut_off = extra.cut_off
                self.active.record_model_calls(extra.timed, purpose)
                self.active.warn_of_replaced(self.stream.replaced)
                for warning in extra.warnings:
                    self.active.warn(warning)
                for name, own in extra.replaced:
                    given = None if own is None else (str(own.text), calls_of(own))
                    self.active.report_hook(name, "replaced", given, plans=purpose == "plan")
                for reply in extra.replies:
                    self.count_reply(reply)
                self.usage = add_usage(self.usage, {**NO_USAGE, "model_calls": -extra.uncalled})

    def limit_met(self, used: Usage, newest: AIMessage) -> LimitMet | None:
        """The limit that forbids another request for a plan.

        Args:
            used: Usage that `usage` does not include yet.
        """
        total, most = add_usage(self.usage, used), self.active.settings.max_turns
        if most is not None and self.active.loop["turn"] + total["model_calls"] >= most:
            return "turn_limit", most
        return self._budget_met(total, newest)

    def answer_request(self) -> list[AnyMessage]:
        """The messages of a request for the answer."""
        active = self.active
        messages = plan_request(active.deps, active.prepared_history, active.settings, active.mode, active.planner)
        # The messages of a hook's request hold the closing message already.
        return [*messages, *(() if active.is_patched else closing(active.deps, active.mode))]

    async def guarded(self, answer: AIMessage) -> AIMessage:
        """Return an answer that no request returned as the middleware that rewrites replies leaves it."""
        with self._extra_usage("answer"):
            return await self.active.deps.client.guarded(self.answer_request(), answer)

    def count_reply(self, reply: AIMessage) -> None:
        """Add the usage of a reply that no other code counts."""
        self.usage = add_usage(self.usage, usage_of(reply, self.active.settings.prices))

    def count(self, usage: Usage, last: UsageMetadata | None) -> None:
        """Add usage; warn once per input if the last request nearly filled the model's window.

        Args:
            last: The token counts of the last reply; None to skip the check of the window.
        """
        active = self.active
        self.usage = add_usage(self.usage, usage)
        if last is None or active.summarizes or active.loop.get("recovery", {}).get("crowded"):
            return
        window = active.window
        if window is None or last["input_tokens"] < _CROWDED * window:
            return
        active.record(crowded=True)
        share = last["input_tokens"] / window
        active.warn(
            f"The request took {last['input_tokens']:,} of the {window:,} tokens that {active.model.name} can read "
            f"({share:.0%}); once it is full, the older part of the conversation is left out."
        )


async def without_markup(requests: ModelRequests, planned: Planned) -> Planned:
    """Cut the markup of a call, which the server has not read, from the end of a native reply without calls."""
    if not requests.seeks_markup or await requests.fits(planned):
        return planned
    message, dropped = ended_prose(planned.message, turns=False, markup=True)
    requests.warn_of_invention(dropped)
    return with_answer(planned, without_sentinel(message.text)) if dropped else planned


async def finished_plan(requests: ModelRequests, planned: Planned) -> Planned:
    """Stream the rest of a planning reply; ask again, once per input, if it holds a call that cannot be read."""
    active, stream = requests.active, requests.stream
    asked = active.loop.get("recovery", {}).get("asked_again")
    if not planned.unread or asked or requests.limit_met(NO_USAGE, planned.message) is not None:
        await finish_stream(stream, planned)
        return planned
    active.record(asked_again=True)
    await stream.finish(planned.raw_text, None, planned.message.id)
    message = (
        f"The model {active.model.name} wrote a call that cannot be read; it was not run, and is asked for once more."
    )
    active.warn(message, **({"commentary": stream.text} if stream.text else {}))
    notice = f"{active.deps.prompts.render('written_call')}\n{planned.unread}"
    second = await requests.plan_once([AIMessage(planned.raw_text), HumanMessage(notice)])
    await finish_stream(requests.stream, second)
    return second
