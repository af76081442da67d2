"""Selects the planner of a session: `wave` or `dag`.

The environment variable `AGENTIC_LOOP_ENABLED` decides for every session if it is set, otherwise the configuration.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from graph_agent.base.errors import ConfigError
from graph_agent.base.settings.config import LoopConfig, Planner

_VARIABLE = "AGENTIC_LOOP_ENABLED"


def planner_of(session_id: str, settings: LoopConfig, agentic_loop: bool | None) -> Planner:
    """Return the planner of a session: `wave` plans again after each wave of calls, `dag` makes one plan.

    The result depends only on the arguments, so it is the same in every process.

    Args:
        session_id: The session's thread id; empty for a run that stores nothing.
        settings: If `rollout` is set, it is the share of sessions, from 0 to 1, that use `wave`; a hash of the
            session's id decides which. Without it, `planner` applies to all sessions.
        agentic_loop: The operator's setting for every session: True for `wave`, False for `dag`, None if it is not set.
    """
    if agentic_loop is not None:
        return "wave" if agentic_loop else "dag"
    if settings.rollout is None:
        return settings.planner
    # A hash, not a random number: a session keeps its planner when another process continues it.
    position = int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:8]) / 2**64
    return "wave" if position < settings.rollout else "dag"


def agentic_loop_from_env(environ: Mapping[str, str] = os.environ) -> bool | None:
    """Read the operator's setting from `AGENTIC_LOOP_ENABLED`; None if it is not set or blank.

    Raises:
        ConfigError: The variable is neither `true` nor `false`, in any case of letters, with or without white space.
    """
    text = environ.get(_VARIABLE, "").strip().lower()
    if text in ("true", "false", ""):
        return {"true": True, "false": False, "": None}[text]
    raise ConfigError(f"{_VARIABLE}={text!r}: write 'true' or 'false', or unset it.")
