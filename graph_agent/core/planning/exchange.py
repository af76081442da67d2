"""Sends the requests of one pass through a node, recovers after a failure, and records what happened.

A pass is one execution of the node `plan`, `model` or `finalize`. To recover is to change a request after the model has
refused it; see `recovery`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.messages.ai import UsageMetadata

from graph_agent.base._internal.failure_log import IN_HISTORY, get_logger
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.calls import calls_of
from graph_agent.base.settings.config import Price
from graph_agent.base.types import NO_USAGE, Call, Usage
from graph_agent.base.usage import LimitMet, TimedRequest, add_usage, metered, usage_of
from graph_agent.core.hooks.protocol import HookAction
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.recovery import ChangedRequest, fitted, options_warned, recovered
from graph_agent.core.planning.refusals import RefusedError
from graph_agent.core.planning.reply import REPLACED
from graph_agent.core.planning.structured_plan import LimitCheck, PlanningError, RepairRequestError
from graph_agent.core.state.events import ModelCallRecord, Purpose, StoredEvent, event
from graph_agent.core.state.schema import LoopState
from graph_agent.models.errors import is_content_refusal
from graph_agent.models.finish import REFUSAL_WARNING, REFUSED
from graph_agent.models.reply_end import invention_warning
from graph_agent.models.stream_filters import SentinelFilter
from graph_agent.models.stream_watch import StreamWatch, Visibility
from graph_agent.models.waits import alternative

if TYPE_CHECKING:
    from graph_agent.core.state.model_requests import RequestLog

T = TypeVar("T")
_CROWDED = 0.8
"""Share of the context window from which on the user is warned."""
logger = get_logger("graph_agent.planning.request_state")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What happened in the requests of one pass, however they ended."""

    reply: T | None
    """What the work returned; None after a failure."""
    failure: BaseException | None
    """The exception that ended the work, a cancellation included; None if it returned."""
    loop: LoopState
    """The loop state, with the changes of the requests. A copy, which the caller may modify."""
    events: Sequence[StoredEvent]
    """Events of the requests, oldest first."""
    usage: Usage
    """Usage of all replies, unusable ones included."""
    stream: StreamWatch
    """The text of the newest request's reply that the reader has received."""
    cut_off: AIMessage | None
    """The part of the newest request's reply that arrived before a cut-off, with its tokens; None otherwise."""

    def result(self) -> T:
        """Return the reply, or raise the failure, a cancellation included."""
        if self.failure is None:
            return cast("T", self.reply)
        try:
            raise self.failure
        finally:
            # The traceback of the failure holds this frame, which would keep the history until a collection of cycles.
            del self


def no_limit(used: Usage, newest: AIMessage | None) -> LimitMet | None:
    """Return None: requests outside of an input have no budget."""


class Exchange:
    """The requests of one pass through a node, and what has happened in them so far.

    Work sends requests through it, each a `NextRequest`, and the node reads the `Outcome`. What one request changes for
    the next ones is in the loop state of `request`.

    Args:
        request: The first request.
        budget_met: Returns the budget that forbids another request, and its size; None if there is none. Called with
            the usage of this exchange and the newest reply.
    """

    def __init__(self, request: NextRequest, budget_met: LimitCheck = no_limit) -> None:
        self.request = request
        """The agent's own next request, with all changes so far."""
        self.usage: Usage = NO_USAGE
        """Usage of all replies so far, unusable ones included."""
        self.events: list[StoredEvent] = []
        """Events so far, oldest first."""
        self.stream = StreamWatch()
        """The text of the newest request's reply that the reader has received."""
        self.cut_off: AIMessage | None = None
        """The part of the newest request's reply that arrived before a cut-off, with its tokens; None otherwise."""
        self.request_log: RequestLog | None = None
        """The recorded requests of the session; None if none are recorded."""
        self.sent = request
        """The newest request that was sent; before the first, the first."""
        self._calls: list[ModelCallRecord] = []
        self._budget_met = budget_met
        if request.settings.model_options():
            self.sent = self.adopt(options_warned(request))

    async def outcome_of(self, work: Awaitable[T]) -> Outcome[T]:
        """Await work that sends requests through this exchange, and return what happened in them.

        Nothing is raised, so that no usage and no event is lost: `Outcome.result` raises what the work raised, also a
        cancellation.
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
        """Keep a changed request for all later requests of the pass, emit the change's warnings, and return the
        request.

        Of a hook's request, and of one in text mode, only the loop state is kept: the agent's own request goes on.
        """
        if change.request.loop is not self.request.loop:
            self.request = self.request.override(loop=change.request.loop)
        for message, logged in change.warnings:
            self.warn(message, logged)
        return change.request

    def change_loop(self, **keys: Any) -> None:
        """Change keys of the loop state for all later requests."""
        self.request = self.request.override(loop={**self.request.loop, **keys})

    def record(self, **recovery: Any) -> None:
        """Change keys of `Recovery` (measures taken for this input) in the loop state for all later requests."""
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
        """Send a request, changed after each failure, until it is answered or no change can help; return the reply.

        `sent` is then the request that it answers. A request whose reply has reached the reader is not sent again.

        Args:
            request: The request.
            ask: Sends one attempt; receives the request and the stream that its tokens pass through.
            purpose: What the reply is for.
            recover: Returns the request after a failed one; None for `recovered`. With another one, a long wait that
                the provider asks for is not cut short for a fallback model.
            visibility: Builds the filter of the parts of the reply that are held back from the reader.

        Raises:
            RefusedError: If the model or its provider refuses; the error's message is the answer.
            PlanningError: If a structured plan is invalid after its repair.
            Exception: The error of the last provider.
        """
        with self.metered(purpose):
            while True:
                request = self.begin_request(request)
                self.stream = request.new_watch(visibility)
                try:
                    with alternative(fallback=request.has_fallback and recover is None, ends=request.ends):
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
        """Make a request the newest one, and return it.

        It is shortened if the model has refused one of its length in this input; this holds for the later requests of
        the pass and is warned of. A hook's request is not shortened.
        """
        if request.of_hook is None and "too_long" in request.loop.get("recovery", {}):
            request = self.adopt(fitted(request))
        self.sent = request
        return request

    @contextmanager
    def metered(self, purpose: Purpose) -> Iterator[None]:
        """Record the model calls, warnings and usage of requests sent inside the block, also if it raises.

        Args:
            purpose: What the replies of the requests are for.
        """
        with metered() as extra:
            try:
                yield
            finally:
                self.cut_off = extra.cut_off
                if extra.timed:
                    self._record_model_calls(extra.timed, purpose)
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

    def limit_met(self, used: Usage, newest: AIMessage) -> LimitMet | None:
        """Return the limit that forbids another request for a plan, and its size; None if there is none.

        Args:
            used: Usage that `usage` does not include yet.
            newest: The newest reply, whose tokens estimate those of the next request.
        """
        total, most = add_usage(self.usage, used), self.request.settings.max_turns
        if most is not None and self.request.loop["turn"] + total["model_calls"] >= most:
            return "turn_limit", most
        return self._budget_met(total, newest)

    def count_reply(self, reply: AIMessage) -> None:
        """Add the usage of a reply that no other code counts, such as that of a model call in a hook."""
        self.usage = add_usage(self.usage, usage_of(reply, self.request.settings.prices))

    def count(self, usage: Usage, last: UsageMetadata | None) -> None:
        """Add usage; warn once per input if the newest request nearly filled the model's window.

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
        """Log a warning and record it as an event.

        Args:
            message: The warning, for the user.
            logged: Text that replaces the message in the log; empty for the message.
            fields: Further fields of the event.
        """
        logger.warning("%s", logged or message, extra=IN_HISTORY)
        self.events.append(event("warning", self.request.loop["step"], message=message, **fields))

    def report(self, type_: str, fields: dict[str, Any], purpose: Purpose) -> None:
        """Record an event of a request: a warning, or a call that the provider ran.

        Args:
            type_: The event's type.
            fields: The fields of that type.
            purpose: What the reply of the request is for.
        """
        if type_ == "warning":
            self.warn(**fields)
        else:
            step = self.request.loop["step"] + (purpose == "plan")
            self.events.append(event(type_, step, **to_json_safe(fields)))

    def warn_of_replaced(self, texts: list[str]) -> None:
        """Record streamed texts that middleware or a hook has replaced as commentary in warnings, and empty the
        list."""
        while texts:
            self.warn(REPLACED, commentary=texts.pop(0))

    def warn_of_refusal(self) -> None:
        """Warn that the model or its provider refused the newest request."""
        self.warn(f"{self.sent.model.name} {REFUSAL_WARNING}")

    def warn_of_invention(self, invented: int) -> None:
        """Warn that the model invented a result or turn, whose characters were dropped from its reply; nothing for
        0."""
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
        """Add a `hook` event.

        Args:
            name: The hook's name.
            action: What it did to the reply.
            reply: The text and the calls of the model's own reply; None if no model was asked.
            added: Messages that it adds to requests.
            plans: Whether the reply was to a request for a plan, which belongs to the next step.
        """
        text, calls = reply or ("", ())
        fields: dict[str, Any] = {} if reply is None else {"reply": text}
        if calls:
            fields["calls"] = [{"name": each["name"], "arguments": to_json_safe(each["arguments"])} for each in calls]
        if added:
            fields["messages"] = [{"type": each.type, "content": to_json_safe(each.content)} for each in added]
        self.events.append(event("hook", self.request.loop["step"] + plans, name=name, action=action, **fields))

    def _record_model_calls(self, sent: Sequence[TimedRequest], purpose: Purpose) -> None:
        """Record the times of requests for the next event, and, with `record_requests`, their content as events.

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
    """Return the record of a request to a model, for an event.

    Args:
        request: The measured request, after its end.
        purpose: What its reply is for.
        prices: Prices of models, by name; None for no costs.
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
