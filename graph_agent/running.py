"""What surrounds each run of an agent: one run at a time in a session, reachable while it is under way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from graph_agent.errors import SessionBusyError
from graph_agent.locks import SessionLocks
from graph_agent.places import place_of, place_of_blocking
from graph_agent.runs import RUN, Run, inbox_in_memory
from graph_agent.steering import Inbox
from graph_agent.store_inbox import StoreInbox

logger = logging.getLogger(__name__)

ABORTED = "__graph_agent_aborted"
"""Key in a run's `configurable` that makes it an aborted one from its start: it settles what is open, and ends."""

POLL_S = 0.25
"""Seconds between two looks for an abort that another process has put into the Store."""

_locks = SessionLocks()
_under_way: dict[tuple[Hashable, str], Run] = {}


def inbox_of(saver: BaseCheckpointSaver[Any], store: BaseStore | None) -> Inbox:
    """Where notes to an agent's sessions wait: in its Store, or in this process without one."""
    return StoreInbox(store) if store is not None else inbox_in_memory(saver)


async def run_under_way(saver: BaseCheckpointSaver[Any], session_id: str) -> Run | None:
    """The run of a session in this process; None when there is none."""
    return _under_way.get((await place_of(saver), session_id))


async def is_idle(saver: BaseCheckpointSaver[Any], session_id: str) -> bool:
    """Whether no run of a session is under way, in this process or in another on the same SQLite database."""
    place = await place_of(saver)
    return _locks.is_free(place, session_id)


async def sees_every_run(saver: BaseCheckpointSaver[Any]) -> bool:
    """Whether `is_idle` knows of other processes: with an SQLite file it does, and a saver in memory has none."""
    return isinstance(await place_of(saver), Path) or type(saver) is InMemorySaver


@asynccontextmanager
async def running(
    configurable: Mapping[str, Any], checkpointer: Checkpointer, store: BaseStore | None
) -> AsyncIterator[Run]:
    """Surround one run from an asynchronous entry point; gives the run.

    Args:
        configurable: Its config's `configurable`, complete.
        checkpointer: The graph's.
        store: The graph's.

    Raises:
        SessionBusyError: When a run of the session is under way.
    """
    run = _new_run(configurable, checkpointer, store)
    with run.under():
        if not isinstance(checkpointer, BaseCheckpointSaver) or not _has_session(run):
            yield run
            return
        with _session(await place_of(checkpointer), run):
            watcher = asyncio.create_task(_watch(run)) if store is not None else None
            try:
                yield run
            finally:
                if watcher is not None:
                    watcher.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await watcher


@contextmanager
def running_blocking(
    configurable: Mapping[str, Any], checkpointer: Checkpointer, store: BaseStore | None
) -> Iterator[Run]:
    """As `running`, from a blocking entry point; an abort in the Store is seen when the next step is planned."""
    run = _new_run(configurable, checkpointer, store)
    with run.under():
        if not isinstance(checkpointer, BaseCheckpointSaver) or not _has_session(run):
            yield run
            return
        with _session(place_of_blocking(checkpointer), run):
            yield run


def _new_run(configurable: Mapping[str, Any], checkpointer: Checkpointer, store: BaseStore | None) -> Run:
    parent = configurable.get(RUN)
    run = Run(
        session_id=str(configurable.get("thread_id", "")),
        parent=parent,
    )
    if isinstance(checkpointer, BaseCheckpointSaver) and _has_session(run):
        run.inbox = inbox_of(checkpointer, store)
    if configurable.get(ABORTED):
        run.abort()
    return run


def _has_session(run: Run) -> bool:
    """Whether a run is its session's own, and not a part of another run of it."""
    return bool(run.session_id) and (run.parent is None or run.parent.session_id != run.session_id)


@contextmanager
def _session(place: Hashable, run: Run) -> Iterator[None]:
    key = (place, run.session_id)
    if not _locks.take(*key):
        raise SessionBusyError(
            f"Session {run.session_id!r} is running already. Talk to that run (Session.steer, Session.follow_up), stop "
            "it (Session.abort), or wait for its end."
        )
    _under_way[key] = run
    try:
        yield
    finally:
        del _under_way[key]
        _locks.give_back(*key)


async def _watch(run: Run) -> None:
    """Look for an abort from another process, as long as the run lasts."""
    while not run.aborted:
        await asyncio.sleep(POLL_S)
        try:
            notes = await run.inbox.read(run.session_id)
            if any(note.kind == "abort" and note.sent_ns >= run.started_ns for note in notes):
                run.abort()
                # That it is gone tells the sender that it was heard.
                await run.inbox.forget(run.session_id, [note.key for note in notes if note.kind == "abort"])
        except Exception:
            logger.exception("The Store could not be asked whether session %r is to be aborted", run.session_id)


def _begin_anew() -> None:
    _locks.forget()
    _under_way.clear()


if hasattr(os, "register_at_fork"):
    # The parent's runs and locks are not a forked child's.
    os.register_at_fork(after_in_child=_begin_anew)
