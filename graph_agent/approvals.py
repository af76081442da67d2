"""Selects the calls that wait for a person, builds the request to the person, and reads the decisions.

A request has the shape of LangChain's `HITLRequest`, and an answer that of its `HITLResponse`:
`{"decisions": [approve(), reject("Too late."), edit({"path": "b.txt"}), respond("42")]}`.

The public names are imported on first access, so that the configuration, which validates policies, loads no decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from graph_agent.base.approvals.decisions import Decision, approve, edit, reject, respond
    from graph_agent.base.approvals.policy import Review
    from graph_agent.base.approvals.requests import ApprovalRequest, HeldCall

__all__ = ["ApprovalRequest", "Decision", "HeldCall", "Review", "approve", "edit", "reject", "respond"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_agent.base.approvals.decisions": "Decision approve edit reject respond",
        "graph_agent.base.approvals.policy": "Review",
        "graph_agent.base.approvals.requests": "ApprovalRequest HeldCall",
    },
)
