"""Reads the feedback on a session's answers that no run has taken into the history yet.

Feedback is stored as a note, without a run; see `session.feedback`. Readers of events show it behind the stored events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graph_agent.base.history.events import StoredEvent
from graph_agent.core.state.feedback import pending_feedback

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.store.base import BaseStore

    from graph_agent.base.inbox import ControlMessage


async def stored_notes(
    saver: BaseCheckpointSaver[Any], store: BaseStore | None, session_id: str
) -> list[ControlMessage]:
    """Return the notes to a session, in the order in which they were sent. They stay stored.

    Args:
        saver: The checkpointer of the session.
        store: The Store of the agent; None for the one in the checkpointer's database or, without one, this process's
            memory.
        session_id: Id of the session.
    """
    if store is not None:
        from graph_agent.base.inbox import StoreInbox

        return await StoreInbox(store).read(session_id)
    if (read := getattr(saver, "stored_notes", None)) is not None:
        found: list[ControlMessage] = await read(session_id)
        return found
    # Imported here: lists of the sessions of a file do not load the registry of runs.
    from graph_agent.core.state.registry import inbox_of

    return await (await inbox_of(saver, None)).read(session_id)


async def feedback_after(
    saver: BaseCheckpointSaver[Any], store: BaseStore | None, newest: CheckpointTuple
) -> list[StoredEvent]:
    """Return the events of feedback, titles and revocations that follow a session's newest checkpoint, in the order in
    which they were sent.

    Args:
        saver: The checkpointer of the session.
        store: The Store of the agent; None for the one in the checkpointer's database or, without one, this process's
            memory.
        newest: The newest checkpoint.
    """
    session_id = str(newest.config["configurable"]["thread_id"])
    notes = await stored_notes(saver, store, session_id)
    return pending_feedback(notes, newest.checkpoint["channel_values"].get("loop")) if notes else []
