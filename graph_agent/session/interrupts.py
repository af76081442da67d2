"""Assigns the answers of a person or a program to interrupts, and validates decisions on calls.

An approval request is an interrupt that asks a person to decide on calls. An elicitation is a question of an MCP server
with a form.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from langchain_core.messages import HumanMessage
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Interrupt, StateSnapshot

from graph_agent.base._internal.text import visible
from graph_agent.base.approvals.decisions import (
    Decision,
    approve,
    as_decision,
    listed_decisions,
    read_decisions,
    reject,
    split_decisions,
    standing_approval,
    standing_approval_covers,
)
from graph_agent.base.approvals.elicitation import is_elicitation, read_elicitation_answer
from graph_agent.base.approvals.requests import (
    HeldCall,
    approval_requests,
    calls_of_request,
    is_single_call,
    joined_request,
    request_of,
)
from graph_agent.base.errors import DecisionError, InputError
from graph_agent.session.built_agent import builder_of
from graph_agent.session.results import open_interrupts
from graph_agent.session.standing_approvals import standing_approvals

_INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")
"""The form of LangGraph's interrupt ids."""


ALREADY_DECIDED = (
    "The calls are already decided, and nothing waits for an answer. Repeat the decision with its input_id for the "
    "result, or read the session's events; after a crash, resume without an answer."
)
"""Text of the error for a second answer to an approval request."""


def is_decided(events: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a session's events have a decision on a call of the newest input."""
    newest = next((each for each in reversed(events) if each["type"] in ("user_message", "approval_decision")), None)
    return newest is not None and newest["type"] == "approval_decision"


def joint_question(interrupts: Sequence[Interrupt]) -> tuple[list[Interrupt], Any]:
    """Return those of the open interrupts that are answered next, and the question to show for them.

    All approval requests are answered together, by one question about all their calls. If there are none, the first
    interrupt is answered alone, and its value is the question.

    Args:
        interrupts: The open interrupts, at least one.
    """
    if requests := approval_requests(interrupts):
        return [each for each in interrupts if each.id in requests], joined_request([*requests.values()])
    return [interrupts[0]], interrupts[0].value


def answers_by_id(answer: Any, asked: Sequence[Interrupt]) -> dict[str, Any]:
    """Return an answer as a mapping of interrupt id → answer.

    An answer that has ids already is copied. An answer without ids is for the only open interrupt, or decides on the
    calls of all open approval requests (see `split_decisions`).

    Args:
        asked: The open interrupts.

    Raises:
        InputError: There is no open interrupt; or the answer names one that is not open, names none although several
            are open that are no approval requests, or does not fit the requests.
    """
    if not asked:
        raise InputError(
            f"The session has no open interrupt for the answer {answer!r}; resume without an answer, or run an input."
        )
    if is_by_id(answer):
        # LangGraph checks again when the run has the session's lock.
        if unknown := sorted(answer.keys() - {interrupt.id for interrupt in asked}):
            raise InputError(not_open(unknown, [interrupt.id for interrupt in asked]))
        return dict(answer)
    # LangGraph would use an answer without an id for the next interrupt, which may be another one.
    if len({interrupt.id for interrupt in asked}) > 1:
        if requests := approval_requests(asked):
            return split_decisions(requests, answer)
        known = ", ".join(f"{interrupt.id} ({_named(interrupt)})" for interrupt in asked)
        raise InputError(f"Several interrupts are open; answer with a mapping of id to answer. Open: {known}.")
    return {asked[0].id: answer}


def answer_content(answer: Any) -> Any:
    """Return what identifies an answer that is repeated: a list of its values, without interrupt ids.

    A single text is returned as the graph's input with that text, because such an answer may be repeated as an input.
    """
    # A client that repeats an answer after a crash may not know any more which question it belongs to.
    values = list(answer.values()) if is_by_id(answer) else [answer]
    if len(values) == 1 and isinstance(values[0], str):
        return {"messages": [HumanMessage(values[0])]}
    return values


def is_by_id(answer: Any) -> bool:
    """Return whether LangGraph interprets an answer as a mapping of interrupt id → answer."""
    return (
        isinstance(answer, Mapping)
        and bool(answer)
        and all(isinstance(key, str) and _INTERRUPT_ID.fullmatch(key) for key in answer)
    )


def not_open(unknown: Sequence[str], known: Sequence[str]) -> str:
    """Return the text of the error for an answer to interrupts that are not open.

    Args:
        unknown: Ids of these interrupts.
        known: Ids of the open interrupts.
    """
    return (
        f"The answer is for interrupts that are not open: {', '.join(unknown)}. Open: {', '.join(known) or 'none'}. "
        "Nothing was changed; answer those that are open."
    )


def _named(interrupt: Interrupt) -> str:
    """Return the names of the calls of an approval request, joined by commas; for any other interrupt, its own `name`.

    Arguments are not included. `a question` for an interrupt without a name.
    """
    if (request := request_of(interrupt)) is not None:
        return ", ".join(visible(call["name"]) for call in calls_of_request(request))
    name = interrupt.value.get("name") if isinstance(interrupt.value, Mapping) else None
    return visible(name) if isinstance(name, str) else "a question"


async def checked_answers(
    answer: Any, graph: CompiledStateGraph[Any, Any, Any, Any], state: StateSnapshot, decided_by: str | None
) -> dict[str, Any]:
    """Check an answer, and return it as interrupt id → answer, in the form that the interrupted nodes expect.

    The form is decisions by call id, or as a list for a request without ids, each with `decided_by`; for an
    elicitation, the parsed answer; any other answer as given.

    Args:
        answer: The answer, with or without interrupt ids.
        graph: The compiled agent.
        state: The state of the session.
        decided_by: Name of the reviewer, which is added to decisions; None for the name in the answer, or `user`.

    Raises:
        InputError: The answer does not fit the open interrupts, a decision does not fit its call, or `decided_by` is
            blank.
    """
    # In a thread: the schemas, some of them of MCP servers, may take seconds.
    return await asyncio.to_thread(_checked_answers, answer, graph, state, decided_by)


def _checked_answers(
    answer: Any, graph: CompiledStateGraph[Any, Any, Any, Any], state: StateSnapshot, decided_by: str | None
) -> dict[str, Any]:
    """The blocking work of `checked_answers`, with its arguments, result and errors."""
    if decided_by is not None and not decided_by.strip():
        raise InputError(f"decided_by={decided_by!r}: give the person's name, or None for `user`.")
    asked = open_interrupts(state)
    if not asked and is_decided(state.values.get("events", ())):
        raise InputError(ALREADY_DECIDED)
    answers = answers_by_id(answer, asked)
    requests = approval_requests(asked)
    for each in asked:
        if each.id in answers and is_elicitation(each.value):
            answers[each.id] = read_elicitation_answer(each.value, answers[each.id]).as_value()
    for id_ in answers.keys() & requests.keys():
        calls, given, ids = calls_of_request(requests[id_]), answers[id_], requests[id_].get("call_ids")
        # The request of a delegate has other calls, whose tools are not the agent's.
        held = [call["id"] for call in state.values.get("loop", {}).get("awaiting_approval", ())]
        own = ids == held and "delegate" not in requests[id_]
        edit_fault = getattr(builder_of(graph), "edit_fault", None) if own else None
        decided = read_decisions(calls, given, edit_fault)
        names = {decided_by} if decided_by else {each.by for each in decided}
        by = {"decided_by": names.pop()} if len(names) == 1 else {}
        schemas = [each.response_schema for each in asked if each.id == id_ and is_single_call(each.value)]
        if schemas:
            (decision,) = listed_decisions(calls, decided)
            # A graph of another package may accept no further key.
            decision = cast("Decision", {name: value for name, value in decision.items() if name != "always"})
            _check(decision, schemas[0], calls[0])
            answers[id_] = {**decision, **by}
        else:
            listed = listed_decisions(calls, decided) if ids is None else [as_decision(each) for each in decided]
            named = [one if by else {**one, "decided_by": each.by} for one, each in zip(listed, decided, strict=True)]
            by_id = {each.call["id"]: one for each, one in zip(decided, named, strict=True)}
            answers[id_] = {"decisions": named if ids is None else by_id, **by}
    return answers


def _check(decision: Decision, schema: Any, call: HeldCall) -> None:
    """Raise `DecisionError` if a decision does not match the JSON schema of its interrupt; `call` is for the
    message.
    """
    # Imported here: it loads a validator, which most sessions do not need.
    from graph_agent.base._internal.json_schema import SchemaCheck

    if (why := SchemaCheck(schema or {}, "The schema of the answer").misfit(decision)) is not None:
        raise DecisionError(f"The decision on call {call['id']!r} ({call['name']}) does not fit: {why}.")


_CALLBACK = "on_approval"
"""Name that the history records if a callback decides and its decision has no name."""

OnApproval: TypeAlias = Callable[[HeldCall], Any]
"""Decides on a call that waits for approval: returns, or awaits and returns, a decision, True to approve, or False to
reject.
"""


class AutoApproval:
    """Answers approval requests of one session by a callback, or by earlier decisions that hold for all calls of a
    kind.

    Args:
        callback: Decides on each call; None if only earlier decisions are used.
    """

    def __init__(self, callback: OnApproval | None = None) -> None:
        self._callback = callback
        self._always: dict[tuple[str, str], str] = {}
        """(Delegate, name) of the calls that are always approved → who approved them; the delegate is empty for the
        agent itself.
        """

    def remember(self, answers: Mapping[str, Any], asked: Sequence[Interrupt], decided_by: str | None) -> None:
        """Record which calls are always approved from now on, by the decisions in valid answers.

        Args:
            answers: Interrupt id → answer.
            asked: The interrupts.
            decided_by: Name of the reviewer, which replaces names in the answers; None to keep the names in the
                answers.
        """
        for interrupt in asked:
            given = answers.get(interrupt.id)
            if given is not None and (request := request_of(interrupt)) is not None:
                for each in read_decisions(calls_of_request(request), given):
                    if each.always:
                        self._always[_key(request, each.call)] = decided_by or each.by

    def recall(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Record which calls are always approved, by the decisions in a session's events."""
        self._always |= {kind: by for kind, by in standing_approvals(events).items() if by is not None}

    @property
    def has_standing(self) -> bool:
        """Whether any call is always approved."""
        return bool(self._always)

    def drop_revoked(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Forget the approvals that events of the session revoke."""
        for kind, by in standing_approvals(events).items():
            if by is None:
                self._always.pop(kind, None)

    async def answers(self, asked: Sequence[Interrupt], callback: OnApproval | None = None) -> dict[str, Any] | None:
        """Return answers to open interrupts, interrupt id → decisions; None if a reviewer must answer any of them.

        Each call is decided by a standing approval, if one covers it, else by the callback; without a callback, a
        reviewer is needed. A request that has refused an answer, and an interrupt that is no approval request, need a
        reviewer, too. None also if no interrupt is open. Decisions of the callback before one that needs a reviewer are
        discarded.

        Args:
            asked: The open interrupts.
            callback: Decides in place of the session's own callback; None for the session's own.

        Raises:
            InputError: The callback returns no decision. Its own exceptions are raised, too.
        """
        decide, answers = callback or self._callback, dict[str, Any]()
        for interrupt in asked:
            # A request with an error has refused the answer before, and would refuse it without end.
            if (request := request_of(interrupt)) is None or "error" in request:
                return None
            decisions: list[Any] = []
            for call in calls_of_request(request):
                by = self._always.get(_key(request, call))
                if by is not None and standing_approval_covers(call):
                    decisions.append(standing_approval(by))
                elif decide is None:
                    return None
                else:
                    decisions.append(await _decision(decide, call))
            answers[interrupt.id] = {"decisions": decisions}
        return answers or None


async def standing_answers(
    state: StateSnapshot, noted: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]]
) -> dict[str, Any] | None:
    """Return answers to the open interrupts of a session by earlier `approve(always=True)`, interrupt id → decisions.

    None if no interrupt is open, or if these approvals, without the revoked ones, do not cover all calls.

    Args:
        state: The state of the session.
        noted: Returns the events of notes that no run has read yet, such as revocations.
    """
    if not (asked := open_interrupts(state)):
        return None
    approval = AutoApproval()
    approval.recall(state.values.get("events", ()))
    if approval.has_standing:
        approval.drop_revoked(await noted())
    return await approval.answers(asked)


def _key(request: Mapping[str, Any], call: HeldCall) -> tuple[str, str]:
    """Return what identifies the kind of a call in an approval request: the delegate (empty for the agent itself) and
    the name.
    """
    return str(request.get("delegate", "")), call["name"]


async def _decision(decide: OnApproval, call: HeldCall) -> Any:
    """Return the decision of a callback on a call as a dict, with `on_approval` as `decided_by` unless the callback
    sets it.

    True becomes an approval, False a rejection. Raises `InputError` if the callback returns neither a bool nor a
    mapping.
    """
    given = decide(call)
    if inspect.isawaitable(given):
        given = await given
    if isinstance(given, bool):
        given = approve() if given else reject()
    if not isinstance(given, Mapping):
        raise InputError(f"on_approval returned {given!r}; return True, False, or a decision such as approve().")
    return {"decided_by": _CALLBACK, **given}
