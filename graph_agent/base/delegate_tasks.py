"""Defines the tasks of delegates that a session stores: those that wait for an answer, and those in the background."""

from __future__ import annotations

from typing import Any, NotRequired

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict


class RemoteTask(TypedDict):
    """A delegate's task that waits for a person's answer; the delegate is a remote agent or a run in this process."""

    delegate: str
    """The delegate's name."""
    task_id: str
    """Id of the task at the remote agent; in this process, id of the interrupt that asks."""
    context_id: str
    """Id of the conversation at the remote agent, empty if it has none; in this process, the checkpoint namespace of
    the run."""
    question: str
    """The delegate's question; empty if `request` holds all of it."""
    request: NotRequired[dict[str, Any]]
    """The approval request that asks the question, as in an `approval_request` event; absent for another kind of
    question."""
    recorded_here: NotRequired[bool]
    """Whether the delegating session records the events of the request, because the delegate has none of its own."""
    refused: NotRequired[bool]
    """Whether the question is asked again because the delegate refused the last answer; absent for no."""
    copied: NotRequired[int]
    """Number of events of the delegate's input that the delegating session has read; absent for 0."""
    checkpoint_id: NotRequired[str]
    """Id of the delegate's checkpoint that asks the question; only in this process."""
    usage: NotRequired[dict[str, Any]]
    """Usage of the task up to its question, in the form of `Usage`, which is already counted; absent if not
    reported."""


class BackgroundTask(TypedDict):
    """A delegate's task that goes on while the agent continues; its result has not been received yet."""

    delegate: str
    """The delegate's name."""
    session_id: str
    """Id of the session that runs the task; the task's id at a remote agent."""
    task: str
    """The task, in the model's words."""
    context: list[AnyMessage]
    """Messages given to the delegate before the task; empty for a remote agent."""
    budget: dict[str, float | int | None]
    """Limits for the task: the fields of `RemainingBudget.as_json`."""
    depth_left: int
    """Number of further levels of delegation that the task may use."""
    untrusted: NotRequired[list[str]]
    """Parts of the task that come from untrusted text; absent if there are none."""
    asked: NotRequired[list[str]]
    """Ids of the questions that the delegating session has reported; absent if there are none."""
