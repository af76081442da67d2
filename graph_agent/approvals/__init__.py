"""Selects the calls that wait for a person, builds the request to the person, and reads the decisions.

A request has the shape of LangChain's `HITLRequest`, and an answer that of its `HITLResponse`:
`{"decisions": [approve(), reject("Too late."), edit({"path": "b.txt"}), respond("42")]}`.

The public names are imported on first access, so that the configuration, which validates policies, loads no decisions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph_agent.approvals.decisions import Decision, approve, edit, reject, respond
    from graph_agent.approvals.policy import Review
    from graph_agent.approvals.requests import ApprovalRequest, HeldCall

__all__ = ["ApprovalRequest", "Decision", "HeldCall", "Review", "approve", "edit", "reject", "respond"]

_MODULES = {"ApprovalRequest": "requests", "HeldCall": "requests", "Review": "policy"}
"""Public name → module; the others are in `decisions`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'graph_agent.approvals' has no attribute {name!r}")
    return getattr(importlib.import_module(f"graph_agent.approvals.{_MODULES.get(name, 'decisions')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
