"""Shows open interrupts as forms of MCP, and reads a person's responses to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.types import Interrupt

from graph_agent.base._internal.text import as_text, visible, visible_json
from graph_agent.base.approvals.elicitation import elicitation_text, is_elicitation
from graph_agent.base.approvals.requests import HeldCall, calls_of_request, request_of
from graph_agent.base.approvals.text import parse_answer
from graph_agent.base.errors import DecisionError
from graph_agent.interfaces.server.chat.run_spec import answers_to_approvals, client_interrupts

Form = dict[str, Any]
"""`{"message", "requestedSchema"}` of an `elicitation/create` request."""


def offers_forms(elicitation: Any) -> bool:
    """Return whether a client can show forms, from the value of its capability `elicitation`, which has modes as keys.

    True if it names the mode `form` or no mode; False if it names only `url`, or the capability is absent.
    """
    return isinstance(elicitation, Mapping) and ("form" in elicitation or "url" not in elicitation)


def forms(interrupts: Sequence[Interrupt], error: str = "") -> dict[str, Form]:
    """Return the forms of open interrupts, by a key that is unique in the session.

    An approval request has one form for each waiting call, with the key `INTERRUPT:CALL`. Any other question has one
    form, with the id of the interrupt. Calls of a client's own tools have none.

    Args:
        interrupts: The open interrupts of a session.
        error: Why the last responses were refused, for the text of the forms. If it is empty, the form of a call shows
            the `error` of its approval request, if there is one.
    """
    found: dict[str, Form] = {}
    client_calls = {each.id for each in client_interrupts(interrupts)}
    for each in interrupts:
        if (request := request_of(each)) is not None:
            for call in calls_of_request(request):
                found[f"{each.id}:{call['id']}"] = _call_form(call, error or request.get("error", ""))
        # The client itself runs these calls and sends their results; no person is asked.
        elif each.id not in client_calls:
            found[each.id] = _question_form(each.value, error)
    return found


def form_answers(interrupts: Sequence[Interrupt], responses: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a reviewer's responses to forms to answers by interrupt id, ready to resume the session.

    A response to a form that is not open is ignored. For an elicitation, a response with `accept` or `decline` is the
    answer itself. For any other question, the answer is the value parsed from `content["answer"]` of a response with
    `accept`. With another action, or without a response, it stays open.

    Args:
        interrupts: The open interrupts of the session.
        responses: Key of a form → `{"action": "accept" | "decline" | "cancel", "content": {…}}`.

    Raises:
        DecisionError: A response does not fit its form.
        ProblemError: Calls that must be decided together are only partly decided.
    """
    answers: dict[str, Any] = {}
    decisions: dict[tuple[str, int], dict[str, Any]] = {}
    for each in interrupts:
        if (request := request_of(each)) is not None:
            for index, call in enumerate(calls_of_request(request)):
                if (decision := _decision(call, _response(responses, f"{each.id}:{call['id']}"))) is not None:
                    # By the key that the chat APIs use for a decision, so that both check the completeness in one
                    # function.
                    decisions[each.id[:8], index] = decision
            continue
        response = _response(responses, each.id)
        content = response.get("content") or {}
        if is_elicitation(each.value) and response.get("action") in ("accept", "decline"):
            answers[each.id] = {**response, "content": content} if response["action"] == "accept" else response
        elif response.get("action") == "accept":
            answers[each.id] = parse_answer(str(content.get("answer", "")))
    return {**answers, **answers_to_approvals(interrupts, decisions)}


def _call_form(call: HeldCall, error: str) -> Form:
    """Return the form that asks for the decision on a waiting call.

    It has the field `decision` with the decisions that the call allows, `arguments` with the planned ones if the call
    may be edited, and `message` if it may be rejected or answered.

    Args:
        call: The call that waits.
        error: Why the last decision was refused; empty if it was not.
    """
    allowed = call["allowed_decisions"]
    properties: dict[str, Any] = {"decision": {"type": "string", "title": "Decision", "enum": list(allowed)}}
    if "edit" in allowed:
        properties["arguments"] = {
            "type": "string",
            "title": "Arguments",
            "description": "For edit: all arguments of the call, as a JSON object.",
            "default": json.dumps(call["arguments"], ensure_ascii=False, default=str),
        }
    if {"reject", "respond"} & {*allowed}:
        properties["message"] = {
            "type": "string",
            "title": "Message",
            "description": "For reject: the reason, for the model. For respond: the result of the call.",
        }
    lines = [
        f"A call waits for approval: {visible(call['name'])} {visible_json(call['arguments'])}",
        *(visible(line) for line in call.get("description", "").splitlines()),
    ]
    return _form(lines, properties, ["decision"], error)


def _question_form(value: Any, error: str) -> Form:
    """Return the form for the value of an interrupt: the fields of an elicitation, otherwise one required field
    `answer`, with the text `message` or `question` of the value or else all of it.

    Args:
        value: The value of the interrupt.
        error: Why the last response was refused; empty if it was not. An elicitation may have an error of its own.
    """
    if is_elicitation(value):
        schema: Mapping[str, Any] = value.get("requested_schema") or {}
        message = value["message"] if value["mode"] == "form" else elicitation_text(value)
        lines = [f"{visible(value['server'])}: {visible(message)}"]
        return _form(lines, schema.get("properties", {}), schema.get("required", []), error or value.get("error", ""))
    given = value if isinstance(value, Mapping) else {}
    text = given.get("message") or given.get("question")
    lines = [visible(text if isinstance(text, str) else as_text(value))]
    return _form(lines, {"answer": {"type": "string", "title": "Answer"}}, ["answer"], error)


def _form(lines: list[str], properties: Mapping[str, Any], required: Sequence[str], error: str) -> Form:
    """Return a form: its message is the lines, then the error if there is one; its schema is an object with the
    properties.
    """
    if error:
        lines = [*lines, f"The last answer was not accepted: {error}"]
    schema = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"message": "\n".join(lines), "requestedSchema": schema}


def _response(responses: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the response to the form `key` as `{"action", "content"}`; the action is None if there is no response, and
    missing content is left out.
    """
    response = responses.get(key)
    given = dict(response) if isinstance(response, Mapping) else {}
    content = given.get("content")
    return {"action": given.get("action"), **({"content": content} if isinstance(content, Mapping) else {})}


def _decision(call: HeldCall, response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the decision in a response, e.g. `{"type": "approve"}`; None if the call stays undecided.

    A `message` that is not empty is added, and for an edit `{"edited_action": {"args": …}}`, parsed from JSON. A
    declined form rejects the call, if the call may be rejected. Whether the call allows the decision is checked later.
    Raises `DecisionError` if the arguments of an edit are not JSON, also if they are missing.
    """
    if response["action"] == "decline" and "reject" in call["allowed_decisions"]:
        return {"type": "reject"}
    if response["action"] != "accept":
        return None
    content = response.get("content", {})
    decision = {"type": content.get("decision")}
    if content.get("message"):
        decision["message"] = content["message"]
    if decision["type"] == "edit":
        try:
            # A form has no field for an object, so the arguments are a text.
            decision["edited_action"] = {"args": json.loads(content.get("arguments", ""))}
        except (TypeError, ValueError, RecursionError) as error:
            raise DecisionError(f"The arguments for {call['name']!r} are no JSON object: {error}.") from None
    return decision
