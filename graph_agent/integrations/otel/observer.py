"""Turns what runs do into OpenTelemetry spans and metrics.

A plan is the model's reply with the next calls; calls may need results of other calls.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from graph_agent.base._internal.secrets import mask_secrets
from graph_agent.base._internal.text import text_of
from graph_agent.base.calls import delegate_name, is_delegation
from graph_agent.base.history.events import NOT_RUN, SUCCESSES
from graph_agent.base.origins import origins_text
from graph_agent.base.types import SessionStatus, plan_id_of
from graph_agent.base.usage import TimedRequest
from graph_agent.integrations.otel import conventions as names

_SCOPE = "graph_agent"


@dataclass(slots=True)
class _RunSpans:
    """The span of a run in progress, and the figures that are recorded at its end."""

    name: str
    context: context.Context
    """The context of the run's root span."""
    span: Span | None
    session_id: str
    since: float = field(default_factory=time.monotonic)
    plan: SpanContext | None = None
    """The span of the newest plan; None before the first."""
    calls: dict[str, SpanContext] = field(default_factory=dict)
    """Plan id of a call → its span, for links from calls that need it."""
    model_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    error: str = ""


@dataclass(slots=True)
class _CallSpan:
    """The span of a call in progress; `token` restores the context before it."""

    span: Span | None
    name: str
    token: Any
    since: float = field(default_factory=time.monotonic)


_current: ContextVar[_RunSpans | None] = ContextVar("graph_agent_otel_run", default=None)
"""The run of the current node; None outside of a run."""


class OtelObserver:
    """Implements `Observer` with OpenTelemetry.

    Args:
        tracer_provider: Receives the spans; None for the global one.
        meter_provider: Receives the metrics; None for the global one.
        spans: The operations that get spans.
        content: Whether spans have messages, arguments and results.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
        spans: Collection[str],
        *,
        content: bool,
    ) -> None:
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider, schema_url=names.SCHEMA_URL)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider, schema_url=names.SCHEMA_URL)
        self._spans, self._content = spans, content
        self._model_s = meter.create_histogram(names.INFERENCE_DURATION, "s")
        self._first_chunk_s = meter.create_histogram(names.INFERENCE_FIRST_CHUNK, "s")
        self._input_tokens = meter.create_counter(names.INFERENCE_INPUT_TOKENS, "{token}")
        self._output_tokens = meter.create_counter(names.INFERENCE_OUTPUT_TOKENS, "{token}")
        self._agent_s = meter.create_histogram(names.AGENT_DURATION, "s")
        self._agent_models = meter.create_histogram(names.AGENT_INFERENCE_CALLS, "{call}")
        self._agent_tools = meter.create_histogram(names.AGENT_TOOL_CALLS, "{call}")
        self._tool_s = meter.create_histogram(names.TOOL_DURATION, "s")
        self._feedback = meter.create_counter(names.FEEDBACK_COUNT, "{rating}")
        self._speculation = meter.create_counter(names.SPECULATION_COUNT, "{call}")
        self._speculation_s = meter.create_counter(names.SPECULATION_SECONDS, "s")
        self._speculation_cost = meter.create_counter(names.SPECULATION_COST, "{currency}")

    @contextmanager
    def run(self, run: Any, name: str) -> Iterator[None]:
        """Record a span, if runs get spans, and the metrics of one run, during the block.

        The span has the session's id, the tokens and the error; metrics count model and tool calls. An exception in the
        block is recorded as the error and raised; leaving a stream early is no error.

        Args:
            run: The run, which keeps the span in `observed`.
            name: Name of the agent.
        """
        attributes = {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT_NAME: name,
            **({names.CONVERSATION_ID: run.identity.session_id} if run.identity.session_id else {}),
        }
        span = self._start(names.INVOKE_AGENT, name, attributes)
        at = context.get_current() if span is None else trace.set_span_in_context(span)
        run.observed = seen = _RunSpans(name, at, span, run.identity.session_id)
        try:
            yield
        except BaseException as error:
            # A consumer that leaves the stream is no failure.
            if not isinstance(error, GeneratorExit):
                seen.error = seen.error or type(error).__name__
            raise
        finally:
            about = {names.AGENT_NAME: name, **({names.ERROR_TYPE: seen.error} if seen.error else {})}
            self._agent_s.record(time.monotonic() - seen.since, about)
            self._agent_models.record(seen.model_calls, about)
            self._agent_tools.record(seen.tool_calls, about)
            if span is not None:
                span.set_attributes({names.INPUT_TOKENS: seen.input_tokens, names.OUTPUT_TOKENS: seen.output_tokens})
                _fail(span, seen.error)
                span.end()

    def enter(self, run: Any) -> None:
        """Make a run, and its span, the current one of this task.

        Does nothing for a run without `observed`, or if it is the current one already.
        """
        if run.observed is not None and _current.get() is not run.observed:
            _current.set(run.observed)
            # Not detached: a node has a context of its own, which ends with it.
            context.attach(run.observed.context)

    def event(self, entry: Mapping[str, Any]) -> None:
        """Add an event of the session to the span of the current run, with fields that have no content.

        A `status` event becomes an attribute instead, and the status `FAILED` an error of the run if it has none; an
        `error` event sets the error of the run. Types without fields in `EVENT_FIELDS` are ignored, and all events
        without a span.
        """
        run = _current.get()
        if run is None or run.span is None:
            return
        if entry["type"] == "status":
            run.span.set_attribute(names.STATUS, entry["to"])
            if entry["to"] == SessionStatus.FAILED:
                run.error = run.error or "failed"
        elif (fields := names.EVENT_FIELDS.get(entry["type"])) is not None:
            if entry["type"] == "error":
                run.error = entry["kind"]
            values = {f"{names.EVENT}{name}": entry[name] for name in fields if name in entry}
            if entry["type"] == "approval_request":
                values[f"{names.EVENT}calls"] = [call["name"] for call in entry["calls"]]
            run.span.add_event(f"{names.EVENT}{entry['type']}", {names.STEP: entry["step"], **values})

    def feedback(self, entry: Mapping[str, Any], session_id: str, agent: str) -> None:
        """Count feedback on an answer, and record a span of its own, without the note and the person.

        Args:
            entry: The `feedback` event.
            session_id: The session of the answer.
            agent: Name of the agent.
        """
        about = {names.AGENT_NAME: agent, names.SCORE_LABEL: entry["rating"]}
        self._feedback.add(1, about)
        span = self._start(
            names.FEEDBACK,
            agent,
            {
                names.OPERATION: names.FEEDBACK,
                names.CONVERSATION_ID: session_id,
                names.EVALUATION: names.FEEDBACK,
                names.SCORE: 1.0 if entry["rating"] == "up" else 0.0,
                f"{names.EVENT}answer": entry["answer"],
                **about,
            },
        )
        if span is not None:
            span.end()

    @contextmanager
    def plan(self, step: int) -> Iterator[None]:
        """Record a span for one plan during the block, if plans get spans; later calls of the run are linked to it.

        `step` is the number of the plan. An exception in the block ends the span and is raised.
        """
        run = _current.get()
        span = self._start(names.PLAN, "", {names.OPERATION: names.PLAN, names.STEP: step, **_conversation(run)})
        if span is None:
            yield
            return
        if run is not None:
            run.plan = span.get_span_context()
        with trace.use_span(span, end_on_exit=True, record_exception=False):
            yield

    def model_call(self, request: TimedRequest) -> None:
        """Record a span, if model requests get spans, and the metrics of a model request that has ended.

        Its tokens are added to those of the current run, if there is one. The span has the time of the request, and its
        messages only if spans have content.
        """
        run, reply = _current.get(), request.reply
        about = {
            names.OPERATION: names.CHAT,
            names.PROVIDER: request.kind,
            names.REQUEST_MODEL: request.model,
            **({names.ERROR_TYPE: request.error} if request.error else {}),
        }
        used: Mapping[str, Any] = (reply.usage_metadata if reply is not None else None) or {}
        tokens = {names.INPUT_TOKENS: used.get("input_tokens", 0), names.OUTPUT_TOKENS: used.get("output_tokens", 0)}
        self._model_s.record(request.duration_s, about)
        if request.first_token_s is not None:
            self._first_chunk_s.record(request.first_token_s, about)
        self._input_tokens.add(tokens[names.INPUT_TOKENS], about)
        self._output_tokens.add(tokens[names.OUTPUT_TOKENS], about)
        if run is not None:
            run.model_calls += 1
            run.input_tokens += tokens[names.INPUT_TOKENS]
            run.output_tokens += tokens[names.OUTPUT_TOKENS]
        started_ns = int(request.started.timestamp() * 1e9)
        # Begun in the past, because the figures of a request are known only at its end.
        span = self._start(names.CHAT, request.model, about, kind=SpanKind.CLIENT, start_ns=started_ns)
        if span is None:
            return
        span.set_attributes({**tokens, **_conversation(run)})
        span.set_attributes(
            {name: request.options[key] for key, name in names.REQUEST_OPTIONS.items() if request.options.get(key)}
        )
        if request.first_token_s is not None:
            span.set_attribute(names.TIME_TO_FIRST_CHUNK, request.first_token_s)
        if reply is not None:
            metadata = reply.response_metadata
            if model := metadata.get("model_name") or metadata.get("model"):
                span.set_attribute(names.RESPONSE_MODEL, str(model))
            if reason := metadata.get("finish_reason") or metadata.get("stop_reason"):
                span.set_attribute(names.FINISH_REASONS, [str(reason)])
        if self._content:
            span.set_attribute(names.INPUT_MESSAGES, _messages(request.messages))
            if reply is not None:
                span.set_attribute(names.OUTPUT_MESSAGES, _messages([reply]))
        _fail(span, request.error)
        span.end(started_ns + int(request.duration_s * 1e9))

    def speculation(self, source: str, outcome: str, seconds: float, cost: float) -> None:
        """Count a call or request that began before a plan asked for it, with its seconds and its cost.

        Args:
            source: What began it.
            outcome: `used` or `dropped`.
            seconds: Seconds that it has run.
            cost: Its cost; 0.0 if it is unknown.
        """
        run = _current.get()
        about = {names.SOURCE: source, names.OUTCOME: outcome, **({names.AGENT_NAME: run.name} if run else {})}
        self._speculation.add(1, about)
        self._speculation_s.add(seconds, about)
        if cost:
            self._speculation_cost.add(cost, about)

    def begin_call(self, call: Any) -> _CallSpan:
        """Begin the span of a call, and make it the current one; return an object for `leave_call` and `end_call`.

        A delegation has a span `invoke_agent`, any other call a span `execute_tool`; the call is counted in the run in
        any case. The span is linked to the plan of the run and to the calls that the call needs. Arguments are
        recorded, with secrets masked, only if spans have content. If such calls get no spans, the object has none, and
        the current span stays.
        """
        run = _current.get()
        links: list[Link] = []
        if run is not None:
            run.tool_calls += 1
            # By links, as a span has one parent and a call may need several others.
            needed = [run.calls[id_] for id_ in call.get("needs", ()) if id_ in run.calls]
            if run.plan is not None:
                links.append(Link(run.plan, {names.LINK: "wave"}))
            links += [Link(each, {names.LINK: "need"}) for each in needed]
        if is_delegation(call["name"]):
            target = delegate_name(call["name"])
            about = {names.OPERATION: names.INVOKE_AGENT, names.AGENT_NAME: target, names.TOOL_CALL_ID: call["id"]}
            span = self._start(names.INVOKE_AGENT, target, about, kind=SpanKind.CLIENT, links=links)
        else:
            about = {
                names.OPERATION: names.EXECUTE_TOOL,
                names.TOOL_NAME: call["name"],
                names.TOOL_CALL_ID: call["id"],
                names.TOOL_TYPE: "function",
            }
            span = self._start(names.EXECUTE_TOOL, call["name"], about, links=links)
        if span is None:
            return _CallSpan(None, call["name"], None)
        span.set_attributes(_conversation(run))
        if "origins" in call:
            # Without the parts of values, which are content.
            shown = {path: {**origin, "part": ""} for path, origin in call["origins"].items()}
            span.set_attribute(names.CALL_ORIGINS, origins_text({"origins": shown}))
            span.set_attribute(names.CALL_TAINTED, call.get("tainted", []))
        if self._content:
            span.set_attribute(names.TOOL_ARGUMENTS, _masked(call["arguments"]))
        if run is not None:
            run.calls[plan_id_of(call)] = span.get_span_context()
        return _CallSpan(span, call["name"], context.attach(trace.set_span_in_context(span)))

    def leave_call(self, begun: _CallSpan) -> None:
        """Make the span before the call the current one again; call it in the task of `begin_call`."""
        if begun.token is not None:
            context.detach(begun.token)

    def end_call(self, begun: _CallSpan, status: str, content: Any = None) -> None:
        """End the span of a call, and record its duration.

        Args:
            begun: The object that `begin_call` returned.
            status: How the call ended. A failure is recorded as the span's error; a call that did not run, waits or was
                interrupted has not failed.
            content: Its result, recorded with secrets masked and only if spans have content; None if it has no result.
        """
        failed = status not in SUCCESSES and status not in NOT_RUN and status not in ("interrupted", "waiting")
        about = {names.TOOL_NAME: begun.name, **({names.ERROR_TYPE: status} if failed else {})}
        self._tool_s.record(time.monotonic() - begun.since, about)
        if begun.span is None:
            return
        begun.span.set_attribute(names.CALL_STATUS, status)
        if self._content and content is not None:
            begun.span.set_attribute(names.TOOL_RESULT, _masked(content))
        _fail(begun.span, status if failed else "")
        begun.span.end()

    def inject(self, carrier: dict[str, Any]) -> None:
        """Add the current trace context to a mapping such as HTTP headers, in place."""
        propagate.inject(carrier)

    @contextmanager
    def extract(self, carrier: Mapping[str, Any]) -> Iterator[None]:
        """Continue, during the block, the trace in a mapping that `inject` has filled; without one, nothing changes."""
        token = context.attach(propagate.extract(carrier))
        try:
            yield
        finally:
            context.detach(token)

    def middleware(self, app: Any) -> Any:
        """Wrap an ASGI application to continue the trace in the headers of each request."""

        async def continue_trace(scope: Any, receive: Any, send: Any) -> None:
            """Call the application within the trace in the request's headers."""
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope.get("headers", ())}
            with self.extract(headers):
                await app(scope, receive, send)

        return continue_trace

    def _start(
        self,
        operation: str,
        name: str,
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: list[Link] | None = None,
        start_ns: int | None = None,
    ) -> Span | None:
        """Start a span inside the current one, named `<operation> <name>`; None if its operation gets no spans.

        `start_ns` is the time of the start in nanoseconds since the epoch; None for now. The caller ends the span.
        """
        if operation not in self._spans:
            return None
        title = f"{operation} {name}".rstrip()
        return self._tracer.start_span(title, kind=kind, attributes=attributes, links=links, start_time=start_ns)


def _conversation(run: _RunSpans | None) -> dict[str, str]:
    """Return the attribute with the session's id; empty outside of a session."""
    return {names.CONVERSATION_ID: run.session_id} if run is not None and run.session_id else {}


def _fail(span: Span, error: str) -> None:
    """Mark a span as failed with an error's type; does nothing for an empty one."""
    if error:
        span.set_attribute(names.ERROR_TYPE, error)
        span.set_status(Status(StatusCode.ERROR))


def _masked(value: Any) -> str:
    """Return a value as text or JSON, with secrets masked."""
    return mask_secrets(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
"""Type of a LangChain message → role in the conventions."""


def _messages(messages: Any) -> str:
    """Return messages as JSON in the form of OpenTelemetry's conventions, with secrets masked.

    Each has a `role`, and `parts` of the type `text`, `tool_call` or `tool_call_response`.
    """
    shown: list[dict[str, Any]] = []
    for message in messages:
        parts: list[dict[str, Any]] = []
        text = text_of(message.content)
        if message.type == "tool":
            parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": text})
        elif text:
            parts.append({"type": "text", "content": text})
        parts += [
            {"type": "tool_call", "id": call["id"], "name": call["name"], "arguments": call["args"]}
            for call in getattr(message, "tool_calls", ())
        ]
        shown.append({"role": _ROLES.get(message.type, message.type), "parts": parts})
    return _masked(shown)


def export_by_otlp() -> None:
    """Set global providers of traces and metrics that export by OTLP over HTTP.

    `OTEL_TRACES_EXPORTER=none` and `OTEL_METRICS_EXPORTER=none` leave out one of them. Does nothing if the program has
    set its own provider of traces.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # A provider that the program has set must not be replaced, and OpenTelemetry would only warn.
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    if os.environ.get("OTEL_TRACES_EXPORTER") != "none":
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    if os.environ.get("OTEL_METRICS_EXPORTER") != "none":
        metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
