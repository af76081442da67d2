"""Reads the approval request in a remote agent's question."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NotRequired

from a2a.types import Part
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.approvals.requests import ActionRequest, ReviewConfig
from graph_agent.integrations.delegates.a2a_parts import part_data


class _Request(TypedDict):
    """The form of an approval request."""

    action_requests: list[ActionRequest]
    review_configs: list[ReviewConfig]
    call_ids: NotRequired[list[str]]
    error: NotRequired[str]
    delegate: NotRequired[str]


_REQUEST = TypeAdapter(_Request)
"""Validates an approval request of a remote agent: a question whether calls may run."""


def approval_request_of(parts: Iterable[Part]) -> dict[str, Any] | None:
    """Return the first well-formed approval request in the parts of a question; None if there is none."""
    for part in parts:
        if part.WhichOneof("content") == "data":
            try:
                request = _REQUEST.validate_python(to_json_safe(part_data(part)))
            except ValidationError:
                continue
            if _fits(request):
                return {**request}
    return None


def _fits(request: _Request) -> bool:
    """Whether a request has calls, each config allows a decision, and the ids, if any, are distinct.

    There must be as many ids as calls and as configs.
    """
    actions, ids = request["action_requests"], request.get("call_ids")
    if not actions or not all(config["allowed_decisions"] for config in request["review_configs"]):
        return False
    return ids is None or len({*ids}) == len(actions) == len(request["review_configs"])
