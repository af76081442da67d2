"""Runs responses in the background; every process can read and cancel their events and results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from graph_agent.base._internal.failure_log import log_failure
from graph_agent.interfaces.server.chat.handler import Runs, frames_of
from graph_agent.interfaces.server.chat.run import ServerRun
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.interfaces.server.responses.keeper import Keeper
from graph_agent.interfaces.server.responses.records import OPEN_STATUSES, Record, Records
from graph_agent.interfaces.server.sse import comment, frame
from graph_agent.session.control import SessionControl

logger = logging.getLogger("graph_agent.server.responses.background")

_FLUSH_S = 0.5
"""Seconds between two writes of a response's new events."""
_LOOK_S = 0.5
"""Seconds between two reads of a response that another process runs."""
_CANCEL_S = 30.0
"""Seconds to wait for the end of a cancelled response."""
_SETTLE_S = 2.0
"""Seconds in which a run that has ended may still store its response."""
_END = "data: [DONE]\n\n"
_ENDINGS = ("response.completed", "response.incomplete", "response.failed")


@dataclass(eq=False)
class _Live:
    """A response that runs in the background of this process."""

    keeper: Keeper
    """Stores the response when the run has ended."""
    record: Record
    """The record of the response that is stored while it runs."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """The events of the response so far."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new one, when events were added or the response has ended."""
    is_over: bool = False
    """Whether the run has ended and the response is stored."""
    _written: int = 0
    """Number of events that are stored."""
    _batch: int = 0
    """Number of the next batch of events that is stored."""
    _flushed_at: float = field(default_factory=time.monotonic)

    def _notify(self) -> None:
        """Wake the readers that wait for new events."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def run(self, owned: AsyncExitStack, run: ServerRun) -> None:
        """Collect the events of a run, store them twice a second, and store the response at the end, also if the run
        fails.

        The readers of this process are woken after each event and at the end. Unexpected errors are logged.

        Args:
            owned: The context of the run, which is closed at the end.
            run: The run.
        """
        request, dialect = self.keeper.request, self.keeper.dialect
        dialect.recorded = self.events
        try:
            async with owned:
                async for _ in frames_of(None, run, request, dialect, _FLUSH_S, self._finish, finishes=False):
                    self._notify()
                    if time.monotonic() - self._flushed_at >= _FLUSH_S:
                        await self._flush()
        except Exception as error:  # noqa: BLE001 - a background task has no caller to raise to
            log_failure(logger, "A background response", error)
        finally:
            self.is_over = True
            self._notify()

    async def _finish(self, run: ServerRun) -> None:
        """Store the remaining events, then the response."""
        await self._flush()
        await self.keeper.keep(run)

    async def _flush(self) -> None:
        """Store the new events as one batch, if there are any, and note the time.

        The first batch also sets the stored status to `in_progress`.
        """
        records, dialect = self.keeper.records, self.keeper.dialect
        if new := self.events[self._written :]:
            if self._batch == 0 and dialect.response["status"] == "in_progress":
                await records.put(dialect.token, _with_status(self.record, "in_progress"))
            await records.put_events(dialect.token, self._batch, new)
            self._written, self._batch = len(self.events), self._batch + 1
        self._flushed_at = time.monotonic()

    async def follow(self, after: int, keepalive_s: float) -> AsyncGenerator[str, None]:
        """Yield the frames of the past and future events until the response has ended.

        Args:
            after: Yield only events with a higher `sequence_number`; -1 for all.
            keepalive_s: Seconds without an event after which a comment is sent.
        """
        at = after + 1
        while True:
            is_over, changed = self.is_over, self.changed
            if text := "".join(frame(event, event["type"]) for event in self.events[at:]):
                at = max(at, len(self.events))
                yield text
            if is_over:
                return
            try:
                async with asyncio.timeout(keepalive_s):
                    await changed.wait()
            except TimeoutError:
                yield comment("still at work")


def _with_status(record: Record, status: str, **fields: Any) -> Record:
    """Return a copy of a record whose response has another status, and the given other fields."""
    return {**record, "response": {**record["response"], "status": status, **fields}}


class Background:
    """The responses that run in the background of this process, and access to those of other processes.

    Args:
        runs: The runs of this process.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._host = runs.host
        self._live: dict[tuple[str, str], _Live] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, stack: AsyncExitStack, run: ServerRun, keeper: Keeper) -> None:
        """Store a response as begun, and run it to its end in a task that is independent of the request.

        Meanwhile readers in this process get its events from memory. If the response cannot be stored, the run is
        stopped, and the error of the database is raised.

        Args:
            stack: Contains the context of the run, which is moved to the task.
            run: The run, which has begun.
            keeper: Stores the response.
        """
        records, token, owned = keeper.records, keeper.dialect.token, stack.pop_all()
        live = _Live(keeper, keeper.record(run))
        try:
            await records.put(token, live.record)
        except BaseException:
            await owned.aclose()
            raise
        # Readers in this process then need not wait for the database.
        self._live[records.owner, token] = live
        task = asyncio.create_task(live.run(owned, run), name="background run")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._live.pop((records.owner, token)))

    async def read(self, records: Records, token: str) -> Record | None:
        """Return the record of the response with a token; None if it is not stored.

        If the response is not complete although no process runs it, which is certain only after 2 seconds, it is stored
        as failed first.
        """
        record = await records.find(token)
        if record is None or not await self._is_lost(records, token, record):
            return record
        message = (
            "The process that ran this response has ended. Continue its session with previous_response_id, or with "
            f"POST /sessions/{record['session']}/resume."
        )
        error = {"code": "server_error", "message": message}
        await records.put(token, closed := _with_status(record, "failed", error=error))
        return closed

    async def _is_lost(self, records: Records, token: str, record: Record) -> bool:
        """Return whether a response is not complete although no process runs it, after waiting up to 2 seconds for its
        end.

        False if it has ended, runs in any process, or was deleted. `record` is updated to the stored one meanwhile.
        """
        thread = records.thread(record)
        deadline = time.monotonic() + _SETTLE_S
        while record["response"]["status"] in OPEN_STATUSES and (records.owner, token) not in self._live:
            if await SessionControl(self._host.kept, thread).is_running():
                return False
            if time.monotonic() > deadline:
                return True
            # Its run may begin or end right now, in another process.
            await asyncio.sleep(_LOOK_S)
            stored = await records.find(token)
            if stored is None:
                return False
            record |= stored
        return False

    async def cancel(self, records: Records, token: str, record: Record) -> Record:
        """Abort the run of a response in whichever process it runs, and return the record once it has ended, or after
        30 seconds.

        The record of a response that has ended is returned unchanged. A response that no process runs is stored as
        cancelled. After 30 seconds the record may still be open.
        """
        thread = records.thread(record)
        deadline = time.monotonic() + _CANCEL_S
        aborted = False
        while record["response"]["status"] in OPEN_STATUSES and time.monotonic() < deadline:
            if not aborted:
                aborted = await SessionControl(self._host.kept, thread).abort()
            # A run in this process wakes the wait; one elsewhere is polled.
            live = self._live.get((records.owner, token))
            if live is None and await self._is_lost(records, token, record):
                await records.put(token, closed := _with_status(record, "cancelled", error=None))
                return closed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S / 10):
                    await (live.changed.wait() if live is not None else asyncio.sleep(_LOOK_S))
            record = await records.find(token) or record
        return record

    async def follow(self, records: Records, token: str, after: int = -1) -> AsyncGenerator[str, None]:
        """Yield the frames of a response's past and future events until it has ended, and the frame `[DONE]`.

        The events of a response that another process runs arrive within about a second.

        Args:
            records: The stored responses of the caller.
            token: Token of the response.
            after: Yield only events with a higher `sequence_number`; -1 for all.
        """
        live, keepalive_s = self._live.get((records.owner, token)), self._host.settings.keepalive_s
        stored = self._follow_stored(records, token, after, keepalive_s)
        async for text in stored if live is None else live.follow(after, keepalive_s):
            yield text
        yield _END

    async def _follow_stored(
        self, records: Records, token: str, after: int, keepalive_s: float
    ) -> AsyncGenerator[str, None]:
        """Yield the frames of a response's stored events after the number `after`, and poll the database until the
        response has ended or is deleted. Comments are sent during pauses; if the events lack the end, it is added.
        """
        batch, sent_at = 0, time.monotonic()
        newest: dict[str, Any] = {"type": "", "sequence_number": -1}
        while True:
            record = await self.read(records, token)
            is_open = record is not None and record["response"]["status"] in OPEN_STATUSES
            while (events := await records.events(token, batch)) is not None:
                batch += 1
                newest = events[-1]
                new = [event for event in events if event["sequence_number"] > after]
                if text := "".join(frame(event, event["type"]) for event in new):
                    sent_at = time.monotonic()
                    yield text
            if not is_open:
                for event in _missing_end(record, newest):
                    if event["sequence_number"] > after:
                        yield frame(event, event["type"])
                return
            if time.monotonic() - sent_at >= keepalive_s:
                sent_at = time.monotonic()
                yield comment("still at work")
            await asyncio.sleep(_LOOK_S)

    async def aclose(self) -> None:
        """Wait up to `drain_s` seconds for the responses that run in the background of this process.

        If there were any, then cancel all runs of the process, and wait for the responses that remain.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._host.settings.drain_s)
            self._runs.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)


def _missing_end(record: Record | None, newest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the last events of a response whose end has no stored events: `response.completed` or
    `response.incomplete`, or after a failure an `error` and `response.failed`.

    Empty if the end is stored, or the response was deleted (None). The numbers follow that of the event `newest`.
    """
    if record is None or newest["type"] in _ENDINGS:
        return []
    response, number = record["response"], newest["sequence_number"] + 1
    if (error := response["error"]) is None:
        # A cancelled response has no event of its own.
        ending = "completed" if response["status"] == "completed" else "incomplete"
        return [{"type": f"response.{ending}", "sequence_number": number, "response": response}]
    # Imported where it is used: its schemas are not a part of the start.
    from graph_agent.interfaces.server.responses.output import error_fields

    return [
        {"type": "error", "sequence_number": number, **error_fields(ProblemError("internal", error["message"]))},
        {"type": "response.failed", "sequence_number": number + 1, "response": response},
    ]
