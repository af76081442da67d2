"""Reads sessions from a checkpointer for the table of calls that followed: `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.base.errors import DamagedSessionError, NewerFormatError
from graph_agent.base.history.events import StoredEvent
from graph_agent.session.history import EventReader, list_threads


class PastSessionReader:
    """Reads stored sessions; implements `PastSessions`."""

    async def newest(self, saver: BaseCheckpointSaver[Any], most: int) -> list[str]:
        """Return the ids of the newest sessions, newest first."""
        return await list_threads(saver, limit=most)

    async def events(self, saver: BaseCheckpointSaver[Any], session_id: str, most: int) -> Sequence[StoredEvent]:
        """Return the newest events of a session, at most `most`, oldest first; empty for one that does not exist, is
        damaged, or is of a newer version."""
        try:
            found = await EventReader(None, saver, session_id).read_tail(last=most)
        except (NewerFormatError, DamagedSessionError):
            return ()
        return () if found is None else found[1]
