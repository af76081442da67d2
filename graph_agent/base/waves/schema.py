"""Defines one wave of a structured plan, validates it, and selects the calls that can run.

A wave is the calls of one plan. They run in parallel, except that a call waits for the calls that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from graph_agent.base._internal.text import NotFiniteError, to_json_safe
from graph_agent.base.errors import CallError
from graph_agent.base.types import Call, plan_id_of
from graph_agent.base.waves.references import BadReferenceError, referenced_ids, resolve, resolve_some

CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Pattern of a call id in a plan."""
_MOST_FAULTS = 10
"""Maximum faults of a plan that are described to the model."""
_OF_EARLIER_INPUT = "A reference is to a call of the same input: make the call again, or write the value itself."
_FAILED_NEED = "Not run: it needs {}, which failed or was not run."
"""Reason of a call that did not run; `{}` takes the quoted ids of the calls that it needs."""


class WaveCall(BaseModel):
    """One call of a structured plan, as the model writes it."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(description="A short name for the call, unique in the plan: letters, digits, _ and -.")
    tool: str = Field(description="The tool's name.")
    args: dict[str, Any] = Field(default={}, description="The tool's arguments; ${id.field[0]} takes another's result.")
    needs: list[str] = Field(default=[], description="Ids of calls of this plan that must have finished before.")
    _fault: str = PrivateAttr(default="")

    def mark_faulty(self, why: str) -> None:
        """Record why the call cannot run, so that it gets this text as an error result, and drop its arguments."""
        self.args, self._fault = {}, why

    def as_call(self) -> Call:
        """Return the call in the form that the loop runs, with its `fault` if it has one; `needs` are left out."""
        made = Call(id=self.id, name=self.tool, arguments=self.args)
        return {**made, "fault": self._fault} if self._fault else made


class PlanningResult(BaseModel):
    """A model's plan: one wave of calls, and whether it is the last.

    Subclass it to define the type of `slots`.
    """

    model_config = ConfigDict(extra="ignore")

    status: Literal["continue", "done"] = Field(
        description="continue: plan again after these calls; done: these calls, if any, are the last."
    )
    action: str = Field(default="", description="What this plan does, in a few words.")
    slots: Any = Field(default={}, description="Parameters read from the user's message, by name.")
    tools: list[WaveCall] = Field(default=[], description="The calls to run; they run in parallel, save for needs.")
    reasoning: str = Field(default="", description="Why, in a sentence or two.")
    answer: str = Field(
        default="", description="The answer to the user, where the instructions ask for it; empty otherwise."
    )


class PlanError(CallError):
    """Raised for an invalid plan; its text is for the model.

    Args:
        faults: What is wrong, one fault a line.
        fix: What the model should send instead, appended to the faults without a separator.
    """

    def __init__(self, faults: str, fix: str = "") -> None:
        super().__init__(f"{faults}{fix}")
        self.faults = faults


class _Faults:
    """Collects the faults of a plan. As text: the first `_MOST_FAULTS`, one a line, and the number of the others."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._more = 0

    def add(self, fault: str) -> None:
        """Add the text of a fault; beyond `_MOST_FAULTS`, only the number is counted."""
        # A model repairs a short list better, and each fault costs tokens.
        if len(self._texts) < _MOST_FAULTS:
            self._texts.append(fault)
        else:
            self._more += 1

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __str__(self) -> str:
        return "\n".join([*self._texts, *([f"… and {self._more} more."] if self._more else [])])


class Selection(NamedTuple):
    """The waiting calls of a wave, divided by what happens to them next."""

    ready: list[Call]
    """Calls that can run now, with references in the arguments replaced by values."""
    skipped: list[tuple[Call, str]]
    """Calls that will never run, each with the reason as text for the model."""
    waiting: list[Call]
    """Calls that still wait for others, unchanged."""


def check_wave(
    plan: PlanningResult, max_calls: int, answered: Container[str] = (), ended: Container[str] = ()
) -> list[Call]:
    """Validate the calls of a plan, and return them in an order in which each follows the calls it needs.

    Calls of equal depth keep the plan's order. Each call has in `needs` what it declared and what its references name.
    An unknown tool is no fault here: its call gets an error result when it runs. References to earlier waves are
    replaced later, by `fill_in_earlier`.

    Args:
        plan: The model's plan.
        max_calls: Maximum calls in one wave.
        answered: Plan ids of calls of the input's earlier waves, which this wave may need.
        ended: Plan ids of calls of earlier inputs, which it may not need.

    Raises:
        PlanError: There are too many calls, repeated or malformed ids, unknown or cyclic needs, or malformed
            references. All faults are reported together, except too many calls, which is reported alone, and cyclic
            needs, which are found only without other faults.
    """
    if len(plan.tools) > max_calls:
        fault = f"The plan has {len(plan.tools)} calls; at most {max_calls} are allowed in one."
        raise PlanError(fault, " Plan fewer.")
    faults = _Faults()
    needs: dict[str, list[str]] = {}
    ids = {call.id for call in plan.tools}
    for call in plan.tools:
        name = repr(call.id[:80])
        if not CALL_ID.fullmatch(call.id):
            faults.add(f"The id {name} cannot be used; take up to 64 letters, digits, _ and -.")
        if call.id in needs:
            faults.add(f"The id {name} is used twice.")
        try:
            wanted = dict.fromkeys([*call.needs, *referenced_ids(call.args)])
        except BadReferenceError as fault:
            faults.add(f"Call {name}: {fault}")
            # The other faults of the call are reported as well, so that the model can repair all at once.
            wanted = dict.fromkeys(call.needs)
        for need in wanted:
            if need in ids or need in answered:
                continue
            if need in ended:
                faults.add(f"Call {name} needs {need[:80]!r}, a call of an earlier input. {_OF_EARLIER_INPUT}")
            else:
                faults.add(f"Call {name} needs {need[:80]!r}, no call of this plan or of an earlier one.")
        needs[call.id] = list(wanted)
    order: list[str] = []
    if not faults:
        try:
            order = [id_ for id_ in TopologicalSorter(needs).static_order() if id_ in ids]
        except CycleError as error:
            faults.add(f"These calls need each other in a circle: {' → '.join(error.args[1][:20])}.")
    if faults:
        raise PlanError(f"The plan cannot be carried out:\n{faults}")
    by_id = {call.id: call for call in plan.tools}
    # Calls of one level keep the plan's order, because results are reported in call order.
    place = {call.id: index for index, call in enumerate(plan.tools)}
    depth: dict[str, int] = {}
    for id_ in order:
        depth[id_] = 1 + max((depth[need] for need in needs[id_] if need in ids), default=-1)
    wave: list[Call] = []
    for id_ in sorted(order, key=lambda id_: (depth[id_], place[id_])):
        made = by_id[id_].as_call()
        wave.append({**made, "needs": needs[id_]} if needs[id_] else made)
    return wave


def fill_in_earlier(
    calls: Sequence[Call], earlier_results: Callable[[], Mapping[str, Any]], *, keep_templates: bool = False
) -> list[Call]:
    """Return calls whose references to results of earlier waves are replaced, so that they only need calls of their own
    wave.

    A call that needs an earlier call without a result, or whose reference leads to nothing, gets a `fault` and
    `skipped`, and loses its arguments.

    Args:
        calls: The calls as `check_wave` returned them; not changed.
        earlier_results: Returns the results of the input's earlier waves by plan id; called only if one is needed.
        keep_templates: Whether a changed call keeps the arguments with their references as `template`.
    """
    ids = {plan_id_of(call) for call in calls}
    # Reading earlier results is costly in a long session.
    if all(need in ids for call in calls for need in call.get("needs", ())):
        return [*calls]
    results = earlier_results()
    filled: list[Call] = []
    for call in calls:
        earlier = [need for need in call.get("needs", ()) if need not in ids]
        if not earlier:
            filled.append(call)
            continue
        made: Call = {**call, "needs": [need for need in call.get("needs", ()) if need in ids]}
        if not made["needs"]:
            del made["needs"]
        if keep_templates:
            made["template"] = call["arguments"]
        fault = ""
        if missing := [need for need in earlier if need not in results]:
            fault = _FAILED_NEED.format(", ".join(map(repr, missing)))
        else:
            try:
                made["arguments"] = resolve_some(call["arguments"], {need: results[need] for need in earlier})
            except BadReferenceError as error:
                fault = f"Not run: {error}"
        filled.append({**made, "fault": fault, "skipped": True, "arguments": {}} if fault else made)
    return filled


def select(waiting: Sequence[Call], results: Mapping[str, Any], failed: Collection[str]) -> Selection:
    """Divide waiting calls into those that can run now, those that never can, and those that still wait for others.

    A call never runs if a call that it needs failed or never runs, or if a reference leads to nothing or to a number
    that is not finite; it is returned with this reason. The references of a call that can run are replaced by values.

    Args:
        waiting: Calls that have not run, each after the calls it needs.
        results: Results of the wave's finished calls as plain JSON, by plan id.
        failed: Plan ids of the wave's calls that failed or were skipped.
    """
    ready: list[Call] = []
    skipped: list[tuple[Call, str]] = []
    still: list[Call] = []
    lost = set(failed)
    for call in waiting:
        needs = call.get("needs", [])
        missing = [need for need in needs if need in lost]
        if missing:
            reason = _FAILED_NEED.format(", ".join(map(repr, missing)))
            skipped.append((call, reason))
            # Calls after it in the list may need it.
            lost.add(plan_id_of(call))
        elif all(need in results for need in needs):
            try:
                ready.append({**call, "arguments": to_json_safe(resolve(call["arguments"], results), finite=True)})
            except BadReferenceError as fault:
                skipped.append((call, f"Not run: {fault}"))
                lost.add(plan_id_of(call))
            except NotFiniteError as error:
                skipped.append((call, f"Not run: the arguments cannot be used: {error}."))
                lost.add(plan_id_of(call))
        else:
            still.append(call)
    return Selection(ready, skipped, still)
