"""Selects the calls that a person must approve before they run, and relays the approvals of delegates.

A delegate is another agent that this one hands tasks to; its calls may need approval, too. A held call waits for a
decision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import ToolCall
from langgraph.checkpoint.serde.types import INTERRUPT

from graph_agent.base._compat import count_resume_values, newest_resume_value
from graph_agent.base.approvals.decisions import read_decisions
from graph_agent.base.approvals.policy import Review, review_of
from graph_agent.base.approvals.requests import HeldCall, calls_of_request, request_of
from graph_agent.base.calls import delegate_name, reviewed_together
from graph_agent.base.delegate_tasks import RemoteTask
from graph_agent.base.errors import DecisionError
from graph_agent.base.history.approval_events import decision_event, request_event
from graph_agent.base.history.events import StoredEvent, is_own
from graph_agent.base.origins import origins_text
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import Call
from graph_agent.core.execution.deps import AgentDeps, Task
from graph_agent.core.execution.ledger import checkpoint_of
from graph_agent.core.extensions.delegation import DelegationResult
from graph_agent.core.extensions.read_result import READ_RESULT
from graph_agent.core.state.own_checkpoint import load

_TAINTED = "Untrusted text decides where this call goes. {}."
"""Description for the reviewer of a call with untrusted text in a decisive argument.

The field is the origins as text.
"""


@dataclass(frozen=True, slots=True)
class _Grant:
    """A person's approval of one call. It is valid only for a call with exactly the same name and arguments."""

    call: Call
    """The approved call."""
    edited: str | None = None
    """Tool name of the planned call, which the person replaced by `call`; None if the call was approved as planned."""

    def covers(self, call: Call, review: Review) -> bool:
        """Whether this approval permits running a call, so that no person must be asked again.

        The call must equal the approved one. If the approval is an edit, the call must also be of the same tool as the
        planned call, and its own policy must allow edits; otherwise it was reviewed only by the rules of the other
        tool.

        Args:
            call: The call that is about to run.
            review: The decisions that the call's policy allows.
        """
        if not _equal(call, self.call):
            return False
        return self.edited is None or (self.edited == call["name"] and "edit" in review.allowed)


async def held_calls(
    calls: Sequence[Call], wave: Sequence[StoredEvent], deps: AgentDeps, settings: LoopConfig
) -> list[HeldCall]:
    """Return the calls that a person must decide on before they may run; empty if the agent has no approval policy.

    A call is held if its tool's mark or a rule selects it, unless an approval in `wave` covers it. With
    `on_tainted="ask"`, it is also held if an argument that decides where it goes is untrusted. A call that was already
    shown to a person stays held until it is decided, even if the policy has changed since. An exception in a policy
    function also holds the call. The calls are set as `reviewed_together`, which policy functions may read.

    Args:
        calls: Calls that could run, with references replaced by values. Calls with a `fault`, of client tools, of
            `read_result` and of unknown names (unless middleware may run these) are never held.
        wave: Events since the newest plan, which contain the requests and decisions so far.
        deps: The agent's parts, which have the tools with their marks.
        settings: The configuration of the run, with the approval rules.
    """
    if settings.approve is None:
        return []
    requested, grants = _history(wave)
    held: list[HeldCall] = []
    # Policies may depend on the other calls of the wave.
    reviewed_together.set(calls)  # until the end of this node's task
    for call in calls:
        if "fault" in call or not _may_run(call["name"], deps):
            continue
        review = await review_of(call, deps.toolbox.marks(call["name"]).get("approve"), settings.approval_rules)
        if "tainted" in call and settings.on_tainted == "ask":
            review = _review_of_tainted(call, review)
        grant, before = grants.get(call["id"]), requested.get(call["id"])
        # Otherwise a change of the policy would run a call that a person is still looking at.
        if review is None and before is not None and grant is None and _equal(call, _call_of(before)):
            held.append(before)
        elif review is not None and not (grant is not None and grant.covers(call, review)):
            held.append(_held(call, review))
    return held


def _review_of_tainted(call: Call, review: Review | None) -> Review:
    """Return the review of a call with an argument from untrusted text; the description begins with the text's origins.

    Args:
        call: The call, whose origins were traced.
        review: The review by the agent's policy, whose decisions and description are kept; None if the policy selects
            nothing, so that every decision is allowed.
    """
    found = [_TAINTED.format("; ".join(origins_text(call, tainted=True)))]
    if review is None:
        return Review(description=found[0])
    return Review(review.allowed, " ".join([*found, *filter(None, [review.description])]))


async def replacement_fault(task: Task, planned: Call, replacement: Call) -> str | None:
    """Return why middleware may not run another call in place of the planned one, as text for the model; None if it
    may.

    It may without an approval policy, if the calls are equal, or if the replacement needs no approval. One that needs
    approval may run only if it calls the same tool as the planned call and that call needed approval, too: a person has
    then seen that call.

    Args:
        task: The node's task that runs the planned call.
        planned: The call as planned.
        replacement: The call that middleware wants to run.
    """
    rules = task.settings.approval_rules
    if task.settings.approve is None or replacement is planned or _equal(planned, replacement):
        return None

    async def needs_review(call: Call) -> bool:
        return await review_of(call, task.deps.toolbox.marks(call["name"]).get("approve"), rules) is not None

    was_approved = replacement["name"] == planned["name"] and await needs_review(planned)
    if was_approved or not await needs_review(replacement):
        return None
    return (
        f"Not run: middleware changed this call of {planned['name']!r} into another call of {replacement['name']!r}, "
        "which needs a person's approval. Plan that call itself, so that it can be approved."
    )


def _may_run(name: str, deps: AgentDeps) -> bool:
    """Whether this agent runs calls of a name itself, so that its approval policy applies to them.

    False for client tools, which the program that started the run executes; for `read_result`; and for unknown names,
    unless middleware may run tools that the agent does not know.
    """
    toolbox = deps.toolbox
    if name in toolbox.client_tools or name == READ_RESULT:
        return False
    # Middleware may run tools that the agent does not know.
    return deps.runs_added_tools or name in toolbox.tools or name in toolbox.delegates


def _history(wave: Sequence[StoredEvent]) -> tuple[dict[str, HeldCall], dict[str, _Grant]]:
    """Return the calls of a wave that a person was asked about, and the approvals given since.

    Args:
        wave: Events since the newest plan. Requests and decisions about calls of delegates are ignored.

    Returns:
        Call id → held call, as the newest request with it has the call; and call id → approval. Rejected and undecided
        calls have no approval; of several decisions on a call, the newest approval counts.
    """
    requested: dict[str, HeldCall] = {}
    grants: dict[str, _Grant] = {}
    for entry in wave:
        if is_own(entry, "approval_request"):
            requested |= {call["id"]: call for call in entry["calls"]}
        elif is_own(entry, "approval_decision") and entry["id"] in requested:
            asked = _call_of(requested[entry["id"]])
            if entry["decision"] == "approve":
                grants[entry["id"]] = _Grant(asked)
            elif entry["decision"] == "edit":
                name = entry.get("edited_name", asked["name"])
                edited = Call(id=asked["id"], name=name, arguments=entry["arguments"])
                grants[entry["id"]] = _Grant(edited, edited=asked["name"])
    return requested, grants


def _call_of(held: HeldCall) -> Call:
    """Return the plain call of a held call: id, name and arguments only."""
    return {"id": held["id"], "name": held["name"], "arguments": held["arguments"]}


def _held(call: Call, review: Review) -> HeldCall:
    """Return a call as it appears in an approval request: id, name, arguments and the decisions that its review allows.

    It has `origins` and `tainted` if the call has them, and `description` if the review gives one.
    """
    held: HeldCall = {
        "id": call["id"],
        "name": call["name"],
        "arguments": call["arguments"],
        "allowed_decisions": list(review.allowed),
    }
    if "origins" in call:
        held["origins"] = call["origins"]
        if "tainted" in call:
            held["tainted"] = call["tainted"]
    return held if review.description is None else {**held, "description": review.description}


def _equal(one: Call, other: Call) -> bool:
    """Whether two calls have the same name and equal arguments as JSON; ids are not compared."""
    if one["name"] != other["name"]:
        return False
    # As JSON: in Python 1, 1.0 and True are equal.
    return json.dumps(one["arguments"], sort_keys=True) == json.dumps(other["arguments"], sort_keys=True)


def question_value(call: Call, task: RemoteTask) -> dict[str, Any]:
    """Return the value of the interrupt by which a delegation asks a person the question of its delegate.

    Args:
        call: The delegation's call.
        task: The delegate's task, which waits for an answer.

    Returns:
        For a question in words: `{"type": "delegation_input", "id": …, "question": …, "delegate": …}`. An approval
        request keeps its own keys, and gets `delegate` and `delegation` (the call's id), with a text also `question`.
        The descriptions of its actions begin with the delegate's name, for interfaces that show only descriptions.
    """
    delegate = delegate_name(call["name"])
    value: dict[str, Any] = {}
    if task["question"]:
        value = {"type": "delegation_input", "id": call["id"], "question": task["question"]}
    if (request := task.get("request")) is None:
        return {**value, "delegate": delegate}
    actions = [_with_delegate(action, delegate) for action in request["action_requests"]]
    path = _path(delegate, request)
    return {**value, **request, "action_requests": actions, "delegate": path, "delegation": call["id"]}


def approval_events(
    call: Call, task: RemoteTask | None, answer: Any, result: DelegationResult, step: int
) -> list[StoredEvent]:
    """Return the approval events that one run of a delegation adds to the history of the delegating session.

    First come the events that the delegate recorded itself. If the delegate does not record its requests
    (`recorded_here`), the decisions in `answer` on its last request follow, and then its new request. A question that
    is asked again, because the answer could not be used, gets no second request and no decisions. An answer that
    holds no decisions in the form of this package adds none.

    Args:
        call: The delegation's call.
        task: The delegate's waiting task that this run continued; None for the first run.
        answer: The person's answer to the question of `task`; None if there is none.
        result: The result of this run.
        step: Number of the plan, for the events.
    """
    delegate = delegate_name(call["name"])
    events = [_of_delegate(entry, call, step) for entry in result.approvals]
    waiting = result.waiting
    repeated = waiting is not None and is_repeated(waiting, task)
    if task is not None and task.get("recorded_here") and "request" in task and not repeated and answer is not None:
        source = {"delegate": _path(delegate, task["request"]), "delegation": call["id"]}
        try:
            decided = read_decisions(calls_of_request(task["request"]), answer)
        except DecisionError:
            decided = []  # the delegate has its own rules for answers
        events += [decision_event(each, step, **source) for each in decided]
    if waiting is not None and waiting.get("recorded_here") and "request" in waiting and not repeated:
        source = {"delegate": _path(delegate, waiting["request"]), "delegation": call["id"]}
        events.append(request_event(calls_of_request(waiting["request"]), step, **source))
    return events


def is_repeated(waiting: RemoteTask, before: RemoteTask | None) -> bool:
    """Whether a delegate asks its last question again, because the answer could not be used.

    True if its request states an error, or if it has the same calls as before and a text.

    Args:
        waiting: The delegate's task with the present question.
        before: The delegate's task before the answer; None if nothing was answered.
    """
    request = waiting.get("request", {})
    if "error" in request:
        return True
    if before is None or not waiting["question"]:
        return False
    # A remote agent may give its reason as text only.
    return "call_ids" in request and request == before.get("request")


def _of_delegate(entry: StoredEvent, call: Call, step: int) -> StoredEvent:
    """Return a copy of a delegate's event for the history of the delegating session.

    The copy has the session's step, the delegate's name (see `_path`), and the id of the delegation's call.
    """
    path = _path(delegate_name(call["name"]), entry)
    return {**entry, "step": step, "delegate": path, "delegation": call["id"]}


def _path(delegate: str, inner: Mapping[str, Any]) -> str:
    """Return the delegate's name; if a delegate of the delegate asks, both names as `outer/inner`.

    Args:
        delegate: Name of the delegate of this agent.
        inner: An event or request, which has a key `delegate` if it comes from a nested delegate.
    """
    nested = inner.get("delegate")
    return f"{delegate}/{nested}" if isinstance(nested, str) else delegate


def _with_delegate(action: Mapping[str, Any], delegate: str) -> dict[str, Any]:
    """Return a copy of an action of an approval request, whose description begins with `Delegate <name>`."""
    described = action.get("description")
    return {**action, "description": f"Delegate {delegate}: {described}" if described else f"Delegate {delegate}"}


async def answered_approvals(task: Task, planned: Sequence[ToolCall], middleware: str) -> list[StoredEvent]:
    """Return the events of the newest approval request that middleware made in a task, and of the decisions on it.

    The request is read from the checkpoint, because middleware records no events. Call this once the middleware has
    accepted the answer. Of several requests of one task, only the newest gets events.

    Args:
        task: The node's task that was resumed: of a call, or of the hooks after a model's reply.
        planned: The calls that the request may be about, as planned. Because LangChain's requests have no ids, each
            requested call gets the id of the planned call with equal name and arguments.
        middleware: Name of the middleware, for the events.

    Returns:
        An `approval_request` event and one `approval_decision` event for each decision. Empty if the task was not
        resumed with an answer, there is no checkpointer, the interrupt was no approval, or the answer holds no
        decisions.
    """
    saver, at = checkpoint_of(task)
    if not count_resume_values(task.config) or saver is None or at is None:
        return []
    found = await load(saver, at)
    writes = found.pending_writes or [] if found is not None else []
    asked = [one for id_, channel, value in writes if (id_, channel) == (task.id, INTERRUPT) for one in value]
    request = request_of(asked[-1]) if asked else None
    if request is None:
        return []
    calls = _with_ids(calls_of_request(request), planned)
    answer = newest_resume_value(task.config)
    try:
        decided = read_decisions(calls, answer)
    except DecisionError:
        return []  # another middleware, whose answers have another form
    return [
        request_event(calls, task.step, middleware=middleware),
        *(decision_event(each, task.step, middleware=middleware) for each in decided),
    ]


def _with_ids(calls: Sequence[HeldCall], planned: Sequence[ToolCall]) -> list[HeldCall]:
    """Return the calls with the ids of the planned calls of equal name and arguments.

    Each planned call is used once. A call without an equal planned call keeps its own id.
    """
    left = [*planned]
    found: list[HeldCall] = []
    for call in calls:
        same = next((one for one in left if (one["name"], one["args"]) == (call["name"], call["arguments"])), None)
        if same is not None:
            left.remove(same)
        found.append({**call, "id": same["id"]} if same is not None and same["id"] else call)
    return found
