"""Handles structured plans: the schema of a wave, references between its calls, and parsing of replies."""

from __future__ import annotations

from graph_agent.base.waves.schema import PlanError, PlanningResult, WaveCall, check_wave, select

__all__ = ["PlanError", "PlanningResult", "WaveCall", "check_wave", "select"]
