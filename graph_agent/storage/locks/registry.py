"""Registers the runs in this process: locks the session, makes the run reachable, and watches for aborts."""

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
from graph_agent.base._internal.polling import poll_forever
from graph_agent.base._internal.sync_bridge import GRACE_S, DaemonExecutor, await_thread_future
from graph_agent.base.errors import RunHungError, SessionBusyError, SessionLostError
from graph_agent.core.runs.inbox import Inbox, MemoryInbox, StoreInbox
from graph_agent.core.runs.run import Run, RunHandle, RunIdentity, handle_of
from graph_agent.storage.locks.lock_files import create_if_missing, is_missing
from graph_agent.storage.locks.locks import SessionLocks, database_key, guards_processes

DISPATCH_S = 30.0
"""Seconds that a dispatched run waits for its session, and after the loss of it for its cancellation."""
RECENT_RUNS = "graph_agent_runs"
"""Key in checkpoint metadata: ids of the runs that a server dispatched to the session before this one, oldest first."""
MOST_RECENT = 8
"""Maximum number of these ids. A server delivers a run again within minutes, so few runs come in between."""


def is_dispatched(configurable: Mapping[str, Any]) -> bool:
    """Whether a server has dispatched a run: it sets the run's id."""
    return bool(configurable.get("run_id"))


def runs_until(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the latest dispatched runs of a session, with that of its newest checkpoint as the last."""
    recent, newest = tuple(metadata.get(RECENT_RUNS, ())), metadata.get("run_id")
    return (*(each for each in recent if each != newest), *([newest] if newest else []))[-MOST_RECENT:]


async def take_when_free(take: Callable[[], Awaitable[bool]]) -> bool:
    """Acquire a session that another delivery of the run, or another run, holds; False after `DISPATCH_S` seconds."""
    clock = asyncio.get_running_loop()
    until = clock.time() + DISPATCH_S
    while clock.time() < until:
        await asyncio.sleep(POLL_S)
        if await take():
            return True
    return False


@asynccontextmanager
async def until_cancelled() -> AsyncIterator[None]:
    """Delay the loss of a dispatched run's session until the server cancels the run, for up to `DISPATCH_S` seconds.

    The server cancels a run whose lease another process has. An error would become the run's state in the server's
    records, although the other process continues the run.
    """
    try:
        yield
    except SessionLostError:
        await asyncio.sleep(DISPATCH_S)
        raise


@dataclass(slots=True)
class Maintenance:
    """The hold on a session."""

    session_id: str
    verify: Callable[[], Future[None]] | None
    """Verifies the locks of the process; None if they cannot be lost."""
    is_held: bool = False
    """Whether runs are excluded; false when one is under way."""
    lost: str = ""
    """Why the hold was lost; empty if it was not."""

    async def confirm(self) -> None:
        """Verify that runs are still excluded, and have been since the beginning; raise `SessionLostError` if not."""
        if self.verify is not None:
            await await_thread_future(self.verify())
        if self.lost:
            raise SessionLostError(
                f"The maintenance of session {self.session_id!r} stopped, and its last step was not stored: {self.lost}"
                " Nothing of the session is lost. Run the command again."
            )


logger = logging.getLogger("graph_agent.runs.registry")
POLL_S = 0.25
"""Seconds between two polls of the Store for an abort from another process."""
_ENDING_S = 10.0
"""Seconds to wait for the end of a run that was stopped, or whose stream was left."""
_MAINTENANCE_S = 30.0
"""Maximum seconds that a run waits while its session is locked for maintenance."""
_MAINTENANCE_POLL_S = 0.005
_ENDING_TICKS = 10
"""Iterations of the event loop in which the end of a run may show, such as the cancellation by a dropped generator."""
_under_way: dict[tuple[Hashable, str], Run] = {}
_releasing: dict[tuple[Hashable, str], Future[None]] = {}
"""Ends of the runs that are over and give their session's lock back."""
_maintained: dict[tuple[Hashable, str], Maintenance] = {}
_inboxes: dict[Hashable, MemoryInbox] = {}


def use_daemon_threads() -> None:
    """Put a `DaemonExecutor` around the running loop's default executor, once.

    Only asyncio's own loops show their executor. Another kind of loop is left as it is, since its executor may be one
    that the program has chosen; see `use_daemon_threads_of_own_loop`.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.BaseEventLoop) and not isinstance(before := default_executor_of(loop), DaemonExecutor):
        loop.set_default_executor(DaemonExecutor(_is_within_a_run, before))


def use_daemon_threads_of_own_loop() -> None:
    """Behaves like `use_daemon_threads`, for any kind of loop, once the program that owns it has started it."""
    asyncio.get_running_loop().set_default_executor(DaemonExecutor(_is_within_a_run))


def _is_within_a_run() -> bool:
    config = var_child_runnable_config.get() or {}
    return handle_of(config.get("configurable", {})).run is not None


def _end_lost_run(place: Hashable, session_id: str, why: str) -> None:
    """Stop the run of a session whose lock is lost."""
    key = (place, session_id)
    if (run := _under_way.get(key)) is not None:
        run.stop.end_lost(why)
    elif (maintenance := _maintained.get(key)) is not None:
        maintenance.lost = maintenance.lost or why


def _still_holds(place: Hashable, session_id: str, newest: str | None, owner: str) -> bool:
    """Whether a run may continue after its lock was lost and acquired again: the newest checkpoint is its own."""
    run = _under_way.get((place, session_id))
    return run is not None and run.fence.holds(session_id, newest, owner)


_locks = SessionLocks(_end_lost_run, _still_holds)


async def inbox_of(saver: BaseCheckpointSaver[Any], store: BaseStore | None) -> Inbox:
    """Return the inbox of an agent's sessions: in its Store, or without one in this process's memory.

    In memory, all savers of one database share an inbox; the inbox of any other saver lives as long as the saver.
    """
    return _inbox(await database_key(saver), saver, store, Run())


def _inbox(place: Hashable, saver: BaseCheckpointSaver[Any], store: BaseStore | None, run: Run) -> Inbox:
    if store is not None:
        return StoreInbox(store, stopped_for_s=run.stop.stopped_for_s)
    if place not in _inboxes and place == id(saver):
        # Another saver may get the same `id`.
        weakref.finalize(saver, _inboxes.pop, place, None).atexit = False
    return _inboxes.setdefault(place, MemoryInbox())


async def find_run(saver: BaseCheckpointSaver[Any], session_id: str) -> Run | None:
    """Return the run of a session in this process; None when there is none."""
    return _under_way.get((await database_key(saver), session_id))


def running_check(saver: BaseCheckpointSaver[Any]) -> Callable[[str], Awaitable[bool]]:
    """Return a function that returns whether a run of a session is under way in any process."""

    async def is_running(session_id: str) -> bool:
        return not await is_idle(saver, session_id)

    return is_running


async def is_idle(saver: BaseCheckpointSaver[Any], session_id: str) -> bool:
    """Whether no run of a session is under way, in this process or in another on the same database."""
    place = await database_key(saver)
    return await await_thread_future(_locks.is_free(place, session_id))


@asynccontextmanager
async def lock_idle_session(saver: BaseCheckpointSaver[Any], session_id: str) -> AsyncIterator[None]:
    """Lock a session so that no run begins in any process on the database; `SessionBusyError` if one is under way."""
    async with _session(await database_key(saver), Run(RunIdentity(session_id))):
        yield


async def sees_other_processes(saver: BaseCheckpointSaver[Any]) -> bool:
    """Whether `is_idle` covers other processes' runs: if sessions are in an SQLite file or in PostgreSQL."""
    return guards_processes(await database_key(saver))


def refuse_within(session_id: str) -> None:
    """Raise `SessionBusyError` inside the session's own run, such as from one of its tools."""
    run: Run | RunHandle | None = handle_of(ensure_config()["configurable"]).run
    while run is not None:
        if isinstance(run, Run) and run.identity.session_id == session_id:
            raise _busy(session_id)
        run = run.parent if isinstance(run, Run) else run.surrounding


@asynccontextmanager
async def running(
    configurable: Mapping[str, Any], checkpointer: Checkpointer, store: BaseStore | None
) -> AsyncIterator[Run]:
    """Lock the session and register the run of an asynchronous entry point; yields the run.

    `configurable` is complete. Raises `SessionBusyError` when a run of the session is under way.
    """
    use_daemon_threads()
    run = _new_run(configurable)
    run.stop.task = asyncio.current_task()
    with run.stop.attached(), _ended_in_time(run):
        if not isinstance(checkpointer, BaseCheckpointSaver) or not _has_session(run):
            yield run
            return
        place = await database_key(checkpointer)
        inbox = run.inbox = _inbox(place, checkpointer, store, run)
        run.stop.confirm_lock = _locks.confirmation(place)
        dispatched = is_dispatched(configurable)
        guard = until_cancelled() if dispatched else nullcontext()
        async with guard, _session(place, run, dispatched=dispatched):
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
    """Cancel the run's task, with a `RunHungError`, if it has not ended `2 * GRACE_S` seconds after its stop.

    Parts of nodes end earlier, see `RunStop.stoppable`. LangGraph itself always waits for the checkpointer.
    """
    loop, task = asyncio.get_running_loop(), run.stop.task
    assert task is not None
    before, is_forced, stopped_at = task.cancelling(), False, math.inf
    timer: asyncio.TimerHandle

    # The function receives itself: in its closure it would be a cycle, which only garbage collection frees.
    def look(again: Callable[..., None]) -> None:
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


def _new_run(configurable: Mapping[str, Any]) -> Run:
    handle = handle_of(configurable)
    identity, parent = RunIdentity(str(configurable.get("thread_id", ""))), handle.run or handle.parent
    if isinstance(parent, RunHandle):
        identity.mark, identity.warnings = parent.mark, parent.warnings
    return Run(identity, parent, handle.readership)


def _has_session(run: Run) -> bool:
    """Whether a run is its session's own, and not a part of another run of it."""
    session_id, parent = run.identity.session_id, run.parent
    if not session_id or (isinstance(parent, Run) and parent.identity.session_id == session_id):
        return False
    # Within a node of another graph on the same thread, that graph is responsible for one run at a time.
    surrounding = ensure_config().get("configurable", {})
    return not (surrounding.get("checkpoint_ns") and str(surrounding.get("thread_id", "")) == session_id)


@asynccontextmanager
async def maintained(place: Hashable, session_id: str) -> AsyncIterator[Maintenance]:
    """Exclude runs of a session for a moment; a run that begins meanwhile waits, up to `_MAINTENANCE_S` seconds."""
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
    """Wait for another pruning of a session, and exclude others; yield False if it takes more than `_MAINTENANCE_S`."""
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
    """Return the lock that is held while a session is locked for maintenance."""
    return place, f"{session_id}\0maintenance"


async def _take_after_maintenance(key: tuple[Hashable, str]) -> bool:
    """Lock a session that was refused, once its maintenance has ended; False when a run has it."""
    for _ in range(round(_MAINTENANCE_S / _MAINTENANCE_POLL_S)):
        is_maintained = not await await_thread_future(_locks.is_free(*_marker(*key)))
        if await _take(key):
            return True
        if not is_maintained:
            break
        await asyncio.sleep(_MAINTENANCE_POLL_S)
    return False


@asynccontextmanager
async def _session(place: Hashable, run: Run, *, dispatched: bool = False) -> AsyncIterator[None]:
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
    """Return a future of the end of a session's run; None if it is not ending, or runs in another process."""
    run = _under_way.get(key)
    if run is None:
        return _releasing.get(key)
    if not run.stop.is_ending:
        return None
    if run.stop.readership is not None:
        run.stop.readership.close_if_left()
    return run.ended


async def _wait_for_ending(key: tuple[Hashable, str]) -> bool:
    """Wait for the end of a session's run in this process that is about to end; False if its run goes on."""
    for _ in range(_ENDING_TICKS):
        if (ending := _ending(key)) is not None:
            await asyncio.wait([asyncio.wrap_future(ending)], timeout=_ENDING_S)
            return True
        if key not in _under_way:
            return False
        await asyncio.sleep(0)
    return False


def _release_if_taken(taken: Future[bool], key: tuple[Hashable, str]) -> None:
    """Release the lock if a cancelled acquire is granted later."""

    def release(taken: Future[bool]) -> None:
        if taken.exception() is None and taken.result():
            _locks.give_back(*key)

    taken.add_done_callback(release)


@contextmanager
def _registered(key: tuple[Hashable, str], run: Run, *, taken: bool) -> Iterator[None]:
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
    """Record the end of a run, whose lock is given back in the context."""
    try:
        yield
    finally:
        if _releasing.get(key) is run.ended:
            del _releasing[key]
        run.ended.set_result(None)


def _busy(session_id: str) -> SessionBusyError:
    return SessionBusyError(
        f"Session {session_id!r} is running already. Talk to that run (Session.steer, Session.follow_up), stop it "
        "(Session.abort), or wait for its end."
    )


async def _watch_for_abort(run: Run, inbox: Inbox) -> None:
    """Poll the inbox for an abort from another process, until cancelled.

    An abort is removed from the inbox at once; its sender takes the removal as a confirmation.
    """

    async def poll() -> None:
        if aborts := run.stop.process_aborts(await inbox.read(run.identity.session_id)):
            await inbox.forget(run.identity.session_id, aborts)

    await poll_forever(
        poll, POLL_S, logger, f"Looking in the Store whether session {run.identity.session_id!r} is to be aborted"
    )


def _reset_after_fork() -> None:
    _locks.forget()
    _under_way.clear()
    _releasing.clear()


if hasattr(os, "register_at_fork"):
    # The parent's runs and locks are not a forked child's.
    os.register_at_fork(after_in_child=_reset_after_fork)
