"""Selection of the calls that a person must approve before they run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent.approvals.policy import Review, review_of
from graph_agent.approvals.requests import HeldCall
from graph_agent.config import LoopConfig
from graph_agent.deps import AgentDeps
from graph_agent.events.approvals import is_own
from graph_agent.events.types import StoredEvent
from graph_agent.state.schema import INITIAL_BOOKKEEPING
from graph_agent.tools.read_result import READ_RESULT
from graph_agent.types import Call


@dataclass(frozen=True, slots=True)
class _Grant:
    """A person's approval of one call with exactly these arguments."""

    call: Call
    edited: str | None = None
    """Name of the call that a person replaced by this one; None if it was approved as planned."""

    def covers(self, call: Call, review: Review) -> bool:
        """Whether a call needs no further decision.

        An edit approves the new call only if its own policy allows edits, and only for the same tool: another tool's
        call was reviewed by the rules of the first.
        """
        if not _equal(call, self.call):
            return False
        return self.edited is None or (self.edited == call["name"] and "edit" in review.allowed)


async def held_calls(
    calls: Sequence[Call], wave: Sequence[StoredEvent], deps: AgentDeps, settings: LoopConfig
) -> list[HeldCall]:
    """Return the calls that a person must decide on before they may run.

    A call that a person was asked about stays in the list until it is decided, even if the policy has changed.

    Args:
        calls: Calls that could run, references resolved.
        wave: The events of their wave.
        deps: The agent.
        settings: The configuration in force.
    """
    if settings.approve is None:
        return []
    requested, grants = _history(wave)
    held: list[HeldCall] = []
    for call in calls:
        if "fault" in call or not _may_run(call["name"], deps):
            continue
        review = await review_of(call, deps.toolbox.marks(call["name"]).get("approve"), settings.approve)
        grant, before = grants.get(call["id"]), requested.get(call["id"])
        if review is None and before is not None and grant is None and _equal(call, _call_of(before)):
            held.append(before)
        elif review is not None and not (grant is not None and grant.covers(call, review)):
            held.append(_held(call, review))
    return held


async def needs_approval(
    call: Call,
    wave: Sequence[StoredEvent],
    config: RunnableConfig,
    runtime: Runtime[Any],
    state: Mapping[str, Any],
    deps: AgentDeps,
) -> bool:
    """Whether a task of an earlier run may not run its call, because a person must decide on it first.

    Args:
        call: The call.
        wave: The events of its wave.
        config: The task's config.
        runtime: The task's runtime.
        state: The state's `loop`.
        deps: The agent.
    """
    if deps.config.approve is None:
        return False
    settings = deps.settings(runtime, config, state.get("loop", INITIAL_BOOKKEEPING))
    return bool(await held_calls([call], wave, deps, settings))


async def replacement_fault(planned: Call, replacement: Call, deps: AgentDeps, settings: LoopConfig) -> str | None:
    """Return why middleware may not run a call in the place of the planned one; None if it may.

    A replacement that needs approval runs only if the planned call, of the same tool, needed it and so was approved.

    Args:
        planned: The call of the wave.
        replacement: The call that middleware wants to run.
        deps: The agent.
        settings: The configuration in force.
    """
    rules = settings.approve
    if rules is None or replacement is planned or _equal(planned, replacement):
        return None

    async def needs_review(call: Call) -> bool:
        return await review_of(call, deps.toolbox.marks(call["name"]).get("approve"), rules) is not None

    was_approved = replacement["name"] == planned["name"] and await needs_review(planned)
    if was_approved or not await needs_review(replacement):
        return None
    return (
        f"Not run: middleware changed this call of {planned['name']!r} into another call of {replacement['name']!r}, "
        "which needs a person's approval. Plan that call itself, so that it can be approved."
    )


def _may_run(name: str, deps: AgentDeps) -> bool:
    """Whether the agent itself runs calls of this name; calls of client tools are executed by the caller."""
    toolbox = deps.toolbox
    return (name in toolbox.tools and name not in toolbox.client_tools and name != READ_RESULT) or (
        name in toolbox.delegates
    )


def _history(wave: Sequence[StoredEvent]) -> tuple[dict[str, HeldCall], dict[str, _Grant]]:
    """Return a wave's calls as last requested, and the approvals since, by call id."""
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
    return {"id": held["id"], "name": held["name"], "arguments": held["arguments"]}


def _held(call: Call, review: Review) -> HeldCall:
    held: HeldCall = {
        "id": call["id"],
        "name": call["name"],
        "arguments": call["arguments"],
        "allowed_decisions": list(review.allowed),
    }
    return held if review.description is None else {**held, "description": review.description}


def _equal(one: Call, other: Call) -> bool:
    if one["name"] != other["name"]:
        return False
    # As JSON: in Python 1, 1.0 and True are equal.
    return json.dumps(one["arguments"], sort_keys=True) == json.dumps(other["arguments"], sort_keys=True)
