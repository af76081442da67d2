"""Approval requests among the data of a remote agent's question."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NotRequired

from a2a.types import Part
from google.protobuf.json_format import MessageToDict
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from graph_agent._internal.text import plain
from graph_agent.a2a.wire import restore_integers
from graph_agent.approvals.requests import ActionRequest, ReviewConfig


class _Request(TypedDict):
    action_requests: list[ActionRequest]
    review_configs: list[ReviewConfig]
    call_ids: NotRequired[list[str]]
    error: NotRequired[str]
    delegate: NotRequired[str]


_REQUEST = TypeAdapter(_Request)


def approval_request_of(parts: Iterable[Part]) -> dict[str, Any] | None:
    """Return the approval request in the parts of a question; None for none, or for one that is malformed."""
    for part in parts:
        if part.WhichOneof("content") == "data":
            try:
                request = _REQUEST.validate_python(plain(restore_integers(MessageToDict(part.data))))
            except ValidationError:
                continue
            if _fits(request):
                return {**request}
    return None


def _fits(request: _Request) -> bool:
    """Whether the lists of a request have the same length, and each call has an id and a decision."""
    actions, ids = request["action_requests"], request.get("call_ids")
    if not actions or not all(config["allowed_decisions"] for config in request["review_configs"]):
        return False
    return ids is None or len({*ids}) == len(actions) == len(request["review_configs"])
