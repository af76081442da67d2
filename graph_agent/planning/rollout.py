"""Selection of a session's planner: by the configuration, a rollout, or the operator's environment variable.

With `AGENTIC_LOOP_ENABLED=false` every session plans once, up front (`planner="dag"`), with a structured plan in every
mode of `tool_calling`. With `true`, sessions in wave mode plan wave by wave; other modes are unchanged, because they
ask the model after each wave anyway.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from graph_agent.config import LoopConfig, Planner
from graph_agent.errors import ConfigError

_VARIABLE = "AGENTIC_LOOP_ENABLED"


def planner_of(session_id: str, settings: LoopConfig, agentic_loop: bool | None) -> Planner:
    """The planner of a session; the same in every process and at any time.

    Args:
        session_id: The session's id.
        settings: `rollout` is the share of sessions that plan wave by wave; if it is None, `planner` applies.
        agentic_loop: The operator's setting for every session; None for none.
    """
    if agentic_loop is not None:
        return "wave" if agentic_loop else "dag"
    if settings.rollout is None:
        return settings.planner
    position = int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:8]) / 2**64
    return "wave" if position < settings.rollout else "dag"


def agentic_loop_from_env(environ: Mapping[str, str] = os.environ) -> bool | None:
    """Read the operator's setting from `AGENTIC_LOOP_ENABLED`; None if it is not set.

    Raises:
        ConfigError: If it is neither `true` nor `false`.
    """
    text = environ.get(_VARIABLE, "").strip().lower()
    if text in ("true", "false", ""):
        return {"true": True, "false": False, "": None}[text]
    raise ConfigError(f"{_VARIABLE}={text!r}: write 'true' or 'false', or unset it.")
