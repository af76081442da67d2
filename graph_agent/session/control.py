"""What other tasks, threads and processes can do to a session while it runs, or before its next input."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph

from graph_agent.compiled import AgentStateGraph
from graph_agent.errors import ConfigError, InputError, SessionBusyError
from graph_agent.execution.checkpoints import edited_from, load
from graph_agent.runs.inbox import Inbox, Note, NoteKind, new_note
from graph_agent.runs.notes import checked_fields
from graph_agent.runs.registry import ABORTED, POLL_S, inbox_of, is_idle, run_under_way, sees_other_processes
from graph_agent.types import SessionStatus

if TYPE_CHECKING:
    from graph_agent.session.call_records import CallRecord

_HEARD_S = 4 * POLL_S
"""Seconds that a run in another process has to take an abort out of the Store."""
_LOOKS = 20
_ANSWERED = frozenset({SessionStatus.COMPLETED, SessionStatus.ROUND_LIMIT, SessionStatus.TURN_LIMIT})
"""The statuses of a session that follow-ups are run in: its newest input has an answer, and was not stopped."""


class SessionControl:
    """The way to one session from outside its run.

    In one process it needs nothing. A session that another process runs is reached through the graph's Store; that it
    is running there is seen where sessions are in an SQLite file or in PostgreSQL, and nowhere else.

    Args:
        graph: The compiled agent, with its checkpointer.
        session_id: The session.

    Raises:
        ConfigError: When the graph has no checkpointer.
    """

    def __init__(self, graph: CompiledStateGraph[Any, Any, Any, Any], session_id: str) -> None:
        if not isinstance(graph.checkpointer, BaseCheckpointSaver):
            raise ConfigError("This graph keeps nothing: compile it with a checkpointer to have sessions.")
        self._graph = graph
        self._saver = graph.checkpointer
        self._store = graph.store
        self._id = session_id

    async def steer(self, text: str) -> None:
        """Say something to the model before its next plan, also while a wave runs; with the next input when idle.

        Raises:
            InputError: When the text is empty; or when another process runs the session, and there is no Store.
        """
        await self._send(new_note("steer", _said(text, "steer")))

    async def follow_up(self, text: str) -> None:
        """Queue an input for after the current answer, or for after the next one when the session is idle.

        It is run by what runs the session then: `Session.run`, `Session.stream`, the command line or a server. A run of
        the bare graph leaves it queued; `Session.run_follow_ups` runs it.

        Raises:
            InputError: When the text is empty; or when another process runs the session, and there is no Store.
        """
        await self._send(new_note("follow_up", _said(text, "follow_up")))

    async def configure(self, **fields: Any) -> None:
        """Change fields of the configuration, such as `reasoning_effort` or `max_steps`, from the next model call on.

        A change lasts as long as the session, or until an input whose own context sets the field.

        Raises:
            ConfigError: On a field that there is not, or a value that does not fit.
            InputError: When another process runs the session, and there is no Store to reach it through.
        """
        await self._send(new_note("configure", checked_fields(fields)))

    async def next_follow_up(self) -> Note | None:
        """The follow-up to run now; None when none waits, or the newest input was not answered."""
        notes = [note for note in await (await self._inbox()).read(self._id) if note.kind == "follow_up"]
        if not notes:
            return None
        state = await self._graph.aget_state(self._config)
        if state.tasks or state.values.get("status") not in _ANSWERED:
            return None
        taken = set(state.values.get("loop", {}).get("taken", ()))
        return next((note for note in notes if note.key not in taken), None)

    async def check_next(self, note: Note) -> None:
        """Check, where no other run of the session can begin, that a follow-up is still the one to run.

        Raises:
            SessionBusyError: When another run has taken it in, or another input has come before it.
        """
        if await self.next_follow_up() != note:
            raise SessionBusyError(f"Session {self._id!r}: another run has taken this follow-up in.")

    async def pending(self, kind: NoteKind) -> list[str]:
        """What waits to be taken in, in order: the words of steering or of follow-ups."""
        taken = set((await self._graph.aget_state(self._config)).values.get("loop", {}).get("taken", ()))
        notes = await (await self._inbox()).read(self._id)
        return [str(note.content) for note in notes if note.kind == kind and note.key not in taken]

    async def calls(self) -> list[CallRecord]:
        """What has become of each call of the newest input, in the order they were planned."""
        snapshot = await self._graph.aget_state(self._config)
        stored = await load(self._saver, snapshot.config)
        run = await run_under_way(self._saver, self._id)
        writes = self._graph.builder.writes if isinstance(self._graph.builder, AgentStateGraph) else None
        idle = run is None and await is_idle(self._saver, self._id)
        before = await edited_from(self._saver, stored)
        # Imported here: few programs ask.
        from graph_agent.session.call_records import call_records

        return call_records(snapshot, stored, before, run, idle=idle, writes=writes)

    async def abort(self) -> bool:
        """Stop the session's run, wherever it is; the run itself settles its calls and ends with status `ABORTED`.

        A run whose answer was complete ends `COMPLETED` all the same. A session that waits for a person, or that a
        crash left in the middle, is settled here and now. Where sessions are neither in an SQLite file nor in
        PostgreSQL, nothing but a Store tells whether another process is at work on one: it is given a second to take
        the note out. Without a Store such a session may not be aborted from elsewhere, as it would be settled under the
        hands of its run.

        Returns:
            False when there was nothing to stop.

        Raises:
            InputError: When another process runs the session, and there is no Store to reach it through.
        """
        run = await run_under_way(self._saver, self._id)
        if run is not None:
            run.abort()
            return True
        if not await is_idle(self._saver, self._id):
            await self._send(new_note("abort"))
            return True
        # The status tells less: an input whose plan was never stored left it as it was.
        if not (await self._graph.aget_state(self._config)).tasks:
            return False
        if await self._was_heard_elsewhere():
            return True
        config: RunnableConfig = {"configurable": {**self._config["configurable"], ABORTED: True}}
        try:
            ended = await self._graph.ainvoke(None, config)
        except SessionBusyError:
            return await self.abort()  # a run has begun since we looked
        return bool(ended.get("status") == SessionStatus.ABORTED)

    async def _was_heard_elsewhere(self) -> bool:
        """Whether a run in a process that cannot be seen from here has taken an abort out of the Store."""
        if self._store is None or await sees_other_processes(self._saver):
            return False
        inbox, note = await self._inbox(), new_note("abort")
        await inbox.add(self._id, note)
        for _ in range(_LOOKS):
            await asyncio.sleep(_HEARD_S / _LOOKS)
            if note not in await inbox.read(self._id):
                return True
        await inbox.forget(self._id, [note.key])
        return False

    async def _send(self, note: Note) -> None:
        if self._store is None and await self._runs_elsewhere():
            raise InputError(
                f"Session {self._id!r} runs in another process, which can only be reached through a Store; build "
                "the agent with store=... in both."
            )
        await (await self._inbox()).add(self._id, note)

    async def _runs_elsewhere(self) -> bool:
        if await run_under_way(self._saver, self._id) is not None:
            return False
        return not await is_idle(self._saver, self._id)

    async def _inbox(self) -> Inbox:
        return await inbox_of(self._saver, self._store)

    @property
    def _config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self._id}}


def _said(text: str, what: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{what} takes what the user says, as text that is not empty; it was given {text!r}.")
    return text
