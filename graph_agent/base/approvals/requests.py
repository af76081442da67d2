"""Builds the request for decisions on calls, which is the value of the interrupt that asks a person."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired

from typing_extensions import TypedDict

from graph_agent.base.origins import ArgumentOrigin, TracedCall

if TYPE_CHECKING:
    from langgraph.types import Interrupt

DecisionType = Literal["approve", "edit", "reject", "respond"]
"""A person's decision on a call: run it, run another in its place, do not run it, or use a text as its result."""
DECISIONS: tuple[DecisionType, ...] = ("approve", "edit", "reject", "respond")


class HeldCall(TracedCall):
    """A call that waits for a person's decision, in the form that events and the graph's state store."""

    id: str
    """Id of the call."""
    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    arguments: dict[str, Any]
    """The arguments, with references replaced by their values."""
    allowed_decisions: list[DecisionType]
    """The decisions that the call's policy allows; at least one."""
    description: NotRequired[str]
    """Text for the person: that of the policy, and a sentence if the call may repeat the effect of an earlier one.
    Absent if there is none."""
    uncertain: NotRequired[bool]
    """True if the call may repeat the effect of an earlier one, so that no standing approval covers it: an equal call
    has an unknown outcome, or ran in the session from which this one is forked. Absent otherwise."""


class ActionRequest(TypedDict):
    """A call in a request, in the form of LangChain's `ActionRequest`."""

    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    args: dict[str, Any]
    """The call's arguments, with references replaced by their values."""
    description: NotRequired[str]
    """Text for the person; absent if there is none."""


class ReviewConfig(TypedDict):
    """The decisions allowed for a call, in the form of LangChain's `ReviewConfig`."""

    action_name: str
    """Name of the call, as in the `name` of its `ActionRequest`."""
    allowed_decisions: list[DecisionType]
    """The decisions that a person may take on the call."""


class ApprovalRequest(TypedDict):
    """The value of an approval's interrupt: LangChain's `HITLRequest` with more keys.

    The lists have one entry for each call that waits, in the same order.
    """

    action_requests: list[ActionRequest]
    """The calls that wait."""
    review_configs: list[ReviewConfig]
    """The decisions allowed for each call."""
    call_ids: list[str]
    """Id of each call. An answer may use the ids to decide only some calls."""
    origins: NotRequired[list[dict[str, ArgumentOrigin]]]
    """For each call, argument name → where its value comes from; absent unless the agent traces origins."""
    tainted: NotRequired[list[list[str]]]
    """For each call, the paths of arguments that decide where the call goes (sinks) and hold untrusted text.

    Absent unless the agent traces origins.
    """
    uncertain: NotRequired[list[bool]]
    """For each call, whether it may repeat the effect of an earlier one; absent if none may."""
    error: NotRequired[str]
    """Why the previous answer was not accepted; absent for the first request."""


def request_for(calls: Sequence[HeldCall], error: str | None = None) -> ApprovalRequest:
    """Return the request that asks a person for decisions on some calls.

    The lists `action_requests`, `review_configs` and `call_ids` have one entry for each call; `origins` and `tainted`,
    too, if at least one call is traced, and `uncertain` if at least one is uncertain. `error` is absent without an
    error.

    Args:
        calls: The calls, in the order of the request.
        error: Why the previous answer was not accepted; None for the first request.
    """
    request: ApprovalRequest = {
        "action_requests": [_action(call) for call in calls],
        "review_configs": [
            {"action_name": call["name"], "allowed_decisions": call["allowed_decisions"]} for call in calls
        ],
        "call_ids": [call["id"] for call in calls],
    }
    if any("origins" in call for call in calls):
        request["origins"] = [call.get("origins", {}) for call in calls]
        request["tainted"] = [call.get("tainted", []) for call in calls]
    if any("uncertain" in call for call in calls):
        request["uncertain"] = [call.get("uncertain", False) for call in calls]
    return request if error is None else {**request, "error": error}


def _action(call: HeldCall) -> ActionRequest:
    """Return a call in the form of LangChain's `ActionRequest`."""
    action: ActionRequest = {"name": call["name"], "args": call["arguments"]}
    return {**action, "description": call["description"]} if "description" in call else action


def is_approval_request(value: Any) -> bool:
    """Whether the value of an interrupt is an `ApprovalRequest`, or LangChain's `HITLRequest`, which lacks call ids."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("action_requests"), list)
        and isinstance(value.get("review_configs"), list)
    )


def request_of(interrupt: Interrupt) -> Mapping[str, Any] | None:
    """Return the approval request of an interrupt, LangChain's `HITLRequest` included; None if it asks for something
    else.

    In its mode `per_call`, LangChain's middleware asks about a single call in another form, which is converted to a
    request with that call.
    """
    value = interrupt.value
    if is_single_call(value):
        config: ReviewConfig = {"action_name": value["name"], "allowed_decisions": _published(interrupt)}
        action = {key: value[key] for key in ("name", "args", "description") if key in value}
        uncertain = {"uncertain": [True]} if value.get("uncertain") is True else {}
        ids = [value["tool_call_id"]]
        return {"action_requests": [action], "review_configs": [config], "call_ids": ids, **uncertain}
    return value if is_approval_request(value) else None


def approval_requests(interrupts: Sequence[Interrupt]) -> dict[str, Mapping[str, Any]]:
    """Return interrupt id → approval request, of those interrupts that ask for an approval."""
    return {each.id: request for each in interrupts if (request := request_of(each)) is not None}


def is_single_call(value: Any) -> bool:
    """Whether an interrupt's value has the form in which LangChain's middleware asks about one call, in its mode
    `per_call`.

    Such a value has the type `tool_approval`, a `name`, a `tool_call_id`, and a mapping of `args`.
    """
    return (
        isinstance(value, Mapping)
        and value.get("type") == "tool_approval"
        and isinstance(value.get("args"), Mapping)
        and {"name", "tool_call_id"} <= value.keys()
    )


def _published(interrupt: Interrupt) -> list[DecisionType]:
    """Return the decisions that the interrupt's response schema mentions, in the order of `DECISIONS`; all if it
    mentions none.
    """
    # The allowed decisions are published in the schema of the answer only.
    schema = json.dumps(interrupt.response_schema or {}, default=str)
    return [kind for kind in DECISIONS if f'"{kind}"' in schema] or [*DECISIONS]


def joined_calls(requests: Sequence[Mapping[str, Any]]) -> list[HeldCall]:
    """Return the calls of several approval requests as one list, request by request.

    If an id occurs twice, all calls get new ids, the numbers "1", "2" and so on.
    """
    calls = [call for request in requests for call in calls_of_request(request)]
    # Delegates have ids of their own, which may be equal.
    if len({call["id"] for call in calls}) == len(calls):
        return calls
    return [{**call, "id": str(number)} for number, call in enumerate(calls, 1)]


def joined_request(requests: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return one approval request for the calls of several, in the form of `joined_calls`.

    The errors of the requests are joined by spaces. A single request is returned unchanged.
    """
    if len(requests) == 1:
        return requests[0]
    errors = [request["error"] for request in requests if "error" in request]
    return request_for(joined_calls(requests), " ".join(errors) or None)


def calls_of_request(request: Mapping[str, Any]) -> list[HeldCall]:
    """Return the calls of an approval request, also of one that LangChain's middleware made.

    A request without `call_ids` gives the calls the ids "1", "2" and so on. The allowed decisions of a call are those
    of the review at the same position; if that review has another name, those of the first review with the call's name.
    Without any, every decision is allowed.
    """
    actions, configs = request["action_requests"], request["review_configs"]
    # Interfaces address calls by id, so calls without ids get numbers.
    ids = request.get("call_ids") or [str(number) for number in range(1, len(actions) + 1)]
    # LangChain's middleware may list a name's review once for several calls.
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
        if at < len(request.get("origins", ())):
            call["origins"] = request["origins"][at]
            if tainted := request["tainted"][at]:
                call["tainted"] = tainted
        if at < len(marks := request.get("uncertain", ())) and marks[at]:
            call["uncertain"] = True
        calls.append({**call, "description": action["description"]} if "description" in action else call)
    return calls


def asks_again(entries: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> bool:
    """Whether the newest approval events of a delegate lack a request that it asks now, so that the caller must record
    it.

    This is so for requests of LangChain's middleware inside the delegate, which have no `call_ids` and record no
    events.

    Args:
        entries: The delegate's approval events of this input, oldest first.
        request: The approval request that the delegate asks.
    """
    ids = [call["id"] for call in calls_of_request(request)]
    recorded = [[call["id"] for call in entry["calls"]] for entry in entries if entry["type"] == "approval_request"]
    return "call_ids" not in request and (not recorded or recorded[-1] != ids)
