"""Presents open questions as AG-UI interrupts, one for each call that waits, and reads the answers of a resume."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ag_ui.core import Interrupt, ResumeEntry
from langgraph.types import Interrupt as GraphInterrupt

from graph_agent._internal.text import as_text, to_json_safe, visible, visible_json
from graph_agent.approvals.decisions import Decision, approve, edit, reject, respond
from graph_agent.approvals.requests import HeldCall, calls_of_request, request_of
from graph_agent.server.agui.messages import CallNames
from graph_agent.server.chat.run_spec import answers_to_approvals, is_client_call
from graph_agent.server.problems import ProblemError
from graph_agent.state.events import StoredEvent

ABANDONED = "The person left this question without an answer."
Decisions: TypeAlias = dict[tuple[str, int], dict[str, Any]]


def held_calls(interrupts: Sequence[GraphInterrupt]) -> list[HeldCall]:
    """Return the agent's own calls that wait for a person, without those of its delegates."""
    return [
        call
        for each in interrupts
        if (request := request_of(each)) is not None and "delegate" not in request
        for call in calls_of_request(request)
    ]


def delegations(interrupts: Sequence[GraphInterrupt]) -> dict[str, list[str]]:
    """Return the delegations whose delegates wait for a person: id of the call → ids of the AG-UI interrupts."""
    found: dict[str, list[str]] = {}
    for each in interrupts:
        value = each.value
        if isinstance(value, Mapping) and isinstance(value.get("delegation"), str):
            found.setdefault(value["delegation"], []).extend(ids_of(each))
    return found


def ids_of(interrupt: GraphInterrupt) -> list[str]:
    """Return the ids of the AG-UI interrupts of an open interrupt of the graph."""
    if is_client_call(interrupt):
        return []
    request = request_of(interrupt)
    if request is None:
        return [interrupt.id]
    return [f"{interrupt.id}:{call['id']}" for call in calls_of_request(request)]


def presented(interrupts: Sequence[GraphInterrupt], names: CallNames) -> list[Interrupt]:
    """Return the AG-UI interrupts of open interrupts, in order; calls of the client's tools are none."""
    found: list[Interrupt] = []
    for each in interrupts:
        if is_client_call(each):
            continue
        value = each.value if isinstance(each.value, Mapping) else {}
        delegation = value.get("delegation")
        owner = {"subagent_run_id": names.of(delegation)} if isinstance(delegation, str) else {}
        if (request := request_of(each)) is None:
            schema = each.response_schema if isinstance(each.response_schema, dict) else None
            text = value.get("message") or value.get("question")
            message = visible(text if isinstance(text, str) else as_text(each.value))
            metadata = {"value": to_json_safe(each.value)}
            found.append(
                Interrupt(
                    id=each.id,
                    reason="input_required",
                    message=message,
                    response_schema=schema,
                    metadata=metadata,
                    **owner,
                )
            )
            continue
        for id_, call in zip(ids_of(each), calls_of_request(request), strict=True):
            found.append(
                Interrupt(
                    id=id_,
                    reason="tool_call",
                    message=_question(call, request.get("error")),
                    tool_call_id=call["id"] if owner else names.of(call["id"]),
                    response_schema=response_schema(call),
                    metadata={
                        "toolCall": {"name": call["name"], "arguments": to_json_safe(call["arguments"])},
                        "allowedDecisions": list(call["allowed_decisions"]),
                    },
                    **owner,
                )
            )
    return found


def _question(call: HeldCall, error: str | None) -> str:
    lines = [f"{visible(call['name'])} {visible_json(call['arguments'])}", visible(call.get("description", ""))]
    if error is not None:
        lines.append(f"The last answer was not accepted: {error}")
    return "\n".join(filter(None, lines))


def response_schema(call: HeldCall) -> dict[str, Any]:
    """Return the JSON schema of the answer to the question about a call.

    `editedArgs` is in it if the call may be edited, and `response` if a text may replace its result.
    """
    allowed = call["allowed_decisions"]
    runs, stops = bool({"approve", "edit"} & {*allowed}), bool({"reject", "respond"} & {*allowed})
    approved: dict[str, Any] = {"type": "boolean", "description": "Whether the call runs."}
    if runs != stops:
        approved["enum"] = [runs]
    properties: dict[str, Any] = {"approved": approved}
    required = ["approved"]
    if "edit" in allowed:
        properties["editedArgs"] = {
            "type": "object",
            "description": "All arguments of the call, in place of the planned ones.",
        }
        required += [] if "approve" in allowed else ["editedArgs"]
    if "reject" in allowed:
        properties["reason"] = {"type": "string", "description": "Why the call does not run, for the model."}
    if "respond" in allowed:
        properties["response"] = {"type": "string", "description": "The result of a call that does not run."}
        required += [] if "reject" in allowed or runs else ["response"]
    return {"type": "object", "properties": properties, "required": required}


@dataclass(frozen=True, slots=True)
class ResumeAnswers:
    """The answers of a resume to a session's questions."""

    answers: dict[str, Any]
    """Answers by interrupt id of the graph; empty if no question is open."""
    ignored: list[str]
    """Ids of AG-UI interrupts that the session has received answers to before."""


def answers_of(
    resume: Sequence[ResumeEntry], interrupts: Sequence[GraphInterrupt], events: Sequence[StoredEvent]
) -> ResumeAnswers:
    """Return the answers of a resume.

    A client repeats its answers until a run ends without an error, so an answer that the session has received before
    is no fault. Nothing is run or decided for it.

    Args:
        events: The session's events, which have the decisions that it has received.

    Raises:
        ProblemError: If an entry answers no interrupt of the session, an open one has no answer, or a payload does not
            fit.
    """
    entries = {entry.interrupt_id: entry for entry in resume}
    if len(entries) < len(resume):
        raise ProblemError("invalid", "resume: an interrupt has two answers; send one.", param="resume")
    open_ids = [id_ for each in interrupts for id_ in ids_of(each)]
    decided = {each["id"] for each in events if each["type"] == "approval_decision"}
    ignored = [id_ for id_ in entries if id_ not in open_ids and _is_received(id_, decided, bool(events), open_ids)]
    if unknown := [id_ for id_ in entries if id_ not in open_ids and id_ not in ignored]:
        raise ProblemError(
            "conflict",
            f"resume: these interrupts are not open: {', '.join(unknown)}. Open: {', '.join(open_ids) or 'none'}.",
            param="resume",
        )
    if missing := [id_ for id_ in open_ids if id_ not in entries]:
        raise ProblemError(
            "conflict",
            f"resume: answer all open interrupts at once; without an answer: {', '.join(missing)}.",
            param="resume",
        )
    answers: dict[str, Any] = {}
    decisions: Decisions = {}
    for each in interrupts:
        request = request_of(each)
        if request is None:
            for id_ in ids_of(each):
                entry = entries[id_]
                answers[each.id] = ABANDONED if entry.status == "cancelled" else entry.payload
            continue
        for index, (id_, call) in enumerate(zip(ids_of(each), calls_of_request(request), strict=True)):
            decisions[each.id[:8], index] = dict(_decision(entries[id_], call["name"]))
    return ResumeAnswers({**answers, **answers_to_approvals(interrupts, decisions)}, ignored)


def _is_received(id_: str, decided: Collection[str], has_events: bool, open_ids: Sequence[str]) -> bool:
    call = id_.partition(":")[2]
    # The history has decisions on calls, but no answers to other questions.
    return call in decided if call else has_events and not open_ids


def _decision(entry: ResumeEntry, name: str) -> Decision:
    """Return the decision on a call; whether its policy allows it is checked with the request.

    Raises:
        ProblemError: If the payload has another form.
    """
    if entry.status == "cancelled":
        return reject(ABANDONED)
    payload = entry.payload
    if isinstance(payload, bool):
        payload = {"approved": payload}
    given = payload if isinstance(payload, Mapping) else {}
    approved, arguments = given.get("approved"), given.get("editedArgs")
    reason, response = given.get("reason"), given.get("response")
    texts_fit = all(text is None or isinstance(text, str) for text in (reason, response))
    if not isinstance(approved, bool) or not texts_fit or not (arguments is None or isinstance(arguments, Mapping)):
        raise ProblemError(
            "invalid",
            f"resume: the payload for {entry.interrupt_id} ({name}) does not fit the interrupt's "
            'responseSchema; send for example {"approved": true}.',
            param="resume",
        )
    if approved:
        return approve() if arguments is None else edit(arguments)
    return respond(response) if isinstance(response, str) else reject(reason if isinstance(reason, str) else None)
