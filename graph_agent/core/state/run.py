"""Represents a run in progress: its cancellation, its working time, and the data its `configurable` passes on.

A run is one pass of an agent's graph from its entry point to its end; an input (a user's message) takes several runs if
it is resumed. Waiting between two runs is not working time.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import RunControl

from graph_agent.base._compat import names_checkpoint
from graph_agent.base._internal.sync_bridge import (
    await_thread_future,
    end_or_abandon,
    is_cancelled,
    result_of,
    start,
    wake,
)
from graph_agent.base.errors import HookError, RunFailedError
from graph_agent.base.history.events import StoredEvent, timestamp
from graph_agent.core.state.fence import CheckpointFence

if TYPE_CHECKING:
    from graph_agent.base._internal.closing_stream import ConsumerTracker
    from graph_agent.base.inbox import ControlMessage, Inbox
    from graph_agent.base.input_ids import InputId
    from graph_agent.core.execution.overlap.speculation import Speculation
    from graph_agent.core.state.fence import DeferredWrites
    from graph_agent.core.state.schema import LoopState
    from graph_agent.core.state.stored_messages import StoredMessages
    from graph_agent.models.stream_watch import Forwarder

T = TypeVar("T")

_HANDLE = "__graph_agent_run"
"""Key of the `AgentHandle` in a run's `configurable`. The two underscores keep it out of checkpoints and traces."""


class AgentHandle:
    """The immutable data that this package passes in `configurable` to an agent's run and to the runs nested in it.

    `handle_of` reads it, and `with_handle` writes a changed copy.
    """

    # No dataclass: pydantic copies one field by field when a tool's runtime is dumped, down to the locks of a run.
    __slots__ = ("hides_nodes", "in_foreground", "is_watched", "parent", "readership", "run")

    def __init__(
        self,
        run: Run | None = None,
        *,
        parent: Run | RunHandle | None = None,
        readership: ConsumerTracker | None = None,
        is_watched: bool = False,
        hides_nodes: bool = False,
        in_foreground: bool = False,
    ) -> None:
        self.run = run
        """The run; None before the run starts."""
        self.parent = parent
        """The parent of a run that has not started; None if there is none."""
        self.readership = readership
        """State of the run's stream; None if the run has no stream, or it is unknown."""
        self.is_watched = is_watched
        """Whether the run's custom stream has the parts of delegates' runs, and `EarlyEvents`."""
        self.hides_nodes = hides_nodes
        """Whether the caller does not use the node names of the run's `updates` stream."""
        self.in_foreground = in_foreground
        """Whether the session ends with the run's answer, so that none of its delegations goes on in the background."""


_NO_HANDLE = AgentHandle()


def handle_of(configurable: Mapping[str, Any]) -> AgentHandle:
    """Return the handle in a `configurable`; a shared empty handle if the `configurable` belongs to no agent's run."""
    handle: AgentHandle = configurable.get(_HANDLE, _NO_HANDLE)
    return handle


def with_handle(configurable: Mapping[str, Any], handle: AgentHandle | None = None, **fields: Any) -> dict[str, Any]:
    """Return a copy of a `configurable` with another handle; the given mapping and its handle stay unchanged.

    Args:
        handle: The new handle; None to keep that of `configurable`, or an empty one if it has none.
        fields: Attributes of `AgentHandle` by name, which replace those of the handle. Unknown names are ignored.
    """
    handle = handle or handle_of(configurable)
    if fields:
        handle = AgentHandle(**{name: fields.get(name, getattr(handle, name)) for name in AgentHandle.__slots__})
    return {**configurable, _HANDLE: handle}


def merge_handles(surrounding: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged `configurable` of a run that starts inside another run; values of the inner run win.

    If both runs have a handle, the result has a new one: its `parent` is the nearest known outer run; `run`,
    `readership` and `hides_nodes` are those of `given`; the other flags are set if either handle sets them. With one
    handle, the result has that one.

    Args:
        surrounding: The `configurable` of the outer run.
        given: That of the inner run. If it names a checkpoint, only the parent is inherited.
    """
    outer, own = handle_of(surrounding), handle_of(given)
    # LangGraph passes nothing of the outer run, such as its saver, to one that names its own checkpoint.
    inherits = not names_checkpoint(given)
    merged, passed_on = ({**surrounding, **given}, outer) if inherits else ({**given}, _NO_HANDLE)
    if outer is _NO_HANDLE or handle_of(merged) is outer:
        return merged
    return with_handle(
        merged,
        # A run that has a parent already was started on behalf of that one.
        parent=own.run or own.parent or outer.run,
        is_watched=own.is_watched or passed_on.is_watched,
        in_foreground=own.in_foreground or passed_on.in_foreground,
    )


class WorkStoppedError(Exception):
    """An abort or a timeout stopped work of a run; raised by `RunStop.stoppable`."""


@dataclass(eq=False, repr=False)
class RunStop:
    """The conditions that stop one run: an abort, its deadline, a lost session lock, or a stream that its reader left.

    Thread-safe, except for the methods that await or return a cancel scope, which run on the run's loop.
    """

    parent: RunStop | None = None
    """The stop of the run that contains this one as a delegate or a subgraph, and stops it too; None without one."""
    fence: CheckpointFence | None = None
    """Refuses checkpoint writes once another run has continued the session; None if the run is not of this process."""
    readership: ConsumerTracker | None = None
    """State of the run's stream; None if the run has no stream, or it is unknown."""
    task: asyncio.Task[Any] | None = None
    """The task whose cancellation ends the run; None if there is none."""
    started_ns: int = field(default_factory=time.time_ns)
    """Wall clock at the start in ns; it separates aborts of this run from older ones in the session's inbox."""
    deadline_s: float | None = None
    """Working seconds that the input may take, with its answer; None for no limit, or before the input has begun."""
    at_consumer: bool = False
    """Whether the reader of the stream holds the newest part, and the run waits until the reader asks for another."""
    confirm_lock: Callable[[], Future[None]] | None = None
    """Starts a check of the session's lock; the future fails if it is lost. None if it cannot be lost."""
    _old_aborts: frozenset[str] | None = None
    _stopped: bool = False
    _stopped_at: float | None = None
    _children: set[RunStop] = field(default_factory=set)
    _stops: dict[Callable[[], object], asyncio.AbstractEventLoop] = field(default_factory=dict)
    """Functions that stop the current work of the run, with the loop that calls them."""
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _worked_s: float | None = None
    _since: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - resolved at call time, so that a test can set the clock

    @property
    def aborted(self) -> bool:
        """Whether the run, or a run that contains it, was aborted."""
        return self._stopped or (self.parent is not None and self.parent.aborted)

    @property
    def left_s(self) -> float | None:
        """Working seconds that remain until the input's deadline, at least 0.0; None without a deadline."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - self.worked_s(0.0))

    @property
    def is_ending(self) -> bool:
        """Whether the run is about to end: it was aborted, its task was cancelled, or the reader of its stream left."""
        return is_cancelled(self.task) or self.aborted or (self.readership is not None and self.readership.is_left)

    def stopped_for_s(self) -> float:
        """Return the monotonic seconds since this run or an outer one was first found stopped; 0.0 if none is.

        A run counts as stopped if it is ending or has passed its deadline. The first call that finds it so starts the
        count. Nested runs share the time in which stopped work may end, so that each level does not add a wait of its
        own.
        """
        now, seconds = time.monotonic(), 0.0
        stop: RunStop | None = self
        # A nested run ends with the first of its outer runs that stops.
        while stop is not None:
            if stop.is_ending or stop.left_s == 0:
                stop._stopped_at = stop._stopped_at or now
                seconds = max(seconds, now - stop._stopped_at)
            stop = stop.parent
        return seconds

    def abort(self) -> None:
        """Abort the run and every run inside it, from any thread: cancel their current work and start no more."""
        with self._guard:
            self._stopped = True
            stops, children = dict(self._stops), set(self._children)
        for stop, loop in stops.items():
            # A closed loop runs nothing to cancel.
            if not loop.is_closed():
                loop.call_soon_threadsafe(stop)
        for child in children:
            child.abort()

    def end_lost(self, why: str) -> None:
        """Abort the run and refuse its further checkpoint writes, because this process lost the session's lock.

        Args:
            why: Message of the `SessionLostError` that refused writes and `check_held` raise; the sender of the input
                reads it.
        """
        if self.fence is not None:
            self.fence.close(why)
        self.abort()

    def check_held(self) -> None:
        """Raise `SessionLostError` if the loss of the session's lock was recorded for this run or for an outer one."""
        if self.fence is not None and self.fence.why_lost:
            self.fence.check_open()
        if self.parent is not None:
            self.parent.check_held()

    async def confirm_held(self) -> None:
        """Verify the locks of this run and the outer ones, if not lately; raise `SessionLostError` if one is lost."""
        stop: RunStop | None = self
        while stop is not None:
            if stop.confirm_lock is not None:
                await await_thread_future(stop.confirm_lock())
            stop = stop.parent
        self.check_held()

    def process_aborts(self, notes: Iterable[ControlMessage]) -> list[str]:
        """Abort the run if one of the notes (messages to the session from outside, see `base.inbox`) requests it.

        The first call ignores aborts sent before the run's start, which were meant for an earlier run. An abort that
        appears later always counts, whatever the clock of its sender shows. Notes of other kinds are ignored.

        Returns the keys of all aborts among the notes, old ones included; the caller can remove them from the inbox.
        """
        aborts = {note.key: note for note in notes if note.kind == "abort"}
        if self._old_aborts is None:
            # An abort may be sent between the run's start and its first reading, so clocks are compared only once.
            self._old_aborts = frozenset(key for key, note in aborts.items() if note.sent_ns < self.started_ns)
        if aborts.keys() - self._old_aborts:
            self.abort()
        return list(aborts)

    def interruptible(self, seconds: float | None = None) -> Interruptible:
        """Return a context manager whose block is cancelled by an abort, and after `seconds` if that is not None.

        It suppresses that cancellation: code after the block runs on, and `cancelled_caught` is true if the work inside
        was cancelled. In a run that is aborted already, the block is cancelled when it first waits. If the session's
        lock was lost, leaving a cancelled block raises `SessionLostError`.
        """
        return Interruptible(self, seconds)

    async def stoppable(
        self, work: Coroutine[Any, Any, T], what: str, seconds: float | None = None, *, contained: bool = False
    ) -> T:
        """Await work that calls a user's code: a tool, hook, middleware, policy, delegate, cache, model or Store.

        An abort, the timeout, or a cancellation of the caller cancels it; `end_or_abandon` leaves stuck work to itself.

        Args:
            work: The coroutine; it is closed unstarted if the run is aborted already, or no time is left.
            what: The work, as the subject of a sentence in logs, such as "The Store".
            seconds: Timeout; None for the time that remains until the input's deadline.
            contained: Whether the work ends by itself on a cancellation (see `await_within`), so that it needs no task.

        Returns the work's result, without `contained` also that of stopped work that still ends with one. Raises
        `WorkStoppedError` if an abort or the timeout stopped the work, `SessionLostError` if the lock was lost, and the
        work's own exceptions.
        """
        seconds = self.left_s if seconds is None else seconds
        is_late = self.aborted or (seconds is not None and seconds <= 0)
        if is_late:
            # Otherwise Python warns that the coroutine was never awaited.
            work.close()
            raise WorkStoppedError
        if contained:
            with Interruptible(self, seconds):
                return await work
            raise WorkStoppedError
        task, ended = start(work)
        loop, stop = asyncio.get_running_loop(), partial(wake, ended)
        # Until it is due, even a cancelled timer keeps its context, and with this one the session's history.
        limit = None if seconds is None else loop.call_later(seconds, stop, context=Context())
        with self._guard:
            self._stops[stop] = loop
        # Another thread may have aborted the run since the first look.
        if self.aborted:
            stop()
        try:
            await ended
            is_stopped = not task.done()
        finally:
            with self._guard:
                del self._stops[stop]
            if limit is not None:
                limit.cancel()
            if not task.done():
                await end_or_abandon(task, what)
        if is_stopped:
            self.check_held()
            if not task.done() or task.cancelled():
                raise WorkStoppedError
        return result_of(task)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Register the run with its parent, if any, during a `with` block, so that an abort of the parent aborts it."""
        if self.parent is None:
            yield
            return
        with self.parent._guard:
            self.parent._children.add(self)
        try:
            yield
        finally:
            with self.parent._guard:
                self.parent._children.discard(self)

    def begin_input(self) -> float:
        """Restart the working time at 0 for a new input; return the seconds since the last restart or the creation."""
        now = time.monotonic()
        queued_s = now - self._since
        self._worked_s, self._since, self._stopped_at = 0.0, now, None
        return queued_s

    def worked_s(self, before_s: float) -> float:
        """Return the working seconds of this input on the monotonic clock, without the time between its runs.

        `before_s` is the working time of the input's earlier runs; only the first call adds it, later ones ignore it.
        """
        if self._worked_s is None:
            self._worked_s = before_s
        return self._worked_s + time.monotonic() - self._since


class Interruptible:
    """The context manager of `RunStop.interruptible`; a cancellation from outside still raises `CancelledError`."""

    # A class: each tool call enters it, and a generator-based context manager takes twice as long.
    __slots__ = ("_before", "_is_cancelled", "_seconds", "_stop", "_task", "_timer", "cancelled_caught")

    def __init__(self, stop: RunStop, seconds: float | None) -> None:
        self._stop, self._seconds = stop, seconds
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_cancelled = self.cancelled_caught = False

    def __enter__(self) -> Self:
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        if self._seconds is not None:
            # Until it is due, even a cancelled timer keeps its context, and with this one the session's history.
            self._timer = loop.call_later(self._seconds, self._cancel, context=Context())
        with self._stop._guard:
            self._stop._stops[self._cancel] = loop
        if self._stop.aborted:
            loop.call_soon(self._cancel)
        return self

    def _cancel(self) -> None:
        if self._task is not None and not self._is_cancelled:
            self._is_cancelled = self._task.cancel()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        task, self._task = self._task, None
        with self._stop._guard:
            del self._stop._stops[self._cancel]
        if self._timer is not None:
            self._timer.cancel()
        if task is not None and self._is_cancelled and task.uncancel() <= self._before:
            self.cancelled_caught = isinstance(error, asyncio.CancelledError)
        if self.cancelled_caught:
            self._stop.check_held()
        return self.cancelled_caught


@dataclass(eq=False, slots=True)
class RunIdentity:
    """Names a run for its session's events, checkpoints and traces."""

    session_id: str = ""
    """Id of the session, which is LangGraph's thread id; empty for a run that stores nothing."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    resumes: bool = False
    """Whether the run continues an input whose last run ended early, without an answer of a person."""
    agent_name: str | None = None
    """Name that the agent's messages carry; None for an agent that was given no name."""
    mark: InputId | None = None
    """Id by which a sender marks an input, so that a repeated delivery runs once; checkpoints store it. None if
    absent."""
    warnings: tuple[str, ...] = ()
    """Faults of the request that started the run; when an input begins, a `warning` event reports each."""
    inputs_before: Mapping[str, str] | str | None = None
    """Record of the earlier inputs' ids that the run's checkpoints store, for savers without an index of these ids:
    first a mapping of input id → newest checkpoint id, then the id of the checkpoint that holds the mapping. None if
    there is none."""
    recent_runs: tuple[str, ...] = ()
    """Ids of the runs that a server dispatched to the session before this one; the run's checkpoints store them."""


@dataclass(eq=False, slots=True)
class RunCalls:
    """The tool and delegation calls of one run: those that it planned or prepared, and those that it has started."""

    planned: set[str] = field(default_factory=set)
    """Ids of the calls made ready in this run; no earlier run can have started them."""
    started_tasks: set[str] = field(default_factory=set)
    """Ids of the calls whose task has started in this run."""
    started: set[str] = field(default_factory=set)
    """Ids of the calls started in this run."""
    answered_tasks: dict[str, int] = field(default_factory=dict)
    """Id of a delegate's task → number of human answers with which this run continued the task."""

    @property
    def untouched(self) -> list[str]:
        """Sorted ids of the calls made ready in this run whose task has not started."""
        return sorted(self.planned - self.started_tasks)

    def plan(self, ids: Iterable[str]) -> None:
        """Record calls as made ready and not started. An id may repeat that of an earlier call; its record is
        replaced."""
        new = set(ids)
        self.planned |= new
        self.started_tasks -= new
        self.started -= new


@dataclass(eq=False, repr=False)
class Run:
    """One run of an agent's graph, from its entry point to its end; functions take only the group that they need."""

    identity: RunIdentity = field(default_factory=RunIdentity)
    parent: Run | RunHandle | None = None
    """The run that contains this one as a delegate or a subgraph, or its handle; its abort applies to this run too."""
    readership: InitVar[ConsumerTracker | None] = None
    """State of the run's stream, passed on to `stop`; None if the run has no stream, or its reader is unknown."""
    calls: RunCalls = field(default_factory=RunCalls)
    inbox: Inbox | None = None
    """Storage of notes to the session, such as steering and aborts; None for a run without a session."""
    has_read_inbox: bool = False
    """Whether the inbox was read. The first read removes the notes that the stored state lists as processed."""
    deferred: DeferredWrites | None = None
    """The run's queued checkpoint writes; None if each write is committed before the saver returns."""
    stored_lists: tuple[str, Mapping[str, list[Any]]] | None = None
    """Id of the newest checkpoint that the run stored, and its growing lists by channel; None before the first."""
    stored: StoredMessages | None = None
    """What is known about the messages that the saver lent to the run; None before, and once the run has ended."""
    is_unobserved: bool = False
    """Whether the run stores nothing and its caller does not see which node wrote which field; tracers may see it."""
    updates_only: bool = False
    """Whether the run only holds the session's lock for `update_state`, and runs no node."""
    answering: bool = False
    """Whether no further model request or call is needed: only reading a reply, or storing the answer, is left."""
    observed: Any = None
    """What the observer of this process, such as the OpenTelemetry one, keeps for the run; None without an observer."""
    cause: BaseException | None = None
    """The exception behind the newest failure of this run; None if nothing failed."""
    failure: RunFailedError | None = None
    """The error that the run raises at its end; None if it succeeds."""
    ended: Future[None] = field(default_factory=Future)
    """Completed once the session is free for its next run."""
    speculation: Speculation | None = None
    """The work of the current input that has begun before a plan asked for it; None if there was none."""
    _shared: dict[str, asyncio.Future[Any]] = field(default_factory=dict)
    _held: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self, readership: ConsumerTracker | None) -> None:
        """Create the run's `fence` and its `stop`, which is linked to the stop of the parent run or handle."""
        self.fence = CheckpointFence(self.identity.id)
        """Refuses its writes when another run has continued the session."""
        outer: RunStop | None = self.parent.stop if isinstance(self.parent, Run) else self.parent
        self.stop: RunStop = RunStop(outer, self.fence, readership)

    async def once(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return a value that several tasks of this run need: the first call with a key computes it, others wait.

        A cancelled caller stops waiting and does not cancel the computation. An exception of `make` is raised to every
        caller with the key, later ones included.

        Args:
            key: Name of the value in this run.
            make: Computes the value; called at the first request only.
        """
        if key not in self._shared:
            self._shared[key] = asyncio.ensure_future(make())
        # One caller's cancellation must not cancel the value for the others.
        value: T = await asyncio.shield(self._shared[key])
        return value

    def shared(self, key: str, make: Callable[[], T]) -> T:
        """Return an object that several tasks of this run share; `make` creates it at the first request for `key`."""
        if key not in self._held:
            self._held[key] = make()
        return cast("T", self._held[key])

    def release(self) -> None:
        """End the run's speculation, and drop the objects that its tasks share; cancelled timers keep the run's context
        until they are due."""
        if self.speculation is not None:
            self.speculation.end()
            self.speculation = None
        self._held.clear()
        self._shared.clear()
        self.stored_lists = self.stored = None

    def report(self, loop: LoopState, entry: StoredEvent) -> None:
        """Move to an event the model calls in `loop` and the run's speculation, and add the time of a resume."""
        if self.identity.resumes:
            entry["resumed_at"] = timestamp(self.stop.started_ns)
        if calls := loop.pop("model_calls", None):
            entry["model_calls"] = calls
        if self.speculation is not None:
            self.speculation.report(entry)

    def record_cause(self, error: BaseException) -> None:
        """Record in `cause` the exception that fails the input; for a `HookError` with a cause, the cause."""
        # Users recognize the exception of their own hook, and find its traceback.
        self.cause = error.__cause__ if isinstance(error, HookError) and error.__cause__ is not None else error


@dataclass(eq=False, repr=False)
class RunHandle(RunStop):
    """A program's handle of a run that it starts, to abort the run and to be called at its begin and end.

    It is the `parent` in the run's `AgentHandle`. Nested runs, such as a delegate's, do not inherit the callbacks.
    """

    surrounding: Run | RunHandle | None = None
    """The run in which the program starts this one, and whose stop is `parent`; None outside of any run."""
    mark: InputId | None = None
    """Id of the run's input, by which a repeated delivery runs once; None for an input without an id."""
    warnings: tuple[str, ...] = ()
    """Faults of the request that started the run; when the run begins an input, a `warning` event reports each."""
    brought: tuple[ControlMessage, ...] = ()
    """Notes to add to the session's inbox once the run holds the session's lock; dropped if the run is refused."""
    before: Callable[[], Awaitable[None]] | None = None
    """Awaited when the run holds its session's lock, before it begins; an exception ends the run, which raises it."""
    reports_early_events: bool = False
    """Whether the run's custom stream has `EarlyEvents`."""
    forwarder: Forwarder | None = None
    """Creates the object that forwards a model's reply to a reader outside the graph's stream; None without one."""
    after: Callable[[Run], Awaitable[None]] | None = None
    """Awaited with the run after its end, while the session's lock still keeps other runs of the session out."""
    continues_at: str | None = None
    """Id of the earlier checkpoint from which the run continues its input; None for the newest checkpoint."""


def is_running(config: RunnableConfig) -> bool:
    """Whether a config belongs to an agent's run that executes nodes; False outside a run, and for `update_state`."""
    run = handle_of(config["configurable"]).run
    return run is not None and not run.updates_only


def run_of(config: RunnableConfig) -> Run:
    """Return the run that a node belongs to; a new, empty one if the node is called outside a compiled agent."""
    return handle_of(config["configurable"]).run or Run()


class AnsweringControl(RunControl):
    """Wraps a caller's `RunControl`, so that a drain does not stop a run whose calls are done and `finalize` is next.

    Otherwise a run whose answer has been streamed would be stopped before the answer is stored.
    """

    __slots__ = ("_control", "_run")

    def __init__(self, control: RunControl, run: Run) -> None:
        super().__init__()
        self._control = control
        self._run = run

    def request_drain(self, reason: str = "shutdown") -> None:
        """Request a drain from the caller's control: LangGraph then stops its runs before their next superstep."""
        self._control.request_drain(reason)

    @property
    def drain_requested(self) -> bool:
        """Whether the run stops before its next superstep: a drain was requested, and the run is not `answering`."""
        return self._control.drain_requested and not self._run.answering

    @property
    def drain_reason(self) -> str | None:
        """The reason of the drain request; None if no drain was requested."""
        return self._control.drain_reason
