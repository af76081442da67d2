"""Compares events that were sent before they were stored with the stored ones, whose times may be later."""

from __future__ import annotations

from typing import Any


def without_times(events: list[Any]) -> list[Any]:
    """The events without the time at which they were made, and without how long their message had waited."""
    return [{name: value for name, value in event.items() if name not in ("ts", "queued_s")} for event in events]
