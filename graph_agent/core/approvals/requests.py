"""Builds the request for decisions that interrupts the graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from langgraph.types import Interrupt

DecisionType = Literal["approve", "edit", "reject", "respond"]
"""A person's decision on a call: run it, run another in its place, do not run it, or use a text as its result."""
DECISIONS: tuple[DecisionType, ...] = ("approve", "edit", "reject", "respond")


class HeldCall(TypedDict):
    """A call that waits for a person's decision."""

    id: str
    """Id of the call."""
    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    arguments: dict[str, Any]
    """The arguments, with references replaced by their values."""
    allowed_decisions: list[DecisionType]
    """The decisions that its policy allows; at least one."""
    description: NotRequired[str]
    """Text for the person; absent if there is none."""


class ActionRequest(TypedDict):
    """A call, as in LangChain's `ActionRequest`."""

    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    args: dict[str, Any]
    """The arguments."""
    description: NotRequired[str]
    """Text for the person; absent if there is none."""


class ReviewConfig(TypedDict):
    """The decisions allowed for a call, as in LangChain's `ReviewConfig`."""

    action_name: str
    """Name of the call."""
    allowed_decisions: list[DecisionType]
    """The allowed decisions."""


class ApprovalRequest(TypedDict):
    """The value of an approval's interrupt: LangChain's `HITLRequest` with two more keys.

    The three lists have one entry for each call that waits, in the same order.
    """

    action_requests: list[ActionRequest]
    """The calls."""
    review_configs: list[ReviewConfig]
    """Their allowed decisions."""
    call_ids: list[str]
    """Their ids, by which single calls can be decided."""
    error: NotRequired[str]
    """Why the previous answer was not accepted; absent for the first request."""


def request_for(calls: Sequence[HeldCall], error: str | None = None) -> ApprovalRequest:
    """Return the request for decisions on some calls, with the error of the previous answer, if any."""
    request: ApprovalRequest = {
        "action_requests": [_action(call) for call in calls],
        "review_configs": [
            {"action_name": call["name"], "allowed_decisions": call["allowed_decisions"]} for call in calls
        ],
        "call_ids": [call["id"] for call in calls],
    }
    return request if error is None else {**request, "error": error}


def _action(call: HeldCall) -> ActionRequest:
    action: ActionRequest = {"name": call["name"], "args": call["arguments"]}
    return {**action, "description": call["description"]} if "description" in call else action


def is_approval_request(value: Any) -> bool:
    """Whether the value of an interrupt is an `ApprovalRequest`, or a `HITLRequest` of LangChain's middleware."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("action_requests"), list)
        and isinstance(value.get("review_configs"), list)
    )


def request_of(interrupt: Interrupt) -> Mapping[str, Any] | None:
    """Return the approval request of an interrupt; None if it asks for something else.

    The value of LangChain's middleware in its mode `per_call` is one call, and becomes a request of that call.
    """
    value = interrupt.value
    if is_single_call(value):
        config: ReviewConfig = {"action_name": value["name"], "allowed_decisions": _published(interrupt)}
        action = {key: value[key] for key in ("name", "args", "description") if key in value}
        return {"action_requests": [action], "review_configs": [config], "call_ids": [value["tool_call_id"]]}
    return value if is_approval_request(value) else None


def approval_requests(interrupts: Sequence[Interrupt]) -> dict[str, Mapping[str, Any]]:
    """Return the approval requests of open interrupts, by interrupt id."""
    return {each.id: request for each in interrupts if (request := request_of(each)) is not None}


def is_single_call(value: Any) -> bool:
    """Whether the value of an interrupt is one call, as LangChain's middleware asks in its mode `per_call`."""
    return (
        isinstance(value, Mapping)
        and value.get("type") == "tool_approval"
        and isinstance(value.get("args"), Mapping)
        and {"name", "tool_call_id"} <= value.keys()
    )


def _published(interrupt: Interrupt) -> list[DecisionType]:
    # The allowed decisions are published in the schema of the answer only.
    schema = json.dumps(interrupt.response_schema or {}, default=str)
    return [kind for kind in DECISIONS if f'"{kind}"' in schema] or [*DECISIONS]


def joined_calls(requests: Sequence[Mapping[str, Any]]) -> list[HeldCall]:
    """Return the calls of all requests; they are numbered from 1 if requests use the same id."""
    calls = [call for request in requests for call in calls_of_request(request)]
    if len({call["id"] for call in calls}) == len(calls):
        return calls
    return [{**call, "id": str(number)} for number, call in enumerate(calls, 1)]


def joined_request(requests: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return one request for the calls of all requests, in their order."""
    if len(requests) == 1:
        return requests[0]
    errors = [request["error"] for request in requests if "error" in request]
    return request_for(joined_calls(requests), " ".join(errors) or None)


def calls_of_request(request: Mapping[str, Any]) -> list[HeldCall]:
    """Return the calls of a request; those of LangChain's middleware, which has no ids, are numbered from 1."""
    actions, configs = request["action_requests"], request["review_configs"]
    ids = request.get("call_ids") or [str(number) for number in range(1, len(actions) + 1)]
    by_name = {config["action_name"]: config for config in reversed(configs)}
    calls: list[HeldCall] = []
    for at, (id_, action) in enumerate(zip(ids, actions, strict=True)):
        placed = configs[at] if at < len(configs) else {}
        config = placed if placed.get("action_name") == action["name"] else by_name.get(action["name"], {})
        call: HeldCall = {
            "id": id_,
            "name": action["name"],
            "arguments": action["args"],
            "allowed_decisions": config.get("allowed_decisions", [*DECISIONS]),
        }
        calls.append({**call, "description": action["description"]} if "description" in action else call)
    return calls
