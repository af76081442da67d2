"""Tasks that other agents hold for a session: what must outlive an interrupt, and a restart."""

from __future__ import annotations

from typing import Any, NotRequired, cast

from typing_extensions import TypedDict


class RemoteTask(TypedDict):
    """A task of another agent that waits for a person."""

    delegate: str
    """The delegate's name."""
    task_id: str
    """The task's id, as the other agent gave it."""
    context_id: str
    """The conversation it belongs to there; empty where the agent keeps none."""
    question: str
    """What the other agent wants to know."""
    usage: NotRequired[dict[str, Any]]
    """What the task had used when it asked, as a `Usage`, which is counted by then; absent where nobody told."""


class RemoteState(TypedDict):
    """What a session keeps of other agents."""

    contexts: dict[str, str]
    """Delegate name → the conversation this session has with it."""
    open: dict[str, RemoteTask]
    """Call id → the task behind it that waits for a person."""


class RemoteChange(TypedDict):
    """A write: what is new."""

    contexts: dict[str, str]
    open: dict[str, RemoteTask | None]
    """None for a task that waits no longer."""


NOTHING_REMOTE: RemoteState = {"contexts": {}, "open": {}}


def change_remote(state: RemoteState | None, change: RemoteChange | None) -> RemoteState | None:
    """Reducer of `remote`: the change laid over what is kept."""
    if not change:
        return state
    state = state or NOTHING_REMOTE
    tasks = {**state["open"], **change["open"]}
    return {
        "contexts": {**state["contexts"], **change["contexts"]},
        "open": cast("dict[str, RemoteTask]", {id_: task for id_, task in tasks.items() if task is not None}),
    }
