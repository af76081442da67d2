"""Which planner a session has: the configured one, its share of a rollout, or the operator's word.

`AGENTIC_LOOP_ENABLED=false` has every session plan once, everything up front (`planner="dag"`), by a structured plan in
every mode of `tool_calling`. `true` has sessions that plan by structured plans do so wave by wave; it changes nothing
elsewhere, where the model is asked again after each wave anyway.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from graph_agent.config import LoopConfig, Planner
from graph_agent.errors import ConfigError

_VARIABLE = "AGENTIC_LOOP_ENABLED"


def planner_of(session_id: str, settings: LoopConfig, agentic_loop: bool | None) -> Planner:
    """Which planner a session has, the same in every process and at every time.

    Args:
        session_id: The session's id.
        settings: Its `rollout` is the share of sessions that plan wave by wave; None for the configured `planner`.
        agentic_loop: The operator's word for every session; None for none.
    """
    if agentic_loop is not None:
        return "wave" if agentic_loop else "dag"
    if settings.rollout is None:
        return settings.planner
    drawn = int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:8]) / 2**64
    return "wave" if drawn < settings.rollout else "dag"


def agentic_loop_from_env(environ: Mapping[str, str] = os.environ) -> bool | None:
    """The operator's word on the planner, from `AGENTIC_LOOP_ENABLED`; None when it is not set.

    Raises:
        ConfigError: When it is neither `true` nor `false`.
    """
    text = environ.get(_VARIABLE, "").strip().lower()
    if text in ("true", "false", ""):
        return {"true": True, "false": False, "": None}[text]
    raise ConfigError(f"{_VARIABLE}={text!r}: write 'true' or 'false', or unset it.")
