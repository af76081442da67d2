"""Sends commands to a session from other tasks, threads and processes, and reads the state of its calls.

A session is one LangGraph thread. A command is a note in the session's inbox (in the Store, or in the memory of this
process), which its run reads. Steering is a message to a running input; a follow-up is an input that is queued for
after the current one. A wave is the calls of one plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, PendingWrite
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from graph_agent.base._internal.polling import POLL_S
from graph_agent.base._internal.text import check_session_id, html_table
from graph_agent.base.errors import ConfigError, InputError, SessionBusyError
from graph_agent.base.history.call_events import OUTCOMES
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.inbox import ControlMessage, Inbox, NoteKind, new_note
from graph_agent.base.input_ids import INPUT_ID
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import SessionStatus, with_fields_of
from graph_agent.core.state.notes import checked_fields
from graph_agent.core.state.own_checkpoint import edit_ancestors, load
from graph_agent.core.state.registry import find_run, inbox_of, is_idle
from graph_agent.core.state.run import AgentHandle, Run, RunHandle, with_handle
from graph_agent.session.activity import sees_other_processes
from graph_agent.session.built_agent import NO_SAVER, builder_of
from graph_agent.session.open_input import events_of
from graph_agent.session.pending_feedback import feedback_after
from graph_agent.session.results import TrackedCall, planned_calls, since_last_input

if TYPE_CHECKING:
    from graph_agent.core.execution.ledger import WaveRecovery

_ABORT_WAIT_S = 4 * POLL_S
"""Seconds in which a run of another process must take an abort out of the Store."""
_ABORT_LOOKS = 20
"""Number of checks within these seconds."""
_ANSWERED = frozenset({SessionStatus.COMPLETED, SessionStatus.ROUND_LIMIT, SessionStatus.TURN_LIMIT})
"""Statuses of a session in which follow-ups are run, because the newest input has an answer and was not stopped."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message to a session that no run has processed."""

    id: str
    """Id of the message, for `Session.withdraw`."""
    kind: Literal["steer", "follow_up"]
    """`steer` for a message to the running or the next input; `follow_up` for an input of its own."""
    text: str
    """What the user wrote."""
    sent_at: datetime
    """When it was sent, in UTC, by the sender's clock."""


class SessionCommands:
    """Steering, follow-ups, configuration, call states and abort of one session, from outside its run.

    A session that another process runs is reached through the graph's Store. Such a run is detected only where sessions
    are in an SQLite file or in PostgreSQL.

    Args:
        graph: The compiled agent, with its checkpointer.
        session_id: The id of the session, which need not exist yet.

    Raises:
        ConfigError: When the graph has no checkpointer.
        InputError: When the id is no Unicode text.
    """

    def __init__(self, graph: CompiledStateGraph[Any, Any, Any, Any], session_id: str) -> None:
        if not isinstance(graph.checkpointer, BaseCheckpointSaver):
            raise ConfigError(NO_SAVER)
        self.id = check_session_id(session_id)
        """The session's id, which is the `thread_id` of its graph."""
        self.graph = graph
        """The compiled agent."""
        self.saver = graph.checkpointer
        """The checkpointer that stores the session."""
        self._store = graph.store
        self._thread: RunnableConfig = {"configurable": {"thread_id": session_id}}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.graph!r}, {self.id!r})"

    def _repr_html_(self) -> str:
        """Return the table that describes the session in a notebook, as HTML."""
        shown = [("id", self.id), ("agent", repr(self.graph)), ("checkpointer", type(self.saver).__name__)]
        return html_table(type(self).__name__, shown)

    async def steer(self, text: str) -> None:
        """Send a message that the model reads before its next plan, also while calls run.

        If the session is idle, the next input's run reads it.

        Returns once the message is queued.

        Raises:
            InputError: When the text is empty; or when another process runs the session, and there is no Store.
        """
        await self._send(new_note("steer", _checked_text(text, "steer")))

    async def follow_up(self, text: str) -> None:
        """Queue an input that is run after the current answer.

        If the session is idle, it is run after the answer to the next input.

        The program that runs the session then (`Session.run`, `Session.stream`, the command line or a server) also runs
        the queued input; its answer is its own: see `RunResult.follow_ups`. A run of the bare graph leaves it queued;
        `Session.run_follow_ups` runs it. An abort or a failure drops no queued input: it is run after the next answer.

        Raises:
            InputError: When the text is empty; or when another process runs the session, and there is no Store.
        """
        await self._send(new_note("follow_up", _checked_text(text, "follow_up")))

    async def queued(self) -> list[QueuedMessage]:
        """Return the steering messages and follow-ups that no run has read yet, oldest first; empty if there are
        none.
        """
        return [
            QueuedMessage(note.key, note.kind, str(note.content), datetime.fromtimestamp(note.sent_ns / 1e9, UTC))
            for note in await self._unprocessed("steer", "follow_up")
            if note.kind in ("steer", "follow_up")
        ]

    async def withdraw(self, message_id: str) -> bool:
        """Remove a queued message, so that no run reads it; return False if it is not queued.

        A run that reads the message at the same moment may still use it; the history then contains it.

        Args:
            message_id: Id of the message, from `queued`.
        """
        if all(note.key != message_id for note in await self._unprocessed("steer", "follow_up")):
            return False
        await (await self._inbox()).forget(self.id, [message_id])
        return True

    async def _unprocessed(self, *kinds: NoteKind) -> list[ControlMessage]:
        """Return the queued notes of the given kinds that no run has read yet, oldest first."""
        taken = set((await self.graph.aget_state(self._thread)).values.get("loop", {}).get("consumed_notes", ()))
        notes = await (await self._inbox()).read(self.id)
        return [note for note in notes if note.kind in kinds and note.key not in taken]

    @with_fields_of(LoopConfig)
    async def configure(self, **fields: Any) -> None:
        """Change fields of `LoopConfig`, such as `reasoning_effort` or `max_steps`, from the next model call on.

        This includes a run in progress. A change lasts as long as the session, or until an input whose own context sets
        the field.

        Raises:
            ConfigError: On an unknown field, or an invalid value.
            InputError: When another process runs the session, and there is no Store to reach it through.
        """
        await self._send(new_note("configure", checked_fields(fields)))

    async def is_running(self) -> bool:
        """Return whether a run of the session is in progress, in this process or in another on the same database.

        Runs of other processes are only seen if the sessions are in an SQLite file or in PostgreSQL.
        """
        return not await is_idle(self.saver, self.id)

    async def calls(self) -> list[CallRecord]:
        """Return the calls of the newest input with their states, in the order they were planned; also while it runs.

        Empty before the first plan, and for a session that does not exist. Calls of earlier inputs are not included.
        """
        snapshot = await self.graph.aget_state(self._thread)
        stored = await load(self.saver, snapshot.config)
        run = await find_run(self.saver, self.id)
        idle = run is None and await is_idle(self.saver, self.id)
        before = await edit_ancestors(self.saver, stored)
        builder = builder_of(self.graph)
        return call_records(snapshot, stored, before, run, idle=idle, writes=builder.writes if builder else None)

    async def abort(self) -> bool:
        """Stop the session's run, from any task, thread or process, without waiting for its end.

        The model's stream and the running tools are cancelled, and every call gets a result that states what is known
        of it. The run ends with status `ABORTED` and an answer that lists what was done, or `COMPLETED` if its answer
        was complete already. A session that waits for a person, or that a crash left in the middle, is settled before
        this returns.

        Whether another process runs the session is known with an SQLite or PostgreSQL database only. With any other
        saver, the abort is put into the Store, and a run elsewhere has a second to take it; without a Store it cannot
        be aborted from here.

        Returns:
            False when there was nothing to stop: the session's newest input has ended, or there is none.

        Raises:
            InputError: When another process runs the session, and there is no Store to reach it through.
        """
        run = await find_run(self.saver, self.id)
        if run is not None:
            run.stop.abort()
            return True
        if not await is_idle(self.saver, self.id):
            await self._send(new_note("abort"))
            return True
        # The status is not enough: an input whose plan was never stored has not changed it.
        if not (await self.graph.aget_state(self._thread)).tasks:
            return False
        if await self._was_taken_elsewhere():
            return True
        try:
            return await SessionControl(self.graph, self.id).settle()
        except SessionBusyError:
            return await self.abort()  # a run has begun since the check

    async def _was_taken_elsewhere(self) -> bool:
        """Send an abort through the Store, and return whether a run of another process takes it within a second.

        An abort that no run has taken is removed again. Returns False at once, without sending, if there is no Store,
        or if the locks of other processes are visible with this checkpointer.
        """
        if self._store is None or await sees_other_processes(self.saver):
            return False
        inbox, note = await self._inbox(), new_note("abort")
        await inbox.add(self.id, note)
        for _ in range(_ABORT_LOOKS):
            await asyncio.sleep(_ABORT_WAIT_S / _ABORT_LOOKS)
            if note not in await inbox.read(self.id):
                return True
        # Otherwise it would abort the next run of the session.
        await inbox.forget(self.id, [note.key])
        return False

    async def _send(self, note: ControlMessage) -> None:
        """Add a note to the session's inbox, in the Store or in this process's memory.

        Raises `InputError` if the session runs in another process, and there is no Store by which it could read it.
        """
        is_here = self._store is not None or await find_run(self.saver, self.id) is not None
        if not is_here and not await is_idle(self.saver, self.id):
            raise InputError(
                f"Session {self.id!r} runs in another process, which can only be reached through a Store; build "
                "the agent with store=... in both."
            )
        await (await self._inbox()).add(self.id, note)

    async def _inbox(self) -> Inbox:
        """Return the inbox of the agent's sessions."""
        return await inbox_of(self.saver, self._store)


class SessionControl(SessionCommands):
    """The commands to a session, with access to its queue of notes, for programs that run follow-ups themselves."""

    async def noted_events(self) -> list[StoredEvent]:
        """Return the events of feedback, titles and revocations that no run has taken into the history yet, oldest
        first.
        """
        newest = await self.saver.aget_tuple(self._thread)
        return await feedback_after(self.saver, self._store, newest) if newest is not None else []

    async def settle(self) -> bool:
        """Abort the open input of a session that no run processes, by running the graph without asking a model.

        Each open call receives a result that states what is known of it. Returns whether the input ends with the status
        `ABORTED`. Raises `SessionBusyError` if a run has begun.
        """
        handle = RunHandle()
        # A run that is aborted before its first node only settles the open calls, and asks no model.
        handle.abort()
        config: RunnableConfig = {"configurable": with_handle(self._thread["configurable"], AgentHandle(parent=handle))}
        return bool((await self.graph.ainvoke(None, config)).get("status") == SessionStatus.ABORTED)

    async def has_input(self, input_id: str) -> bool:
        """Return whether `input_id` is the id of the session's current input: that of its run in this process or,
        without one, of its newest checkpoint.
        """
        if (run := await find_run(self.saver, self.id)) is not None:
            return run.identity.mark is not None and run.identity.mark.id == input_id
        return bool(((await self.graph.aget_state(self._thread)).metadata or {}).get(INPUT_ID) == input_id)

    async def delete(self) -> None:
        """Delete the session and its unread notes. The caller must hold the session's lock."""
        inbox = await self._inbox()
        # A later session of the same name must not receive the notes. Those sent before the deletion go first, as the
        # process may be killed in between.
        await inbox.forget(self.id, [note.key for note in await inbox.read(self.id)])
        await self.saver.adelete_thread(self.id)
        await inbox.forget(self.id, [note.key for note in await inbox.read(self.id)])

    async def next_follow_up(self) -> ControlMessage | None:
        """Return the oldest queued follow-up, without removing it from the inbox; None if none is to run now.

        None if no follow-up is queued, if the newest input is unfinished or has ended without an answer, or if earlier
        runs have consumed all that are in the inbox.
        """
        notes = [note for note in await (await self._inbox()).read(self.id) if note.kind == "follow_up"]
        if not notes:
            return None
        state = await self.graph.aget_state(self._thread)
        if state.tasks or state.values.get("status") not in _ANSWERED:
            return None
        # A note that a run has consumed may still be in the inbox, e.g. after a crash.
        taken = set(state.values.get("loop", {}).get("consumed_notes", ()))
        return next((note for note in notes if note.key not in taken), None)

    async def check_next(self, note: ControlMessage) -> None:
        """Raise `SessionBusyError` unless a follow-up is still the next to run. Called while the session is locked."""
        if await self.next_follow_up() != note:
            raise SessionBusyError(f"Session {self.id!r}: another run has taken this follow-up in.")

    async def withdraw_follow_ups(self) -> list[str]:
        """Remove the queued follow-ups that no run has read yet, and return their texts, oldest first."""
        notes = await self._unprocessed("follow_up")
        await (await self._inbox()).forget(self.id, [note.key for note in notes])
        return [str(note.content) for note in notes]

    async def pending(self, kind: NoteKind) -> list[str]:
        """Return the texts of the queued notes of a kind, `steer` or `follow_up`, that no run has read yet, oldest
        first. They stay queued.
        """
        return [str(note.content) for note in await self._unprocessed(kind)]


def _checked_text(text: str, command: str) -> str:
    """Return a text unchanged; raise `InputError` if it is not a text or is blank.

    `command` is the name of the command, for the message.
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{command} takes the user's input, as text that is not empty; got {text!r}.")
    return text


CallProgress = Literal["planned", "started", "finished", "failed", "skipped", "unknown"]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of the newest input, and its state."""

    id: str
    """Id of the call."""
    name: str
    """The tool's name, or `delegate_to_<name>`."""
    state: CallProgress
    """`planned`: not started; `started`: without a result yet; `finished` or `failed`: it has its result; `skipped`: it
    never ran; `unknown`: a crash leaves open whether it ran and took effect.
    """


def call_records(
    snapshot: StateSnapshot,
    stored: CheckpointTuple | None,
    before: Sequence[CheckpointTuple],
    run: Run | None,
    *,
    idle: bool,
    writes: Callable[[str], bool] | None,
) -> list[CallRecord]:
    """Return the calls of the newest input with their states, in the order they were planned.

    The state of a call with a result is its outcome. Otherwise it is `planned` for a call that certainly has not begun,
    `started` for one that runs or waits for an answer, and `unknown` for one that may have begun before a crash. Each
    ready call of a run in another process counts as `started`.

    Args:
        snapshot: The state of the session.
        stored: The checkpoint of that state; None for a session that does not exist.
        before: The checkpoints before the latest edits (see `edit_ancestors`), newest first.
        run: The session's run in this process; None if there is none.
        idle: Whether no run is in progress in any process.
        writes: Returns whether a call may have side effects, by its name; None if unknown.
    """
    # Imported here: the import of `Session` does not need the graph.
    from graph_agent.core.execution.ledger import wave_recovery
    from graph_agent.core.state.schema import INITIAL_LOOP

    events = since_last_input(events_of(snapshot))
    # The ledger has the calls that may write and have begun: one that it does not have has not run.
    ledger = snapshot.values.get("loop", INITIAL_LOOP).get("ledger", False)
    recovery = wave_recovery(stored, before)
    pending = [("", *write) for writes in recovery.finished.values() for write in writes]
    pending += (stored.pending_writes if stored else None) or []
    interrupted = _interrupted(snapshot, recovery)

    def state(call: TrackedCall) -> CallProgress:
        """Return the state of a call: from its result, else the run in this process, else what a crashed run has
        stored.

        `unknown` is the state of a call that may have started before a crash, and may not.
        """
        id_, name = call.planned["id"], call.planned["name"]
        if call.result is not None:
            return OUTCOMES[call.result["status"]]
        if not call.ready or (run is not None and id_ in run.calls.planned and id_ not in run.calls.started):
            return "planned"
        if id_ in recovery.noted or id_ in interrupted or not idle:
            return "started"
        in_ledger = ledger and (writes is None or writes(name))
        return "planned" if recovery.is_certainly_unstarted(id_, ledger=in_ledger) else "unknown"

    calls = planned_calls(_with_events_in(pending, events))
    return [CallRecord(call.planned["id"], call.planned["name"], state(call)) for call in calls]


def _interrupted(snapshot: StateSnapshot, recovery: WaveRecovery) -> set[str]:
    """Return the ids of the ready calls whose tasks wait for an answer.

    A task waits if the snapshot has an interrupt of it, or if `recovery` (what a crashed run has stored) has its
    question.
    """
    waiting = {task.id for task in snapshot.tasks if task.interrupts or task.id in recovery.asking}
    # One task per ready call, in order.
    tasks = [task.id for task in snapshot.tasks if task.name in ("tools", "delegate")]
    ready = snapshot.values.get("ready", [])
    return {call["id"] for call, task in zip(ready, tasks, strict=False) if task in waiting}


def _with_events_in(pending: Sequence[PendingWrite], events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return events followed by those in pending writes, each once.

    LangGraph's snapshot may contain events of finished tasks already.
    """
    found = [*events]
    for entry in (entry for _, channel, value in pending if channel == "events" for entry in value):
        found += [entry] if entry not in found else []
    return found
