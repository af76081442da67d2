"""Traces agents with OpenTelemetry (extra `otel`): spans and metrics by the conventions for generative AI."""

from __future__ import annotations

from graph_agent.integrations.otel import instrument, instrument_from_env, is_switched_on, uninstrument

__all__ = ["instrument", "instrument_from_env", "is_switched_on", "uninstrument"]
