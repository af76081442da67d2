"""Defines the delegate protocol: an agent that answers a task in a run of its own."""

from __future__ import annotations

from graph_agent.core.extensions.delegation import (
    DEPTH_LEFT,
    AskingDelegate,
    ContinuingDelegate,
    Delegate,
    Delegation,
    DelegationResult,
    LateDelegate,
)
from graph_agent.core.extensions.delegation import BackgroundDelegate as BackgroundDelegate
from graph_agent.core.extensions.delegation import started_in_background as started_in_background

__all__ = [
    "DEPTH_LEFT",
    "AskingDelegate",
    "ContinuingDelegate",
    "Delegate",
    "Delegation",
    "DelegationResult",
    "LateDelegate",
]
