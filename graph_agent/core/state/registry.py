"""Registers the runs in this process: locks the session, makes the run reachable, and watches for aborts.

A session is one LangGraph thread; a run is one execution of the graph for it. The place of a session is the identity of
the database that stores it (`database_key`). A run is dispatched if a server such as LangGraph's took it from a queue,
which may deliver one run twice. An inbox holds messages and aborts for a session until its run reads them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from graph_agent.base._compat import default_executor_of
from graph_agent.base._internal.polling import POLL_S, poll_forever
from graph_agent.base._internal.sync_bridge import GRACE_S, DaemonExecutor, await_thread_future, older_cancellations
from graph_agent.base.errors import RunHungError, SessionBusyError, SessionLostError
from graph_agent.base.inbox import Inbox, InboxWithSavedNotes, MemoryInbox, StoreInbox
from graph_agent.core.state.feedback import NOTE_EVENTS
from graph_agent.core.state.lock_files import create_if_missing, is_missing
from graph_agent.core.state.locks import SessionLocks, database_key
from graph_agent.core.state.run import Run, RunHandle, RunIdentity, handle_of

DISPATCH_S = 30.0
"""Seconds that a dispatched run waits for its session, and, after the loss of the session, for the server's
cancellation.
"""
RECENT_RUNS = "graph_agent_runs"
"""Key in checkpoint metadata: ids of the runs that a server dispatched to the session before this one, oldest first."""
MOST_RECENT = 8
"""Maximum number of ids under `RECENT_RUNS`. A server delivers a run again within minutes, so few runs come in
between.
"""

logger = logging.getLogger("graph_agent.runs.registry")
_ENDING_S = 10.0
"""Seconds to wait for the end of a run that was stopped, or whose stream was left."""
_MAINTENANCE_S = 30.0
"""Maximum seconds that a run waits while its session is locked for maintenance."""
_MAINTENANCE_POLL_S = 0.005
"""Seconds between two attempts to lock a session during its maintenance."""
_ENDING_TICKS = 10
"""Iterations of the event loop in which the end of a run may show, such as the cancellation by a dropped generator."""
_under_way: dict[tuple[Hashable, str], Run] = {}
"""Place and session → the run in progress in this process."""
_releasing: dict[tuple[Hashable, str], Future[None]] = {}
"""Place and session → future of the release of the lock, for a run that has ended."""
_inboxes: dict[Hashable, MemoryInbox] = {}
"""Place → the inbox in memory, for agents without a Store."""


def is_dispatched(configurable: Mapping[str, Any]) -> bool:
    """Whether a server has dispatched a run, by the `configurable` of its config: the server sets `run_id`."""
    return bool(configurable.get("run_id"))


def runs_until(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the latest dispatched runs of a session, oldest first, at most `MOST_RECENT`; empty if there
    are none.

    `metadata` is that of the newest checkpoint, whose own run comes last.
    """
    recent, newest = tuple(metadata.get(RECENT_RUNS, ())), metadata.get("run_id")
    return (*(each for each in recent if each != newest), *([newest] if newest else []))[-MOST_RECENT:]


async def take_when_free(take: Callable[[], Awaitable[bool]]) -> bool:
    """Call `take` every `POLL_S` seconds, at first after such a wait, until it returns True; return False after
    `DISPATCH_S` seconds.

    Args:
        take: Tries to acquire the session, which another run, or another delivery of the same run, holds.
    """
    clock = asyncio.get_running_loop()
    until = clock.time() + DISPATCH_S
    # Polled: the holder may be in another process, and the locks have no queue.
    while clock.time() < until:
        await asyncio.sleep(POLL_S)
        if await take():
            return True
    return False


@asynccontextmanager
async def until_cancelled() -> AsyncIterator[None]:
    """Delay a `SessionLostError` of the block by `DISPATCH_S` seconds, in which the server can cancel the run.

    Other exceptions pass at once.
    """
    try:
        yield
    # The server cancels a run whose lease another process has. An error would become the run's state in the server's
    # records, although the other process continues the run.
    except SessionLostError:
        await asyncio.sleep(DISPATCH_S)
        raise


@dataclass(slots=True)
class Maintenance:
    """The exclusion of runs from a session for a short time, e.g. while it is pruned."""

    session_id: str
    verify: Callable[[], Future[None]] | None
    """Verifies the locks of the process; None if they cannot be lost."""
    is_held: bool = False
    """Whether runs are excluded; False if one was in progress already."""
    lost: str = ""
    """Why runs are no longer excluded; empty while they are."""

    async def confirm(self) -> None:
        """Verify that runs are still excluded, and have been all the time. Raises `SessionLostError` if not.

        Errors of the verification itself, e.g. of the database, are raised.
        """
        if self.verify is not None:
            await await_thread_future(self.verify())
        if self.lost:
            raise SessionLostError(
                f"The maintenance of session {self.session_id!r} stopped, and its last step was not stored: {self.lost}"
                " Nothing of the session is lost. Run the command again."
            )


_maintained: dict[tuple[Hashable, str], Maintenance] = {}
"""Place and session → the maintenance in progress in this process."""


def use_daemon_threads() -> None:
    """Put a `DaemonExecutor` around the default executor of the running event loop, once for each loop.

    Blocking calls of a run then use daemon threads, which do not delay the exit of the process. Only asyncio's own
    loops show their executor; another kind of loop is left as it is, since the program may have chosen its executor.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.BaseEventLoop) and not isinstance(before := default_executor_of(loop), DaemonExecutor):
        loop.set_default_executor(DaemonExecutor(is_within_a_run, before))


def is_within_a_run() -> bool:
    """Whether the current context is a node of an agent's run."""
    config = var_child_runnable_config.get() or {}
    return handle_of(config.get("configurable", {})).run is not None


def _end_lost_run(place: Hashable, session_id: str, why: str) -> None:
    """Stop the run, or the maintenance, of a session whose lock is lost, for the reason `why`."""
    key = (place, session_id)
    if (run := _under_way.get(key)) is not None:
        run.stop.end_lost(why)
    elif (maintenance := _maintained.get(key)) is not None:
        maintenance.lost = maintenance.lost or why


def _still_holds(place: Hashable, session_id: str, newest: str | None, owner: str) -> bool:
    """Whether a run may continue after its lock was lost and acquired again: the newest checkpoint is its own.

    `newest` is the id of that checkpoint, None if there is none, and `owner` the run recorded as its owner.
    """
    run = _under_way.get((place, session_id))
    return run is not None and run.fence.holds(session_id, newest, owner)


_locks = SessionLocks(_end_lost_run, _still_holds)


async def inbox_of(saver: BaseCheckpointSaver[Any], store: BaseStore | None) -> Inbox:
    """Return the inbox of an agent's sessions: in the Store, or without a Store in the memory of this process.

    In memory, all savers of one database share an inbox; the inbox of any other saver lives as long as the saver.
    """
    return _inbox(await database_key(saver), saver, store, Run())


def _inbox(place: Hashable, saver: BaseCheckpointSaver[Any], store: BaseStore | None, run: Run) -> Inbox:
    """Return the inbox of a place; with a Store, one that polls it as long as `run` is not stopped."""
    if store is not None:
        return StoreInbox(store, stopped_for_s=run.stop.stopped_for_s)
    if place not in _inboxes and place == id(saver):
        # Another saver may get the same `id`.
        weakref.finalize(saver, _inboxes.pop, place, None).atexit = False
    return _inboxes.setdefault(place, MemoryInbox())


async def _with_saved_notes(inbox: Inbox, saver: Any, session_id: str) -> Inbox:
    """Return an inbox that also has the notes which programs without the Store left in the saver's database.

    Only notes that become events of the session count, such as feedback; without any, `inbox` itself is returned.

    Args:
        inbox: The inbox in memory.
        saver: A saver with `stored_notes` and `forget_notes`.
        session_id: The session.
    """
    # Other kinds steer a run of the process that sends them.
    saved = [note for note in await saver.stored_notes(session_id) if note.kind in NOTE_EVENTS]
    return InboxWithSavedNotes(inbox, saved, saver.forget_notes) if saved else inbox


async def find_run(saver: BaseCheckpointSaver[Any], session_id: str) -> Run | None:
    """Return the run in progress of a session in this process; None if there is none, or it is in another process."""
    return _under_way.get((await database_key(saver), session_id))


async def is_idle(saver: BaseCheckpointSaver[Any], session_id: str) -> bool:
    """Whether no run of a session is in progress, in this process or in another on the same database.

    Other processes are only seen if the database is an SQLite file or PostgreSQL. Raises `SessionLockError` or the
    database's error if a lock cannot be inspected.
    """
    place = await database_key(saver)
    return await await_thread_future(_locks.is_free(place, session_id))


def refuse_within(session_id: str) -> None:
    """Raise `SessionBusyError` if the current context is a run of this session, such as one of its tools."""
    run: Run | RunHandle | None = handle_of(ensure_config()["configurable"]).run
    # A call that waits for its own run to end would wait forever.
    while run is not None:
        if isinstance(run, Run) and run.identity.session_id == session_id:
            raise _busy(session_id)
        run = run.parent if isinstance(run, Run) else run.surrounding


@asynccontextmanager
async def running(
    configurable: Mapping[str, Any], checkpointer: Checkpointer, store: BaseStore | None
) -> AsyncIterator[Run]:
    """Lock the session, register the run of an asynchronous entry point, and yield it; undo both on exit.

    - A run that is a part of another run of the session, or has no session or no saver, is not locked, and the notes,
      `before` and `after` of its handle are ignored. Otherwise the notes are put into the inbox before the block.
    - The handle's `before` is called once the lock is held, and `after` when the block has ended without an exception.
    - On exit the lock is released even after a cancellation. While the block runs, the Store is polled for aborts.

    Args:
        configurable: The complete `configurable` of the run's config.
        checkpointer: The saver of the graph; None or a bool for a graph without its own.
        store: The Store; None to receive aborts from this process only.

    Raises:
        SessionBusyError: A run of the session is in progress. One that is ending is waited for up to `_ENDING_S`
            seconds, maintenance up to `_MAINTENANCE_S`, and a dispatched run waits `DISPATCH_S` seconds.
        RunHungError: The run was stopped, and its task did not end in time.
        SessionLockError: The lock cannot be acquired for another reason.
        Exception: The database, the Store, `before` or `after` raised it.
    """
    use_daemon_threads()
    run = _new_run(configurable)
    run.stop.task = asyncio.current_task()
    with run.stop.attached(), _ended_in_time(run):
        if not isinstance(checkpointer, BaseCheckpointSaver) or not _has_session(run):
            try:
                yield run
            finally:
                if run.speculation is not None:
                    run.release()
            return
        place = await database_key(checkpointer)
        inbox = run.inbox = _inbox(place, checkpointer, store, run)
        run.stop.confirm_lock = _locks.confirmation(place)
        dispatched = is_dispatched(configurable)
        guard = until_cancelled() if dispatched else nullcontext()
        async with guard, locked_session(place, run, dispatched=dispatched):
            if store is None and hasattr(checkpointer, "stored_notes"):
                inbox = run.inbox = await _with_saved_notes(inbox, checkpointer, run.identity.session_id)
            scope = run.parent if isinstance(run.parent, RunHandle) else RunHandle()
            if scope.before is not None:
                await scope.before()
            for note in scope.brought:
                await inbox.add(run.identity.session_id, note)
            watcher = asyncio.create_task(_watch_for_abort(run, inbox)) if store is not None else None
            try:
                yield run
                if scope.after is not None:
                    await scope.after(run)
            finally:
                run.release()
                scope.after = None
                if watcher is not None:
                    watcher.cancel()
                    # `await watcher` could not distinguish a cancellation of this run from the watcher's.
                    await asyncio.wait([watcher])


@contextmanager
def _ended_in_time(run: Run) -> Iterator[None]:
    """Cancel the task of the block if it has not ended `2 * GRACE_S` seconds after the run was stopped; raise
    `RunHungError` in place of that cancellation.

    A run is stopped by an abort, a deadline, a reader that left its stream, or a cancellation of its task. Time in
    which the consumer of a stream holds a part does not count. Before the cancellation, the run's fence is closed, so
    that it stores nothing more.
    """
    # Parts of nodes end earlier, see `RunStop.stoppable`. LangGraph itself always waits for the checkpointer.
    loop, task = asyncio.get_running_loop(), run.stop.task
    assert task is not None
    before, is_forced, stopped_at = task.cancelling(), False, math.inf
    of_outer_run, older_cancellations[task] = older_cancellations.get(task, 0), before
    timer: asyncio.TimerHandle

    # The function receives itself: in its closure it would be a cycle, which only garbage collection frees.
    def look(again: Callable[..., None]) -> None:
        """Check whether the run is stopped, and schedule the next check; cancel the task if its time is over.

        The fence is closed before, so that the run stores nothing more. `again` is this function itself.
        """
        nonlocal timer, is_forced, stopped_at
        is_left = run.stop.readership is not None and run.stop.readership.is_left
        is_stopped = run.stop.aborted or is_left or run.stop.left_s == 0 or task.cancelling() > before
        stopped_at = min(stopped_at, loop.time()) if is_stopped and not run.stop.at_consumer else math.inf
        if loop.time() - stopped_at < 2 * GRACE_S:
            timer = loop.call_later(POLL_S, again, again)
        else:
            is_forced = True
            # A write that ends later must not be stored on top of a later run's.
            run.fence.close("it was stopped and did not end")
            task.cancel()

    timer = loop.call_later(POLL_S, look, look)
    try:
        yield
    except asyncio.CancelledError:
        if not is_forced or task.uncancel() > before:
            raise
        raise RunHungError(
            f"The run of session {run.identity.session_id!r} was stopped, and did not end within {2 * GRACE_S:g} s: "
            "its checkpointer does not answer. The session has what was stored before; once the checkpointer answers, "
            "resume the session or send new input."
        ) from None
    finally:
        timer.cancel()
        older_cancellations[task] = of_outer_run


def _new_run(configurable: Mapping[str, Any]) -> Run:
    """Create the run of an entry point from the `configurable` values of a config.

    If a run surrounds it, that is its parent. The input has the mark and warnings of a parent that is a `RunHandle`.
    """
    handle = handle_of(configurable)
    identity, parent = RunIdentity(str(configurable.get("thread_id", ""))), handle.run or handle.parent
    if isinstance(parent, RunHandle):
        identity.mark, identity.warnings = parent.mark, parent.warnings
    return Run(identity, parent, handle.readership)


def _has_session(run: Run) -> bool:
    """Whether a run must lock its session: it has a session, and is not a part of another run of the same session."""
    session_id, parent = run.identity.session_id, run.parent
    if not session_id or (isinstance(parent, Run) and parent.identity.session_id == session_id):
        return False
    # Within a node of another graph on the same thread, that graph is responsible for one run at a time.
    surrounding = ensure_config().get("configurable", {})
    return not (surrounding.get("checkpoint_ns") and str(surrounding.get("thread_id", "")) == session_id)


@asynccontextmanager
async def maintained(place: Hashable, session_id: str) -> AsyncIterator[Maintenance]:
    """Try to exclude runs of a session during the block; a run that begins meanwhile waits, up to `_MAINTENANCE_S`
    seconds.

    Yields the `Maintenance` at once, without waiting. Its `is_held` is False if a run or another maintenance is in
    progress, so that nothing is excluded.
    """
    marker, key = _marker(place, session_id), (place, session_id)
    held = [each for each in (marker,) if await _take(each)]
    maintenance = Maintenance(session_id, _locks.confirmation(place, at_once=True))
    try:
        # The marker first: a run that is refused then finds it.
        if held and await _take(key):
            held.append(key)
            _maintained[key] = maintenance
            maintenance.is_held = True
        yield maintenance
    finally:
        if maintenance.is_held:
            del _maintained[key]
        # All are given back before the first wait, which a cancellation may end.
        for given_back in [_locks.give_back(*each) for each in reversed(held)]:
            await await_thread_future(given_back)


@asynccontextmanager
async def pruning(place: Hashable, session_id: str) -> AsyncIterator[bool]:
    """Exclude other prunings of a session during the block, and yield True.

    Waits for one in progress; yields False if that takes more than `_MAINTENANCE_S` seconds.
    """
    key = place, f"{session_id}\0pruning"
    taken = await _take(key)
    for _ in range(0 if taken else round(_MAINTENANCE_S / _MAINTENANCE_POLL_S)):
        await asyncio.sleep(_MAINTENANCE_POLL_S)
        if taken := await _take(key):
            break
    try:
        yield taken
    finally:
        if taken:
            await await_thread_future(_locks.give_back(*key))


def _marker(place: Hashable, session_id: str) -> tuple[Hashable, str]:
    """Return place and name of the lock that is held while a session is locked for maintenance."""
    return place, f"{session_id}\0maintenance"


async def _take_after_maintenance(key: tuple[Hashable, str]) -> bool:
    """Lock a session that was refused because of maintenance, once that has ended; return whether it is locked.

    Waits up to `_MAINTENANCE_S` seconds; returns False at once if there is no maintenance, so that a run has the lock.
    """
    for _ in range(round(_MAINTENANCE_S / _MAINTENANCE_POLL_S)):
        is_maintained = not await await_thread_future(_locks.is_free(*_marker(*key)))
        if await _take(key):
            return True
        if not is_maintained:
            break
        await asyncio.sleep(_MAINTENANCE_POLL_S)
    return False


@asynccontextmanager
async def locked_session(place: Hashable, run: Run, *, dispatched: bool = False) -> AsyncIterator[None]:
    """Lock the session of a run during the block, and register the run, so that this process can reach it.

    Waits for a run of the session that is ending, and for maintenance; a dispatched run waits until the session is
    free. Raises `SessionBusyError` if another run is in progress, here or in another process. The lock is released when
    the block ends.

    Args:
        place: Where the session is stored, as the key of its lock.
        run: The run.
        dispatched: Whether a server has started the run from its queue.
    """
    key = (place, run.identity.session_id)
    taken = await _take(key) or (await _wait_for_ending(key) and await _take(key))
    taken = taken or await _take_after_maintenance(key)
    if not taken and dispatched:
        taken = await take_when_free(lambda: _take(key))
    try:
        with _registered(key, run, taken=taken):
            yield
    finally:
        if taken:
            with _released(key, run):
                await await_thread_future(_locks.give_back(*key))


async def _take(key: tuple[Hashable, str]) -> bool:
    """Acquire the lock of a session, given by place and id; False if another run has it.

    The lock file of an SQLite file is created first if it is missing. A cancelled caller leaves no lock behind.
    """
    if isinstance(key[0], Path) and is_missing(key[0]):
        # `langgraph dev` refuses the removal of a file on the event loop.
        await asyncio.to_thread(create_if_missing, key[0])
    taken = _locks.take(*key)
    try:
        return await await_thread_future(taken)
    except BaseException:
        _release_if_taken(taken, key)
        raise


def _ending(key: tuple[Hashable, str]) -> Future[None] | None:
    """Return a future that is done at the end of a session's run; None if the run goes on, or there is none in this
    process.

    If the reader of the run's stream has left it, the stream is closed, which ends the run. For a run that has ended,
    the future is done when its lock is released.
    """
    run = _under_way.get(key)
    if run is None:
        return _releasing.get(key)
    if not run.stop.is_ending:
        return None
    if run.stop.readership is not None:
        run.stop.readership.close_if_left()
    return run.ended


async def _wait_for_ending(key: tuple[Hashable, str]) -> bool:
    """Wait up to `_ENDING_S` seconds for a run in this process that is about to end; False if it goes on or there is
    none.

    True is also returned if the run has not ended in that time.
    """
    for _ in range(_ENDING_TICKS):
        if (ending := _ending(key)) is not None:
            await asyncio.wait([asyncio.wrap_future(ending)], timeout=_ENDING_S)
            return True
        if key not in _under_way:
            return False
        await asyncio.sleep(0)
    return False


def _release_if_taken(taken: Future[bool], key: tuple[Hashable, str]) -> None:
    """Release the lock if a cancelled acquire is granted later; returns at once."""

    def release(taken: Future[bool]) -> None:
        """Release the lock if it was granted."""
        if taken.exception() is None and taken.result():
            _locks.give_back(*key)

    taken.add_done_callback(release)


@contextmanager
def _registered(key: tuple[Hashable, str], run: Run, *, taken: bool) -> Iterator[None]:
    """Make a run findable by its session during the block. After it, `_ending` finds the run until its lock is
    released.

    Raises `SessionBusyError` if its lock was not `taken`.
    """
    if not taken:
        raise _busy(run.identity.session_id)
    _under_way[key] = run
    try:
        yield
    finally:
        _releasing[key] = run.ended
        del _under_way[key]


@contextmanager
def _released(key: tuple[Hashable, str], run: Run) -> Iterator[None]:
    """Set the future `run.ended` after the block, which releases the lock."""
    try:
        yield
    finally:
        if _releasing.get(key) is run.ended:
            del _releasing[key]
        run.ended.set_result(None)


def _busy(session_id: str) -> SessionBusyError:
    """Return the error for a session whose run is in progress, with what a caller can do."""
    return SessionBusyError(
        f"Session {session_id!r} is running already. Talk to that run (Session.steer, Session.follow_up), stop it "
        "(Session.abort), or wait for its end."
    )


async def _watch_for_abort(run: Run, inbox: Inbox) -> None:
    """Poll the inbox for an abort from another process and apply it, until cancelled.

    Errors of the Store are logged. An abort is removed from the inbox at once; its sender takes the removal as a
    confirmation.
    """

    async def poll() -> None:
        """Apply the aborts in the inbox, and remove them."""
        if aborts := run.stop.process_aborts(await inbox.read(run.identity.session_id)):
            await inbox.forget(run.identity.session_id, aborts)

    await poll_forever(
        poll, POLL_S, logger, f"Looking in the Store whether session {run.identity.session_id!r} is to be aborted"
    )


def _reset_after_fork() -> None:
    """Forget the runs and locks of the parent in a forked child."""
    _locks.forget()
    _under_way.clear()
    _releasing.clear()


if hasattr(os, "register_at_fork"):
    # The parent's runs and locks are not a forked child's.
    os.register_at_fork(after_in_child=_reset_after_fork)
