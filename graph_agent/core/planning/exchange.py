"""Sends the requests of one pass through a node, recovers after a failure, and records what happened.

A pass is one execution of the node `plan`, `model` or `finalize`. To recover is to change a request after the model has
refused it; see `recovery`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.messages.ai import UsageMetadata

from graph_agent.base._internal.failure_log import IN_HISTORY, get_logger
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.calls import calls_of
from graph_agent.base.finish import REFUSAL_WARNING, REFUSED
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.history.plan_parts import ModelCallRecord, Purpose
from graph_agent.base.settings.config import Price
from graph_agent.base.types import NO_USAGE, Call, Usage
from graph_agent.base.usage import ExtraUsage, LimitMet, TimedRequest, add_usage, extra_usage, usage_of
from graph_agent.core.extensions.hook_protocol import HookAction
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.recovery import ChangedRequest, fitted, options_warned, recovered
from graph_agent.core.planning.refusals import RefusedError
from graph_agent.core.planning.reply import REPLACED
from graph_agent.core.planning.structured_plan import LimitCheck, PlanningError, RepairRequestError
from graph_agent.core.state.schema import LoopState
from graph_agent.models.errors import is_content_refusal
from graph_agent.models.reply_end import invention_warning
from graph_agent.models.stream_filters import SentinelFilter
from graph_agent.models.stream_watch import StreamWatch, Visibility
from graph_agent.models.waits import limit_waits

if TYPE_CHECKING:
    from graph_agent.core.state.model_requests import RequestLog

T = TypeVar("T")
_CROWDED = 0.8
"""Share of the context window from which on a request adds a warning."""
logger = get_logger("graph_agent.planning.request_state")


class Outcome(NamedTuple, Generic[T]):
    """What happened in the requests of one pass through a node, whether they succeeded, failed or were cancelled."""

    reply: T | None
    """What the work returned; None after a failure."""
    failure: BaseException | None
    """The exception that ended the work, a cancellation included; None if it returned."""
    loop: LoopState
    """The loop state with the changes made by the requests. It is a copy, which the caller may modify."""
    events: Sequence[StoredEvent]
    """Events of the requests, oldest first."""
    usage: Usage
    """Usage of all replies, also of those that could not be used."""
    stream: StreamWatch
    """The stream of the newest request's reply: the text that the reader has received."""
    cut_off: AIMessage | None
    """The part of the newest request's reply that arrived before its stream broke off, with its token counts.

    None otherwise.
    """

    def result(self) -> T:
        """Return the reply, or raise the failure (a cancellation included). Call it at most once, last."""
        if self.failure is None:
            return cast("T", self.reply)
        try:
            raise self.failure
        finally:
            # The traceback of the failure holds this frame, which would keep the history until a collection of cycles.
            del self


def no_limit(used: Usage, newest: AIMessage | None) -> LimitMet | None:
    """Return None, i.e. no limit: the check for requests outside of an input, which have no budget."""


class Exchange:
    """Sends the requests of one pass through a node, and collects usage, events and changes of the loop state.

    A pass is one execution of the node `plan`, `model` or `finalize`. Work sends each `NextRequest` through this
    object; the node then reads the `Outcome`. What one request changes for the next ones is in the loop state of
    `request`. Its creation records a warning if the model's class cannot send an option of the settings.

    Args:
        request: The first request.
        budget_met: Returns the budget that forbids another request, and its size; None if there is none. It receives
            the usage of this exchange and the newest reply.
    """

    def __init__(self, request: NextRequest, budget_met: LimitCheck = no_limit) -> None:
        self.request = request
        """The agent's own next request, with all changes so far. A request that a hook patched never replaces it."""
        self.usage: Usage = NO_USAGE
        """Usage of all replies so far, also of those that could not be used."""
        self.events: list[StoredEvent] = []
        """Events so far, oldest first."""
        self.stream = StreamWatch()
        """The stream of the newest request's reply: the text that the reader has received."""
        self.cut_off: AIMessage | None = None
        """The part of the newest request's reply that arrived before its stream broke off, with its token counts.

        None otherwise.
        """
        self.request_log: RequestLog | None = None
        """Makes the events that record whole requests; None without the setting `record_requests`."""
        self.sent = request
        """The newest request that was sent; before the first one, the first request."""
        self._calls: list[ModelCallRecord] = []
        self._budget_met = budget_met
        if request.settings.model_options():
            self.sent = self.adopt(options_warned(request))

    async def outcome_of(self, work: Awaitable[T]) -> Outcome[T]:
        """Await work that sends requests through this exchange, and return what happened in them. Never raises.

        So no usage and no event is lost if the work fails or is cancelled; `Outcome.result` raises that exception
        later, a cancellation included. The outcome's loop state has the recorded model calls, which the next event
        reports.
        """
        reply, failure = None, None
        try:
            reply = await work
        except BaseException as error:  # noqa: BLE001 - `Outcome.result` raises it, after the node has what happened
            failure = error
        loop: LoopState = {**self.request.loop}
        if self._calls:
            loop["model_calls"] = [*loop.get("model_calls", ()), *self._calls]
        try:
            return Outcome(reply, failure, loop, self.events, self.usage, self.stream, self.cut_off)
        finally:
            del failure  # as in `Outcome.result`

    def adopt(self, change: ChangedRequest) -> NextRequest:
        """Use a changed request for all later requests of the pass, log and record the warnings about the change, and
        return the request.

        What later requests take over is the loop state alone: a hook's request, and one that is in text mode for one
        time, do not replace the agent's own.
        """
        if change.request.loop is not self.request.loop:
            self.request = self.request.override(loop=change.request.loop)
        for message, logged in change.warnings:
            self.warn(message, logged)
        return change.request

    def change_loop(self, **keys: Any) -> None:
        """Set keys of the loop state for all later requests."""
        self.request = self.request.override(loop={**self.request.loop, **keys})

    def record(self, **recovery: Any) -> None:
        """Set keys of `Recovery` (the measures taken after failed requests of this input) for all later requests."""
        self.request = self.request.with_recovery(**recovery)

    async def send(
        self,
        request: NextRequest,
        ask: Callable[[NextRequest, StreamWatch], Awaitable[T]],
        *,
        purpose: Purpose,
        recover: Callable[[NextRequest, Exception], ChangedRequest] | None = None,
        visibility: Callable[[], Visibility] = SentinelFilter,
    ) -> T:
        """Send a request and return the reply. After a failure, send it again in a changed form, until no change can
        help.

        Afterwards `sent` is the request that was answered. A request is not sent again once its reply has begun to
        reach the reader. Model calls, warnings and the usage of replies that cannot be used are recorded; the caller
        counts that of the returned one.

        Args:
            request: The request.
            ask: Sends one attempt; receives the request and the stream that its tokens pass through.
            purpose: What the reply is for, as recorded.
            recover: Returns the changed request after a failure; None for `recovered`. If it is given, a long wait that
                the provider asks for is waited for, even if there is a fallback model.
            visibility: Builds the filter that holds back parts of the reply from the reader.

        Raises:
            RefusedError: The model refused, or the provider's error is a content filter, which gives a fixed answer;
                the error's message is the answer. A warning is recorded, and nothing is sent again.
            PlanningError: A structured plan is still invalid after its repair; nothing is sent again.
            Exception: The error of the last provider; `LimitMetError` if a limit forbade the repair of a plan.
        """
        with self.metered(purpose):
            while True:
                request = self.begin_request(request)
                self.stream = request.new_watch(visibility)
                limit_waits(fallback=request.has_fallback and recover is None, ends=request.ends)
                try:
                    return await ask(request, self.stream)
                except RefusedError as refused:
                    self.count(refused.usage, refused.message.usage_metadata)
                    self.warn_of_refusal()
                    raise
                except PlanningError as error:
                    self.count(error.usage, None)
                    raise
                # The provider's own error decides how to recover.
                except RepairRequestError as failed:
                    self.count(failed.usage, None)
                    failure = failed.error
                except Exception as error:  # noqa: BLE001 - a provider may raise anything; it is raised again below
                    failure = error
                if is_content_refusal(failure):
                    self.warn_of_refusal()
                    raise RefusedError(AIMessage(REFUSED), NO_USAGE) from failure
                # A reader cannot take back what it has received.
                if self.stream.is_committed:
                    raise failure
                # Adopted also if it may not help: it holds the length of a request that was too long.
                change = (recover or recovered)(request, failure)
                request = self.adopt(change)
                if not change.may_help:
                    raise failure

    def begin_request(self, request: NextRequest) -> NextRequest:
        """Prepare a request for sending: shorten it if needed, store it as `sent`, and return it.

        It is shortened, with a warning, if the model has refused a request of this length in this input; later requests
        are shortened, too. A hook's request is never shortened.
        """
        if request.of_hook is None and "too_long" in request.loop.get("recovery", {}):
            request = self.adopt(fitted(request))
        self.sent = request
        return request

    @contextmanager
    def metered(self, purpose: Purpose) -> Iterator[None]:
        """Record model calls, warnings and usage of the requests sent inside the `with` block, also if the block
        raises.

        Args:
            purpose: What the replies of the requests are for.
        """
        before = extra_usage.set(extra := ExtraUsage())
        try:
            yield
        finally:
            extra_usage.reset(before)
            self.count_extra(extra, purpose)

    def count_extra(self, extra: ExtraUsage, purpose: Purpose) -> None:
        """Record what the requests of a block left in `extra`, apart from their replies.

        Model calls are logged and kept for the next event; events are recorded; the reply that was cut off becomes
        `cut_off`; texts and replies that middleware replaced become `warning` and `hook` events. Usage of replies that
        a hook or middleware requested itself is added, and requests that middleware answered without the model are
        subtracted from `model_calls`.

        Args:
            extra: What the requests left.
            purpose: What their replies are for.
        """
        self.cut_off = extra.cut_off
        if extra.timed:
            self._record_model_calls(extra.timed, purpose)
        if self.stream.replaced:
            self.warn_of_replaced(self.stream.replaced)
        for type_, fields in extra.events:
            self.report(type_, fields, purpose)
        for name, own in extra.replaced:
            given = None if own is None else (str(own.text), calls_of(own))
            self.report_hook(name, "replaced", given, plans=purpose == "plan")
        for reply in extra.replies:
            self.count_reply(reply)
        if extra.uncalled:
            self.usage = add_usage(self.usage, {**NO_USAGE, "model_calls": -extra.uncalled})

    def limit_met(self, used: Usage, newest: AIMessage | None) -> LimitMet | None:
        """Return the limit that forbids another request for a plan, and its size; None if there is none.

        Args:
            used: Usage that `usage` does not include yet.
            newest: The newest reply, whose tokens estimate those of the next request; None for the newest of the
                history.
        """
        total, most = add_usage(self.usage, used), self.request.settings.max_turns
        if most is not None and self.request.loop["turn"] + total["model_calls"] >= most:
            return "turn_limit", most
        return self._budget_met(total, newest)

    def count_reply(self, reply: AIMessage) -> None:
        """Add the usage of a reply that `send` does not count, such as that of a model call in a hook."""
        self.usage = add_usage(self.usage, usage_of(reply, self.request.settings.prices))

    def count(self, usage: Usage, last: UsageMetadata | None) -> None:
        """Add usage, and warn once per input if the newest request filled `_CROWDED` of the model's context window.

        There is no warning if the window is unknown, or if old messages are summarized.

        Args:
            usage: The usage.
            last: The token counts of the newest reply; None to skip the check of the window.
        """
        self.usage = add_usage(self.usage, usage)
        if last is None or not last["input_tokens"]:
            return
        window = self.sent.window
        if window is None or last["input_tokens"] < _CROWDED * window:
            return
        if self.request.summarizes or self.request.loop.get("recovery", {}).get("crowded"):
            return
        self.record(crowded=True)
        share = last["input_tokens"] / window
        self.warn(
            f"The request took {last['input_tokens']:,} of the {window:,} tokens that {self.sent.model.name} can read "
            f"({share:.0%}); once it is full, the older part of the conversation is left out."
        )

    def warn(self, message: str, logged: str = "", **fields: Any) -> None:
        """Log a warning, and record it as a `warning` event.

        Args:
            message: The warning, for the user.
            logged: Text for the log in place of the message; empty to log the message.
            fields: Further fields of the event.
        """
        logger.warning("%s", logged or message, extra=IN_HISTORY)
        self.events.append(event("warning", self.request.loop["step"], message=message, **fields))

    def report(self, type_: str, fields: dict[str, Any], purpose: Purpose) -> None:
        """Record an event that a request produced: a warning, or a call that the provider itself ran.

        Args:
            type_: The event's type.
            fields: The event's own fields.
            purpose: What the reply of the request is for; an event of planning, except a warning, belongs to the next
                step.
        """
        if type_ == "warning":
            self.warn(**fields)
        else:
            step = self.request.loop["step"] + (purpose == "plan")
            self.events.append(event(type_, step, **to_json_safe(fields)))

    def warn_of_replaced(self, texts: list[str]) -> None:
        """Record streamed texts that middleware or a hook has replaced, as commentary of `warning` events.

        Empties the list.
        """
        while texts:
            self.warn(REPLACED, commentary=texts.pop(0))

    def warn_of_refusal(self) -> None:
        """Warn that the model or its provider refused the newest request."""
        self.warn(f"{self.sent.model.name} {REFUSAL_WARNING}")

    def warn_of_invention(self, invented: int) -> None:
        """Warn that the model invented a tool result or a turn of the user, which was removed from its reply.

        Args:
            invented: Number of removed characters; 0 adds no warning.
        """
        if invented:
            self.warn(invention_warning(self.sent.model.name, invented))

    def report_hook(
        self,
        name: str,
        action: HookAction,
        reply: tuple[str, Sequence[Call]] | None,
        added: Sequence[AnyMessage] = (),
        *,
        plans: bool,
    ) -> None:
        """Record what a loop hook or middleware did, as a `hook` event with `name`, `action`, and `reply`, `calls` and
        `messages` where there are any.

        Args:
            name: The hook's name.
            action: What it did to the reply.
            reply: The text and the calls of the model's own reply; None if no model was asked.
            added: Messages that the hook adds to requests.
            plans: Whether the request was for a plan; its event belongs to the next step.
        """
        text, calls = reply or ("", ())
        fields: dict[str, Any] = {} if reply is None else {"reply": text}
        if calls:
            fields["calls"] = [{"name": each["name"], "arguments": to_json_safe(each["arguments"])} for each in calls]
        if added:
            fields["messages"] = [{"type": each.type, "content": to_json_safe(each.content)} for each in added]
        self.events.append(event("hook", self.request.loop["step"] + plans, name=name, action=action, **fields))

    def _record_model_calls(self, sent: Sequence[TimedRequest], purpose: Purpose) -> None:
        """Keep the records of requests for the next event, and log each; with `record_requests`, add an event with each
        request's content.

        Args:
            sent: The measured requests.
            purpose: What their replies are for.
        """
        records = [_record(each, purpose, self.request.settings.prices) for each in sent]
        self._calls += records
        for each in records:
            logger.info(
                "The model %s took %.3f s for the %s: %d + %d tokens%s",
                each["model"],
                each["duration_s"],
                each["purpose"],
                each.get("input_tokens", 0),
                each.get("output_tokens", 0),
                f", {each['error']}" if "error" in each else "",
            )
        if self.request_log is not None:
            step = self.request.loop["step"] + (purpose == "plan")
            learned = self.sent.deps.client.endpoint.learned
            made = [self.request_log.record(*each, step, learned) for each in zip(sent, records, strict=True)]
            self.events += [entry for entry in made if entry is not None]


def _record(request: TimedRequest, purpose: Purpose, prices: Mapping[str, Price] | None = None) -> ModelCallRecord:
    """Return the record of one request to a model in the form of events: purpose, model, times, tokens, cost and error.

    Tokens, cost, the time of the first token and the error are absent where unknown. The model is the one that the
    reply names, if it names one.

    Args:
        request: The measured request, after its end.
        purpose: What its reply is for.
        prices: Prices by model name; None to record no cost.
    """
    reply = request.reply
    named = reply.response_metadata.get("model_name") or reply.response_metadata.get("model") if reply else None
    record = ModelCallRecord(
        purpose=purpose,
        model=str(named or request.model),
        started=request.started.isoformat(timespec="microseconds"),
        duration_s=round(request.duration_s, 6),
    )
    if request.first_token_s is not None:
        record["first_token_s"] = round(request.first_token_s, 6)
    # LangChain gives a reply from a model's cache only its cost.
    if reply is not None and reply.usage_metadata is not None and "input_tokens" in reply.usage_metadata:
        usage = usage_of(reply, prices)
        record["input_tokens"], record["output_tokens"] = usage["input_tokens"], usage["output_tokens"]
        if "cost" in usage:
            record["cost"] = usage["cost"]
    if request.error:
        record["error"] = request.error
    return record
