"""The state field `remote`: conversations and tasks at remote agents, and effects of calls after their wave."""

from __future__ import annotations

from typing import Any, NotRequired, cast

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from graph_agent.events.calls import Handoff


class RemoteTask(TypedDict):
    """A delegate's task that waits for a person's answer: of a remote agent, or a run in this process."""

    delegate: str
    """The delegate's name."""
    task_id: str
    """The task's id at the remote agent; in this process, the id of the interrupt."""
    context_id: str
    """The conversation's id at the remote agent, empty for none; in this process, the namespace of the checkpoints."""
    question: str
    """The remote agent's question; empty if `request` holds it all."""
    request: NotRequired[dict[str, Any]]
    """The approval request that asks the question; absent for a question of another kind."""
    recorded_here: NotRequired[bool]
    """Whether the delegating session makes the events of the request; the delegate has none of its own."""
    refused: NotRequired[bool]
    """Whether the question is asked again because the delegate refused the last answer; absent for no."""
    copied: NotRequired[int]
    """Events of the delegate's input that the delegating session has considered; absent for none."""
    checkpoint_id: NotRequired[str]
    """The delegate's checkpoint that asks the question; only in this process."""
    usage: NotRequired[dict[str, Any]]
    """The task's usage up to its question, as a `Usage`, which is already counted; absent if not reported."""


class AfterWave(TypedDict):
    """Effects of a call that take place after its wave."""

    messages: list[AnyMessage]
    """Messages of the user or the system for the history."""
    handoff: Handoff | None
    """A command to the parent graph; None for none."""


class RemoteState(TypedDict):
    """A session's conversations and open tasks at remote agents, and what its calls leave for the next plan."""

    contexts: dict[str, str]
    """Delegate name → id of this session's conversation with it."""
    open: dict[str, RemoteTask]
    """Call id → its task that waits for a person."""
    after: NotRequired[dict[str, AfterWave]]
    """Call id → its effects after the wave; absent for none."""


class RemoteChange(TypedDict):
    """A write to `remote`."""

    contexts: dict[str, str]
    open: dict[str, RemoteTask | None]
    """Call id → its task; None removes the task."""
    after: NotRequired[dict[str, AfterWave] | None]
    """Effects to add; None removes all."""


NOTHING_REMOTE: RemoteState = {"contexts": {}, "open": {}}


def change_remote(state: RemoteState | None, change: RemoteChange | None) -> RemoteState | None:
    """Reducer of `remote`: merge a change into the current value."""
    if not change:
        return state
    state = state or NOTHING_REMOTE
    tasks = {**state["open"], **change["open"]}
    merged: RemoteState = {
        "contexts": {**state["contexts"], **change["contexts"]},
        "open": cast("dict[str, RemoteTask]", {id_: task for id_, task in tasks.items() if task is not None}),
    }
    added = change.get("after", {})
    if added is not None and (after := {**state.get("after", {}), **added}):
        merged["after"] = after
    return merged


def after_wave(call_id: str, messages: list[AnyMessage], handoff: Handoff | None) -> RemoteChange:
    """Return the write to `remote` for effects of a call after its wave."""
    return {"contexts": {}, "open": {}, "after": {call_id: {"messages": messages, "handoff": handoff}}}
