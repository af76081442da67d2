"""Reads the newest input of a session without its calls, also one whose first plan is not stored.

An agent's first superstep stores the user's message as an event, together with its plan. Until then, also after a crash
in the first model call, only the messages and the pending tasks of the newest checkpoint show the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.types import SessionStatus
from graph_agent.core.state.feedback import NOTE_EVENTS
from graph_agent.storage.checkpoints.format import FORMAT_KEY, has_tasks, part_of_history

if TYPE_CHECKING:
    from langchain_core.messages import AnyMessage
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.types import Interrupt, StateSnapshot

_START, _FIRST = "__start__", "plan"
"""The nodes that run before the first plan of an input is stored."""
_MOST_CHECKPOINTS = 16
"""Maximum number of checkpoints that are read back to the agent's last message, before the whole conversation is read
instead.
"""


def status_at(newest: CheckpointTuple) -> SessionStatus:
    """Return the status that a session's newest checkpoint stores; `RUNNING` while a task is pending, whatever is
    stored.

    `CREATED` if no status is stored, or the stored one is unknown, as in a thread of another graph.
    """
    if has_tasks(newest.checkpoint):
        return SessionStatus.RUNNING
    # A thread of another graph may have a field of the same name.
    stored = newest.checkpoint["channel_values"].get("status")
    return next((known for known in SessionStatus if known == stored), SessionStatus.CREATED)


async def unfinished_events(saver: BaseCheckpointSaver[Any], newest: CheckpointTuple) -> list[StoredEvent] | None:
    """Return the events after a session's newest checkpoint, whether they are stored already or `plan` will store them.

    They are those of calls that have ended while others of their wave (the calls of one plan) run or wait; or, if there
    are none, the first events of an input whose first plan is not stored. Empty if there are neither. None if a task
    has overwritten the whole history.
    """
    writes = [value for _, channel, value in newest.pending_writes or [] if channel == "events"]
    if not all(isinstance(each, list) for each in writes):
        return None
    values = newest.checkpoint["channel_values"]
    is_first = {_START, f"branch:to:{_FIRST}"} & values.keys()
    if writes or not is_first or not _is_agents(newest.metadata, values):
        return [entry for write in writes for entry in write]
    return _first_events(await _messages_at(saver, newest), values, newest.checkpoint["ts"])


def is_begun(pending: Sequence[StoredEvent]) -> bool:
    """Return whether unfinished events are those with which an input begins, so that their index in the history is
    final.

    False if results of open calls of an earlier input come first. Feedback and titles may follow.
    """
    types = [entry["type"] for entry in pending if entry["type"] not in NOTE_EVENTS]
    return types[:1] == ["user_message"] and types[-1:] == ["status"]


def is_feedback(pending: Sequence[StoredEvent]) -> bool:
    """Return whether unfinished events are only feedback and titles, which may be shown although their index may
    change.
    """
    return bool(pending) and all(entry["type"] in NOTE_EVENTS for entry in pending)


def begun_events(state: StateSnapshot) -> list[StoredEvent]:
    """Return the first events of an input whose first plan is not stored yet; empty for any other state.

    They are made from the state's messages, in the form in which `plan` will store them.
    """
    is_first = any(task.name in (_START, _FIRST) for task in state.tasks)
    if not is_first or not _is_agents(state.metadata or {}, state.values):
        return []
    return _first_events(state.values.get("messages", []), state.values, state.created_at or "")


def events_of(state: StateSnapshot) -> list[StoredEvent]:
    """Return the events of a state, and the first events of an input whose first plan is not stored yet."""
    return [*state.values.get("events", []), *begun_events(state)]


def _is_agents(metadata: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is one of an agent of this package.

    Another graph may have the same node names and state fields.
    """
    # `update_state` stores no format.
    return FORMAT_KEY in metadata or isinstance(values.get("loop"), dict)


def _first_events(messages: Sequence[AnyMessage], values: Mapping[str, Any], ts: str) -> list[StoredEvent]:
    """Return the events that `plan` will store first for an input, without warnings.

    They are its user messages, and the change of status to `RUNNING` unless that is the status already. Empty if the
    checkpoint is the end of a wave.

    Args:
        messages: The conversation, with the input's own messages.
        values: The other state fields.
        ts: When the checkpoint was stored, which becomes the time of the events.
    """
    # Imported here: lists of sessions do not load LangChain.
    from graph_agent.base._internal.text import to_json_safe
    from graph_agent.base.input_messages import new_user_messages
    from graph_agent.core.state.channels import status_event

    if values.get("wave_finished"):
        return []
    users = new_user_messages(messages, (values.get("loop") or {}).get("last_input_id", ""))
    found = [event("user_message", 0, content=to_json_safe(message.content)) for message in users]
    status = values.get("status") or SessionStatus.CREATED.value
    if status != SessionStatus.RUNNING:
        found.append(status_event(status, SessionStatus.RUNNING.value, 0))
    return [{**entry, "ts": ts} for entry in found]


async def _messages_at(saver: BaseCheckpointSaver[Any], newest: CheckpointTuple) -> list[AnyMessage]:
    """Return the conversation at a checkpoint, followed by the messages of an input that it has received.

    Messages before the agent's last one may be missing, because reading stops there if it can.
    """
    from langchain_core.messages import convert_to_messages

    from graph_agent.storage.checkpoints.delta_values import delta_values

    values, at = newest.checkpoint["channel_values"], newest.config["configurable"]
    messages: Any = getattr(values.get("messages"), "value", values.get("messages"))
    if messages is None and "messages" in newest.checkpoint["channel_versions"]:
        messages = await _last_messages(saver, newest)
    if messages is None and "messages" in newest.checkpoint["channel_versions"]:
        place = str(at["thread_id"]), str(at.get("checkpoint_ns", ""))
        messages = (await delta_values(saver, place, newest.checkpoint["id"], ["messages"]))["messages"]
    start = values.get(_START)
    given = start.get("messages", []) if isinstance(start, dict) else []
    own: Any = convert_to_messages(given if isinstance(given, list) else [given])
    return [*(messages or ()), *own]


async def _last_messages(saver: BaseCheckpointSaver[Any], newest: CheckpointTuple) -> list[AnyMessage] | None:
    """Return the newest messages: those of the newest supersteps, back to one with a message of the agent or of a tool.

    None if the writes do not suffice: there are more than `_MOST_CHECKPOINTS` supersteps, a full copy or the beginning
    comes first, or messages were removed.
    """
    from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage

    found: list[AnyMessage] = []
    at: CheckpointTuple | None = newest
    # The whole conversation is not read, because followers of a session need this for each input.
    for _ in range(_MOST_CHECKPOINTS):
        if at is None or at.parent_config is None or "messages" in at.checkpoint["channel_values"]:
            return None
        at = await saver.aget_tuple(part_of_history(at.parent_config))
        writes = [value for _, channel, value in (at.pending_writes or [] if at else []) if channel == "messages"]
        written = [each for value in writes for each in (value if isinstance(value, list) else [value])]
        if not all(isinstance(each, BaseMessage) and not isinstance(each, RemoveMessage) for each in written):
            return None
        found = [*written, *found]
        if any(isinstance(each, AIMessage | ToolMessage) for each in written):
            return found
    return None


class StoredInput(NamedTuple):
    """The newest input of a session, as the state of the session shows it."""

    values: Mapping[str, Any]
    """Values of the state's fields; before the first plan is stored, only messages and the agent's own fields."""
    events: list[StoredEvent]
    """The events of the input."""
    status: SessionStatus

    def newest(self, type_: str) -> StoredEvent:
        """Return the newest event of a type; an empty mapping if there is none."""
        return next((entry for entry in reversed(self.events) if entry["type"] == type_), {})


def stored_input(state: StateSnapshot, fields: Sequence[str] = ()) -> StoredInput:
    """Return a session's newest input; `RUNNING` while a task is pending.

    If the input's first plan is not stored yet, fields of the input before it are not used.

    Args:
        state: The state of the session.
        fields: Names of the agent's own state fields.
    """
    values, begun = state.values, begun_events(state)
    if begun:
        # The other fields are those of the input before.
        values = {"messages": values.get("messages", []), **{name: values[name] for name in fields if name in values}}
    # The stored status is that of the last superstep: while a task is left, the input goes on, also after a crash.
    status = SessionStatus.RUNNING if state.tasks else SessionStatus(values.get("status", SessionStatus.CREATED))
    return StoredInput(values, begun or since_last_input(values.get("events", [])), status)


def open_interrupts(state: StateSnapshot) -> list[Interrupt]:
    """Return the open interrupts of a state, in order, excluding those of finished calls; empty if nothing waits."""
    return [interrupt for task in state.tasks if task.result is None for interrupt in task.interrupts]


def since_last_input(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return the events of the newest input, beginning with its last user message; all events if there is no user
    message.
    """
    return list(events[input_at(events) :])


def input_at(events: Sequence[StoredEvent]) -> int:
    """Return the index of the last user message among events; 0 if there is none."""
    for index in range(len(events) - 1, -1, -1):
        if events[index]["type"] == "user_message":
            return index
    return 0
