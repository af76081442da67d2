"""Traces agents with OpenTelemetry (extra `otel`): spans and metrics by the conventions for generative AI."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from graph_agent.base._internal import telemetry
from graph_agent.base._internal.extras import needs_extra
from graph_agent.base.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument", "instrument_from_env", "is_switched_on", "uninstrument"]

SpanName = Literal["invoke_agent", "plan", "chat", "execute_tool", "feedback"]
ALL_SPANS: tuple[SpanName, ...] = ("invoke_agent", "plan", "chat", "execute_tool", "feedback")
"""All operations that may get spans."""
VARIABLE = "GRAPH_AGENT_OTEL"
"""Environment variable that switches tracing on for the commands."""
CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""OpenTelemetry's environment variable for content in spans."""


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    spans: Collection[SpanName] = ALL_SPANS,
    capture_content: bool | None = None,
) -> None:
    """Trace all agents of this process from now on; replaces an earlier call's settings.

    Args:
        tracer_provider: Receives the spans; None for the global one.
        meter_provider: Receives the metrics; None for the global one.
        spans: The operations that get spans. Leave out what another instrumentation traces, such as `chat`.
        capture_content: Whether spans have messages, arguments and results, with secrets masked as in logs; None for
            the value of `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`: True for `true`, `1`, `span_only` and
            `span_and_event` in any case, else False.

    Raises:
        MissingExtraError: The extra `otel` is not installed.
    """
    with needs_extra("OpenTelemetry", "otel"):
        from graph_agent.integrations.otel.observer import OtelObserver
    if capture_content is None:
        capture_content = os.environ.get(CONTENT_VARIABLE, "").lower() in ("true", "1", "span_only", "span_and_event")
    telemetry.observer = OtelObserver(tracer_provider, meter_provider, frozenset(spans), content=capture_content)


def uninstrument() -> None:
    """End the tracing of agents; spans that are still open are exported when they end."""
    telemetry.observer = None


def is_switched_on() -> bool:
    """Whether the commands are to trace: `GRAPH_AGENT_OTEL` is `true` or `1`.

    Raises:
        ConfigError: The variable has another value than `true`, `false`, `1`, `0` or an empty one.
    """
    text = os.environ.get(VARIABLE, "").strip().lower()
    if text not in ("true", "1", "false", "0", ""):
        raise ConfigError(f"{VARIABLE}={text!r}: write 'true' or 'false', or unset it.")
    return text in ("true", "1")


def instrument_from_env() -> None:
    """Trace all agents of this process; without a global provider of traces, set one that exports by OTLP over HTTP.

    Exporters of traces and metrics are set together (see `export_by_otlp`). OpenTelemetry's own variables configure
    them, such as `OTEL_EXPORTER_OTLP_ENDPOINT`.

    Raises:
        MissingExtraError: The extra `otel` is not installed.
    """
    with needs_extra(f"{VARIABLE}=true", "otel"):
        from graph_agent.integrations.otel.observer import export_by_otlp
    export_by_otlp()
    instrument()
