"""Exports the protocol of loop hooks and the built-in hooks."""

from __future__ import annotations

from graph_agent.base.errors import HookError
from graph_agent.core.extensions.hook_protocol import (
    HookRequest,
    HookResponse,
    LoopHook,
    LoopPlan,
    OnError,
    RequestPatch,
)

__all__ = ["HookError", "HookRequest", "HookResponse", "LoopHook", "LoopPlan", "OnError", "RequestPatch"]
