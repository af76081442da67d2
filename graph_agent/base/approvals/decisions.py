"""Constructs a person's decisions on calls that wait for approval, and validates an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from graph_agent.base._internal.text import brief_repr, clean, to_json_safe, visible
from graph_agent.base.approvals.requests import DECISIONS, DecisionType, HeldCall, calls_of_request, joined_calls
from graph_agent.base.approvals.text import decisions_in_text
from graph_agent.base.errors import DecisionError, did_you_mean

DEFAULT_DECIDER = "user"
"""Name that the history has for the person who decided, if the resuming program does not name anyone."""
_MOST_NAME_CHARS = 200
"""Maximum characters of a person's name; a longer name is refused."""
EditFault: TypeAlias = Callable[[str, dict[str, Any]], str | None]
"""Function of a call's name and arguments.

Returns why this call cannot run in place of the planned one, as text for the person; None if it can run.
"""


class Action(TypedDict):
    """The call that runs in place of a planned call, in the form of LangChain's `Action`."""

    name: NotRequired[str]
    """Name of the tool or delegation; absent if the edit keeps the name of the planned call."""
    args: dict[str, Any]
    """All arguments of the call."""


class _Decision(TypedDict):
    decided_by: NotRequired[str]
    """Who decided, if the answer as a whole does not name the person; absent for `user`."""


class Approve(_Decision):
    """Run the call as planned."""

    type: Literal["approve"]
    always: NotRequired[bool]
    """Whether later calls of the same tool name are approved without a question, too; absent for False."""


class Edit(_Decision):
    """Run another call in place of the planned one; it keeps the id of the planned call."""

    type: Literal["edit"]
    edited_action: Action
    """The call that runs instead."""


class Reject(_Decision):
    """Do not run the call. The model receives a result that states the rejection."""

    type: Literal["reject"]
    message: NotRequired[str]
    """The reason, for the model; absent if there is none."""


class Respond(_Decision):
    """Do not run the call, and use a person's text as its result."""

    type: Literal["respond"]
    message: str
    """The text that becomes the call's result."""


Decision: TypeAlias = Approve | Edit | Reject | Respond
"""A person's decision on one call, in the form of LangChain's `Decision`."""


def approve(*, always: bool = False) -> Approve:
    """Return the decision to run a call as planned.

    Args:
        always: Whether later calls of the same name are approved, too: by the `Session` object that receives the
            decision, or by the server of the session. A call that equals one with an unknown outcome, or that untrusted
            text sends somewhere, is asked about nevertheless.
    """
    return {"type": "approve", "always": True} if always else {"type": "approve"}


def standing_approval_covers(call: HeldCall) -> bool:
    """Whether a person's earlier `approve(always=True)` may decide on a call.

    It does not cover a call with a destination from untrusted text, nor one that equals a call whose outcome is
    unknown: the approval was given for the tool, and not for these.
    """
    return "approve" in call["allowed_decisions"] and "tainted" not in call and "uncertain" not in call


def standing_approval(by: str) -> Approve:
    """Return the approval of a call that a person's earlier `approve(always=True)` covers, so that no question is asked
    again.

    Args:
        by: Name of the person who gave the earlier approval. The `decided_by` of the returned approval is `always
            (<name>)`, with the name cut so that the whole has at most 200 characters.
    """
    # Cut, because the name of the person may have the maximum length.
    return {"type": "approve", "decided_by": f"always ({by[: _MOST_NAME_CHARS - len('always ()')]})"}


def edit(arguments: Mapping[str, Any], *, name: str | None = None) -> Edit:
    """Return the decision to run a call with other arguments, or another call, in place of the planned one.

    The values are not validated here; `read_decisions` does so.

    Args:
        arguments: All arguments of the call that runs, not only the changed ones.
        name: Name of another tool of the agent to run; None for the tool of the planned call.
    """
    action: Action = {"args": dict(arguments)}
    return {"type": "edit", "edited_action": action if name is None else {"name": name, **action}}


def reject(message: str | None = None) -> Reject:
    """Return the decision not to run a call.

    Args:
        message: The reason, for the model; None if there is none.
    """
    return {"type": "reject"} if message is None else {"type": "reject", "message": message}


def respond(message: str) -> Respond:
    """Return the decision to use a text as the successful result of a call, which does not run.

    Args:
        message: The text that becomes the call's result.
    """
    return {"type": "respond", "message": message}


@dataclass(frozen=True, slots=True)
class Decided:
    """A validated decision on a call."""

    call: HeldCall
    """The planned call that the decision is about."""
    type: DecisionType
    """The kind of decision."""
    by: str
    """Name of the person who decided."""
    name: str
    """Name of the call to run; that of `call` except after an edit."""
    arguments: dict[str, Any]
    """All arguments of the call to run; those of `call` except after an edit."""
    message: str | None = None
    """Reason of a rejection, or the result that a response gives; None for an approval, an edit, or no reason."""
    always: bool = False
    """Whether later calls of the same tool name are approved, too; only True for an approval."""


def read_decisions(calls: Sequence[HeldCall], answer: Any, edit_fault: EditFault | None = None) -> list[Decided]:
    """Validate a person's answer to an approval request, and return the decisions in the order of the calls.

    Calls that the answer leaves undecided have no entry in the returned list.

    Args:
        calls: The calls of the request.
        answer: `{"decisions": …}`, where the value is one of these: a list of one decision for each call, in the order
            of the request; a mapping of call id → decision, which may leave calls undecided; or text (see
            `decisions_in_text`). A list or a text is accepted without the key `decisions`, too. A single decision
            without list or mapping counts for every call; if it is an edit or a response, there may be only one call.
            The key `decided_by` of the answer names the person; without it, each decision may have its own
            `decided_by`.
        edit_fault: Returns why the call of an edit cannot run; None to accept every edited call.

    Raises:
        DecisionError: The answer does not fit the request: an unknown call id, a wrong number of decisions, an unknown
            decision or one that the call does not allow, or an edited call that cannot run.
    """
    by = _decider(answer["decided_by"]) if isinstance(answer, Mapping) and "decided_by" in answer else None
    by_id = _given_by_id(calls, answer)
    return [_decided(call, by_id[call["id"]], by, edit_fault) for call in calls if call["id"] in by_id]


def split_decisions(requests: Mapping[str, Mapping[str, Any]], answer: Any) -> dict[str, Any]:
    """Divide one answer to several approval requests into one answer for each request.

    A request without a decided call gets no entry. The decisions themselves are not validated yet.

    Args:
        requests: Interrupt id → approval request.
        answer: An answer in a form that `read_decisions` accepts, about the calls of all requests in their order. Its
            call ids are those of `joined_calls`: numbers if two requests contain the same call id.

    Returns:
        Interrupt id → `{"decisions": {call id: decision}}`, with `decided_by` if the answer has it.

    Raises:
        DecisionError: The answer has another form, names an unknown call, or has the wrong number of decisions.
    """
    joined = joined_calls([*requests.values()])
    # Joined ids may be numbers, so the ids of each request are matched by position.
    by_id, ids = _given_by_id(joined, answer), iter([call["id"] for call in joined])
    by = {"decided_by": answer["decided_by"]} if isinstance(answer, Mapping) and "decided_by" in answer else {}
    answers: dict[str, Any] = {}
    for interrupt_id, request in requests.items():
        own = {call["id"]: by_id[id_] for call in calls_of_request(request) if (id_ := next(ids)) in by_id}
        if own:
            answers[interrupt_id] = {"decisions": own, **by}
    return answers


def listed_decisions(calls: Sequence[HeldCall], decided: Sequence[Decided]) -> list[Decision]:
    """Return the decisions as a list in LangChain's form, after checking that each call has one.

    LangChain's middleware matches decisions to calls by position, so `decided` must be in the order of `calls`, as
    `read_decisions` returns it.

    Raises `DecisionError` if a call has no decision.
    """
    undecided = {call["id"] for call in calls} - {each.call["id"] for each in decided}
    if undecided:
        raise DecisionError(
            f"These calls have no decision, and must be decided together: {', '.join(sorted(undecided))}."
        )
    return [as_decision(each) for each in decided]


def as_decision(decided: Decided) -> Decision:
    """Convert a validated decision to LangChain's form.

    The name of the person is left out, and a response without text becomes an empty one.
    """
    match decided.type:
        case "approve":
            return approve(always=decided.always)
        case "edit":
            return edit(decided.arguments, name=decided.name)
        case "reject":
            return reject(decided.message)
        case "respond":
            return respond(decided.message or "")


def _decider(given: Any) -> str:
    """Return the name of the person who decided, with characters removed that UTF-8 cannot encode; `user` for None.

    Raises:
        DecisionError: The value is no text, is blank, or has more than 200 characters.
    """
    if given is None:
        return DEFAULT_DECIDER
    if not isinstance(given, str) or not given.strip() or len(given) > _MOST_NAME_CHARS:
        raise DecisionError(f"decided_by={given!r}: name the person in 1 to {_MOST_NAME_CHARS} characters.")
    return clean(given)


def _given_by_id(calls: Sequence[HeldCall], answer: Any) -> dict[str, Any]:
    """Return call id → decision from an answer in any form that `read_decisions` accepts.

    The decisions are not validated. A mapping may decide only some of the calls. One decision that is not in a list
    counts for all.

    Raises:
        DecisionError: The answer has another form, such as call ids that are not below `decisions`, or an empty
            mapping; it has a wrong number of decisions, or an unknown call id; or it is a single edit or response for
            several calls.
    """
    given = answer["decisions"] if isinstance(answer, Mapping) and "decisions" in answer else answer
    if isinstance(given, str):
        given = decisions_in_text(given, calls)
    ids = [call["id"] for call in calls]
    if isinstance(given, list | tuple):
        if len(given) != len(calls):
            raise DecisionError(
                f"The answer has {len(given)} decisions, and {len(calls)} calls wait: {_listed(calls)}. Give one "
                "decision for each, in this order, or a mapping of call id to decision."
            )
        return dict(zip(ids, given, strict=True))
    if isinstance(given, Mapping) and "type" in given and "type" not in ids:
        # The arguments or the result of one call hardly fit another.
        if len(calls) > 1 and given["type"] in ("edit", "respond"):
            raise DecisionError(
                f"One decision {given['type']!r} cannot count for {len(calls)} calls: {_listed(calls)}. Give a "
                "mapping of call id to decision."
            )
        # A person may approve or reject all calls with one word.
        return dict.fromkeys(ids, given)
    if isinstance(given, Mapping) and given is not answer and given:
        for id_ in given:
            if id_ not in ids:
                raise DecisionError(f"No call {id_!r} waits for a decision; {did_you_mean(str(id_), ids)}")
        return dict(given)
    raise DecisionError(
        f"{brief_repr(answer)} holds no decisions on the calls that wait: {_listed(calls)}. Answer with "
        '{"decisions": [{"type": "approve"}, …]}, one decision for each call.'
    )


def _decided(call: HeldCall, decision: Any, by: str | None, edit_fault: EditFault | None) -> Decided:
    """Validate one decision on a call; the older form that Agent Inbox sends is accepted, too.

    The message of a rejection is None if it is empty; a response must have one, which may be empty. That of an approval
    is checked and dropped. `always` counts only for an approval, and only if it is True.

    Args:
        call: The call that waits.
        decision: The decision as given.
        by: Name of the person from the answer as a whole; None to use the `decided_by` of the decision, or without one
            `user`.
        edit_fault: Returns why the call of an edit cannot run; None for no check.

    Raises:
        DecisionError: The decision is invalid, or not allowed for the call.
    """
    decision = _from_inbox(decision)
    where = f"The decision on call {call['id']!r} ({call['name']})"
    if not isinstance(decision, Mapping) or "type" not in decision:
        raise DecisionError(f'{where} is {brief_repr(decision)}; write e.g. {{"type": "approve"}}.')
    by = _decider(decision.get("decided_by")) if by is None else by
    kind, allowed = decision["type"], call["allowed_decisions"]
    if kind not in DECISIONS:
        raise DecisionError(f"{where} has the type {brief_repr(kind)}; {did_you_mean(str(kind), DECISIONS)}")
    # The policy decides what a person may do, not the interface that asks.
    if kind not in allowed:
        raise DecisionError(f"{where} is {kind!r}, which its policy does not allow; allowed: {', '.join(allowed)}.")
    name, arguments = call["name"], call["arguments"]
    if kind == "edit":
        name, arguments = _edited(call, decision.get("edited_action"), where)
        if edit_fault is not None and (fault := edit_fault(name, arguments)) is not None:
            raise DecisionError(f"{where} is an edit that cannot be run: {fault}")
        return Decided(call, "edit", by, name, arguments)
    message = decision.get("message")
    if message is not None and not isinstance(message, str):
        raise DecisionError(f"{where} has the message {brief_repr(message)}; write text.")
    if kind == "respond" and message is None:
        raise DecisionError(f"{where} is a response without a message, which is the result of the call.")
    if kind == "approve":
        return Decided(call, "approve", by, name, arguments, always=decision.get("always") is True)
    return Decided(call, kind, by, name, arguments, clean(message) if message else None if kind == "reject" else "")


def _from_inbox(decision: Any) -> Any:
    """Convert a decision of Agent Inbox, `{"type": …, "args": …}`, to this module's form.

    Return any other value unchanged.

    Its types are `accept`, `ignore` (a rejection), `edit` and `response`. A `response` becomes a rejection, because
    Agent Inbox offers it for calls that may be rejected, and sends the reason with it.
    """
    if not isinstance(decision, Mapping) or "args" not in decision:
        return decision
    given = decision["args"]
    match decision.get("type"):
        case "accept":
            return approve()
        case "ignore":
            return reject()
        case "response" if isinstance(given, str):
            return reject(given)
        case "edit" if isinstance(given, Mapping) and isinstance(given.get("args"), Mapping):
            name = given.get("action")
            return {"type": "edit", "edited_action": {"args": given["args"], **({"name": name} if name else {})}}
    return decision


def _edited(call: HeldCall, action: Any, where: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of the call of an edit, with arguments as plain JSON.

    Args:
        call: The planned call, whose name is the default.
        action: The `edited_action` of the decision, as given.
        where: Text that names the decision; it begins the error message.

    Raises:
        DecisionError: The action or its `args` is missing, the name is no text, or the arguments are not JSON.
    """
    if not isinstance(action, Mapping) or not isinstance(action.get("args"), Mapping):
        raise DecisionError(
            f'{where} is an edit without the new call; write "edited_action": {{"name": {call["name"]!r}, '
            '"args": {…}}, with all arguments.'
        )
    name = action.get("name", call["name"])
    if not isinstance(name, str):
        raise DecisionError(f"{where} has the tool name {brief_repr(name)}; write text.")
    try:
        arguments = dict(action["args"])
        json.dumps(arguments)  # other values would become their `str()`
        return clean(name), to_json_safe(arguments, finite=True)
    except (TypeError, ValueError) as error:
        raise DecisionError(f"{where} has arguments that cannot be used: {error}.") from None


def _listed(calls: Sequence[HeldCall]) -> str:
    """Return calls as text for an error message: `<id> (<name>)`, separated by commas."""
    return ", ".join(f"{visible(call['id'])} ({visible(call['name'])})" for call in calls)
