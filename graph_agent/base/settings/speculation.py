"""Limits the work that an agent begins before a plan of the model asks for it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt

from graph_agent.base._internal.validation_text import describe_fields


class SpeculationBudget(BaseModel):
    """Limits of what one input may spend on work that no plan has asked for yet, such as calls that begin early.

    Work counts from its begin until a plan uses it, and to the end of the input if none does. A limit that is None does
    not apply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, json_schema_extra=describe_fields)

    calls: NonNegativeInt | None = 32
    """Calls that have begun early, and requests for predicted plans; at the limit, no more begin."""
    seconds: NonNegativeFloat | None = None
    """Seconds that they have run, added up; at the limit, those that run are cancelled."""
    cost: NonNegativeFloat | None = None
    """Cost of the requests for predicted plans, in the currency of `prices`, which it needs."""
