"""Approvals: which calls wait for a person, the request that the person receives, and the decisions that answer it.

A request has the shape of LangChain's `HITLRequest`, and an answer that of its `HITLResponse`:
`{"decisions": [approve(), reject("Too late."), edit({"path": "b.txt"}), respond("42")]}`.
"""

from __future__ import annotations

from graph_agent.approvals.decisions import Decision, approve, edit, reject, respond
from graph_agent.approvals.policy import Review
from graph_agent.approvals.requests import ApprovalRequest, HeldCall

__all__ = ["ApprovalRequest", "Decision", "HeldCall", "Review", "approve", "edit", "reject", "respond"]
