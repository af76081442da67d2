"""Answers approvals by program: by a callback, and by a person's earlier `approve(always=True)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from langgraph.types import Interrupt

from graph_agent.approvals.decisions import approve, read_decisions, reject, standing_approval
from graph_agent.approvals.requests import HeldCall, calls_of_request, request_of
from graph_agent.errors import InputError

_CALLBACK = "on_approval"
"""Name in the history of a callback that decides, unless its decision has a name."""

OnApproval: TypeAlias = Callable[[HeldCall], Any]
"""Decides on a call that waits for approval: returns a decision, True to approve, or False to reject; or awaits one."""


class AutoApproval:
    """Answers approval requests of one `Session` without a person.

    Args:
        callback: Decides on each call; None if a person decides.
    """

    def __init__(self, callback: OnApproval | None = None) -> None:
        self._callback = callback
        self._always: dict[tuple[str, str], str] = {}
        """Delegate and name of the calls that are approved for good → who approved them; an empty delegate is the
        agent itself."""

    def remember(self, answers: Mapping[str, Any], asked: Sequence[Interrupt], decided_by: str | None) -> None:
        """Record the calls that an answer approves for good.

        Args:
            answers: Valid answers to open interrupts, by id.
            decided_by: Name of the person; None for the names in the answers.
        """
        for interrupt in asked:
            given = answers.get(interrupt.id)
            if given is not None and (request := request_of(interrupt)) is not None:
                for each in read_decisions(calls_of_request(request), given):
                    if each.always:
                        self._always[_key(request, each.call)] = decided_by or each.by

    async def answers(self, asked: Sequence[Interrupt], callback: OnApproval | None = None) -> dict[str, Any] | None:
        """Return the answers to open interrupts, by id; None if a person must give one of them.

        Args:
            callback: Decides in place of the session's own callback; None for that.

        Raises:
            InputError: When the callback returns no decision.
        """
        decide, answers = callback or self._callback, dict[str, Any]()
        for interrupt in asked:
            # A request with an error has refused the answer before, and would refuse it without end.
            if (request := request_of(interrupt)) is None or "error" in request:
                return None
            decisions: list[Any] = []
            for call in calls_of_request(request):
                by = self._always.get(_key(request, call))
                if by is not None and "approve" in call["allowed_decisions"]:
                    decisions.append(standing_approval(by))
                elif decide is None:
                    return None
                else:
                    decisions.append(await _decision(decide, call))
            answers[interrupt.id] = {"decisions": decisions}
        return answers or None


def _key(request: Mapping[str, Any], call: HeldCall) -> tuple[str, str]:
    return str(request.get("delegate", "")), call["name"]


async def _decision(decide: OnApproval, call: HeldCall) -> Any:
    given = decide(call)
    if inspect.isawaitable(given):
        given = await given
    if isinstance(given, bool):
        given = approve() if given else reject()
    if not isinstance(given, Mapping):
        raise InputError(f"on_approval returned {given!r}; return True, False, or a decision such as approve().")
    return {"decided_by": _CALLBACK, **given}
