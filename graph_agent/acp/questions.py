"""Asks the person at the editor for decisions on calls, and reads the answers to other questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acp import text_block, tool_content
from acp.schema import (
    AllowedOutcome,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallUpdate,
)
from langgraph.types import Interrupt

from graph_agent._internal.text import as_text, visible
from graph_agent.acp.projection import title_of
from graph_agent.approvals.decisions import Decision, approve, edit, reject
from graph_agent.approvals.elicitation import elicitation_text, is_elicitation
from graph_agent.approvals.requests import HeldCall, calls_of_request, is_approval_request, request_of
from graph_agent.approvals.text import parse_answer, question_text
from graph_agent.session.interrupts import joint_question

_OPTIONS: Sequence[PermissionOption] = (
    PermissionOption(option_id="allow", name="Allow", kind="allow_once"),
    PermissionOption(option_id="always", name="Always allow", kind="allow_always"),
    PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
)
_NEEDS = {"allow": "approve", "always": "approve", "reject": "reject"}
"""Id of an option → the decision that a call must allow."""


def options_for(call: HeldCall) -> list[PermissionOption]:
    """Return the options of a call that waits; empty if its decision needs a text."""
    return [option for option in _OPTIONS if _NEEDS[option.option_id] in call["allowed_decisions"]]


def is_permission(interrupt: Interrupt) -> bool:
    """Whether an interrupt can be answered by options: an approval request without a call that needs a text."""
    request = request_of(interrupt)
    return request is not None and all(map(options_for, calls_of_request(request)))


def permission_call(name: str, call: HeldCall, request: Mapping[str, Any]) -> ToolCallUpdate:
    """Return a call as the client shows it with the options.

    Args:
        name: The client's id of the call.
    """
    error = request.get("error")
    texts = [call.get("description", ""), f"The last answer was not accepted: {error}" if error else ""]
    return ToolCallUpdate(
        tool_call_id=name,
        title=title_of(call["name"], call["arguments"]),
        status="pending",
        raw_input=call["arguments"],
        content=[tool_content(text_block(visible(text))) for text in texts if text] or None,
    )


def decision_of(response: RequestPermissionResponse) -> Decision | None:
    """Return the decision of a response; None if the client cancelled the question.

    ACP has no answer with other arguments or with a reason. A client may add them as `editedArgs` and `reason` in the
    outcome's `_meta`.
    """
    outcome = response.outcome
    if not isinstance(outcome, AllowedOutcome):
        return None
    extra = outcome.field_meta or {}
    arguments, reason = extra.get("editedArgs"), extra.get("reason")
    if outcome.option_id not in ("allow", "always"):
        return reject(reason if isinstance(reason, str) else None)
    return edit(arguments) if isinstance(arguments, Mapping) else approve(always=outcome.option_id == "always")


def question_of(interrupts: Sequence[Interrupt]) -> str:
    """Return the question that the next message of the person answers."""
    _, asked = joint_question(interrupts)
    if is_approval_request(asked):
        return question_text(asked)
    return elicitation_text(asked) if is_elicitation(asked) else as_text(asked)


def answer_of(interrupts: Sequence[Interrupt], text: str) -> Any:
    """Return the answer, for `Session.resume`, that a message gives to the question."""
    asked, value = joint_question(interrupts)
    return text if is_approval_request(value) else {asked[0].id: parse_answer(text)}
