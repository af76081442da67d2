"""Forks a session: copies it up to an event to a new session, and records what the copy leaves out.

A model that answers again in a fork may repeat a call that has succeeded in the session it was copied from. So the fork
has a `fork` event with the calls after its place that ran or may have run. It is stored as a note, which the fork's
first step takes into the history; `core.execution.uncertain_calls` reads it for approval requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple
from typing_extensions import TypedDict

from graph_agent.base._compat.checkpoints import delta_snapshot
from graph_agent.base._internal.text import text_of
from graph_agent.base.calls import fingerprint
from graph_agent.base.errors import InputError
from graph_agent.base.history.call_events import call_of
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.history.plan_parts import LeftOutCall
from graph_agent.base.inbox import new_note
from graph_agent.core.extensions.output import effect_text
from graph_agent.core.state.lengths import lengths_of
from graph_agent.session.activity import lock_idle_session
from graph_agent.session.feedback import person_of, store_note
from graph_agent.session.importing import read_history

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore


class LeftOut(TypedDict):
    """A call that a fork leaves out, although it ran or may have run."""

    id: str
    """Id of the call, unique in its session."""
    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    arguments: dict[str, Any]
    """The arguments with which it ran."""
    step: int
    """Number of its plan."""
    status: Literal["success", "unknown"]
    """`success` if it succeeded; `unknown` if it may have taken effect."""


async def left_out_calls(
    saver: BaseCheckpointSaver[Any], store: BaseStore | None, session_id: str, seq: int
) -> list[LeftOut]:
    """Return the calls after an event of a session that succeeded or may have taken effect, oldest first.

    Calls that only read are included, because the history does not state the effect of a tool. A call without a result
    counts as one that may have taken effect. Empty for a session that does not exist.

    Args:
        saver: The checkpointer of the session.
        store: The Store of the agent; None for the one in the checkpointer's database.
        session_id: Id of the session.
        seq: Index of the event; -1 for all calls.
    """
    return _ran(await _events_after(saver, store, session_id, seq))


async def fork_session(
    saver: BaseCheckpointSaver[Any],
    store: BaseStore | None,
    session_id: str,
    fork_id: str,
    seq: int,
    *,
    origin: str | None = None,
    by: str | None = None,
) -> list[LeftOut]:
    """Copy a session up to an event to a new session, and record in the copy which calls it leaves out.

    The record is a note with a `fork` event for the first step of the new session. If the session is a fork itself, and
    its own `fork` event comes after `seq`, the record also has the calls in that event.

    Args:
        saver: The checkpointer of both sessions.
        store: The Store of the agent; None for the one in the checkpointer's database.
        session_id: Id of the session, which is not changed.
        fork_id: Id of the new session.
        seq: Index of the last event to copy, with which a superstep must have ended. -1 copies nothing: the new session
            exists from its first input on.
        origin: The id by which readers of the fork know the session; None for `session_id`.
        by: Name of the person; None for `user`.

    Returns:
        The calls that `left_out_calls` returns.

    Raises:
        InputError: No stored superstep ends with this event, or the new session exists already; neither is checked for
            -1. Or `by` is no text.
        SessionBusyError: The new session is running.
        ConfigError: There is neither a Store nor a database that can keep the record; the copy is stored already.
    """
    after = await _events_after(saver, store, session_id, seq)
    left_out = _ran(after)
    if seq >= 0:
        await copy_session(saver, session_id, fork_id, seq)
    parent = session_id if origin is None else origin
    calls = [_recorded(each, parent) for each in left_out]
    # A fork of a fork leaves out what the first one did: its own event comes after the place.
    calls = [*(call for entry in after if entry["type"] == "fork" for call in entry["calls"]), *calls]
    fields = {"origin": parent, "by": person_of(by), "calls": calls}
    await store_note(saver, store, fork_id, new_note("fork", fields))
    return left_out


async def copy_session(saver: BaseCheckpointSaver[Any], session_id: str, fork_id: str, seq: int) -> None:
    """Copy a session up to an event to a new session, which can be resumed from there.

    The copy, which has no run, has two checkpoints: the first one of the session, and the one at the end of the
    superstep, with full copies of messages and events.

    Args:
        saver: The checkpointer of both sessions.
        session_id: Id of the session, which is not changed.
        fork_id: Id of the new session.
        seq: Index of the last event to copy, with which a superstep must have ended.

    Raises:
        InputError: No stored superstep ends with this event, or the new session exists already.
        SessionBusyError: The new session is running.
    """
    thread: RunnableConfig = {"configurable": {"thread_id": session_id, "checkpoint_ns": ""}}
    found: CheckpointTuple | None = None
    async for each in saver.alist(thread):
        if (count := lengths_of(each.metadata).get("events", 0)) < seq + 1:
            break
        # The next input is stored before its first event.
        if count == seq + 1 and each.metadata.get("source") != "input":
            found = each
    if found is None:
        raise InputError(
            f"The session {session_id!r} has no checkpoint after its event {seq}; fork it from the end of another step."
        )
    # Full copies, since the new session does not have the checkpoints whose writes they are rebuilt from.
    copies = await read_history(saver, session_id, found)
    place: RunnableConfig = {"configurable": {"thread_id": fork_id, "checkpoint_ns": ""}}
    async with lock_idle_session(saver, fork_id):
        if await saver.aget_tuple(place) is not None:
            raise InputError(f"The session {fork_id!r} exists already; name another one.")
        async for first in saver.alist(thread, filter={"step": -1}, limit=1):
            # It has the title of the session.
            versions = first.checkpoint["channel_versions"]
            place = await saver.aput(place, first.checkpoint, first.metadata, versions)
        await saver.aput(place, _with_copies(found, copies), found.metadata, found.checkpoint["channel_versions"])


def _with_copies(found: CheckpointTuple, copies: Mapping[str, Any]) -> Checkpoint:
    """Return a checkpoint in which the given delta channels have full copies as values."""
    values = {**found.checkpoint["channel_values"], **{name: delta_snapshot(each) for name, each in copies.items()}}
    return {**found.checkpoint, "channel_values": values}


async def _events_after(
    saver: BaseCheckpointSaver[Any], store: BaseStore | None, session_id: str, seq: int
) -> Sequence[StoredEvent]:
    """Return the events of a session after the event with the index `seq`; empty if there is no such session.

    Events that no superstep has stored yet are included. `store` is the Store of the agent, None for the one in the
    checkpointer's database.
    """
    newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
    if newest is None:
        return ()
    events: Sequence[StoredEvent] = (await read_history(saver, session_id, newest, pending=True, store=store))["events"]
    return events[seq + 1 :]


def _ran(events: Sequence[StoredEvent]) -> list[LeftOut]:
    """Return the calls among events that succeeded or may have taken effect, in the order in which they began.

    `unknown` is the status of a call that timed out and may have taken effect, of one whose outcome is unknown, and of
    one without a result. Calls that were refused or failed are left out. The arguments are those as a person edited
    them.
    """
    outcomes: dict[str, Literal["success", "unknown"] | None] = {}
    for entry in events:
        if entry["type"] in ("tool_result", "delegation_response"):
            # A timeout has the status `error`, and only its text has the uncertainty.
            timed_out = entry["status"] == "error" and effect_text(writes=True) in text_of(entry["content"])
            may_have_run = timed_out or entry["status"] == "unknown"
            outcomes[entry["id"]] = "unknown" if may_have_run else "success" if entry["status"] == "success" else None
    found: dict[str, LeftOut] = {}
    for entry in events:
        call = call_of(entry)
        # A call without a result runs, or a crash has cut it off.
        if call is None or "refused" in entry or (status := outcomes.get(call["id"], "unknown")) is None:
            continue
        # A later event of the same call has the arguments as a person edited them.
        found[call["id"]] = {
            "id": call["id"],
            "name": call["name"],
            "arguments": call["arguments"],
            "step": entry["step"],
            "status": status,
        }
    return list(found.values())


def _recorded(call: LeftOut, session: str) -> LeftOutCall:
    """Return a call of a session as the `fork` event has it: with a hash of its arguments in place of them."""
    return {
        "session": session,
        "id": call["id"],
        "name": call["name"],
        "fingerprint": fingerprint({"id": call["id"], "name": call["name"], "arguments": call["arguments"]}),
        "step": call["step"],
        "status": call["status"],
    }
