"""Represents a run in progress: its cancellation, its working time, and what its config passes to it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import RunControl

from graph_agent.base._compat import inherits_durability, names_checkpoint
from graph_agent.base._internal import telemetry
from graph_agent.base._internal.sync_bridge import await_thread_future, end_or_abandon, result_of, start
from graph_agent.base.errors import HookError, RunFailedError
from graph_agent.core.runs.fence import CheckpointFence
from graph_agent.core.state.events import StoredEvent

if TYPE_CHECKING:
    from graph_agent.base._internal.closing_stream import ConsumerTracker
    from graph_agent.base.input_ids import InputId
    from graph_agent.core.runs.fence import DeferredWrites
    from graph_agent.core.runs.inbox import ControlMessage, Inbox
    from graph_agent.models.stream_watch import Forwarder

T = TypeVar("T")

_HANDLE = "__graph_agent_run"
"""Key of the `AgentHandle` in a run's `configurable`. The two underscores keep it out of checkpoints and traces."""


class AgentHandle:
    """What this package passes to a run of an agent, and from there to the runs inside it, in their `configurable`.

    It is one immutable object under one key: `handle_of` reads it, and `with_handle` writes it.
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
        """The run; None before its start."""
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
    """Return the handle in a `configurable`; an empty one if it belongs to no agent's run."""
    handle: AgentHandle = configurable.get(_HANDLE, _NO_HANDLE)
    return handle


def with_handle(configurable: Mapping[str, Any], handle: AgentHandle | None = None, **fields: Any) -> dict[str, Any]:
    """Return a `configurable` with another handle.

    Args:
        handle: The handle; None for the one that `configurable` has.
        fields: Values that replace those of the handle.
    """
    handle = handle or handle_of(configurable)
    if fields:
        handle = AgentHandle(**{name: fields.get(name, getattr(handle, name)) for name in AgentHandle.__slots__})
    return {**configurable, _HANDLE: handle}


def merge_handles(surrounding: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the complete `configurable` of a run that starts inside another one.

    Args:
        surrounding: That of the other run.
        given: That of the run itself, whose values come first.
    """
    merged, outer, own = {**surrounding, **given}, handle_of(surrounding), handle_of(given)
    if outer is _NO_HANDLE or own is _NO_HANDLE or own is outer:
        return merged
    # LangGraph passes nothing else of the outer run to one that names its own checkpoint.
    passed_on = _NO_HANDLE if names_checkpoint(given) else outer
    return with_handle(
        merged,
        parent=own.run or own.parent or outer.run,
        is_watched=own.is_watched or passed_on.is_watched,
        in_foreground=own.in_foreground or passed_on.in_foreground,
    )


@dataclass(frozen=True, slots=True)
class EarlyEvents:
    """The first events of a superstep that waits for a model, which stores them at its end; on the custom stream."""

    events: Sequence[StoredEvent]


class WorkStoppedError(Exception):
    """An abort or a deadline stopped work of a run; see `RunStop.stoppable`."""


@dataclass(eq=False, repr=False)
class RunStop:
    """What stops one run: an abort, its deadline, the loss of its session, or a reader that has left. Thread-safe."""

    parent: RunStop | None = None
    """That of the run which contains this one as a delegate or a subgraph; it stops this run, too."""
    fence: CheckpointFence | None = None
    """The fence of the run; None if the run is not this process's own."""
    readership: ConsumerTracker | None = None
    """State of the run's stream; None if the run has no stream, or it is unknown."""
    task: asyncio.Task[Any] | None = None
    """The task whose cancellation ends the run; None if there is none."""
    started_ns: int = field(default_factory=time.time_ns)
    """Wall clock at the start, to distinguish aborts of this run from earlier ones in its inbox."""
    deadline_s: float | None = None
    """Seconds that the input may take, the answer included; None for no limit, or before the input began."""
    at_consumer: bool = False
    """Whether the consumer of the stream has the newest part, and the run waits for it."""
    confirm_lock: Callable[[], Future[None]] | None = None
    """Verifies the session's lock; None if the lock cannot be lost."""
    _old_aborts: frozenset[str] | None = None
    _stopped: bool = False
    _stopped_at: float | None = None
    _children: set[RunStop] = field(default_factory=set)
    _scopes: dict[anyio.CancelScope, asyncio.AbstractEventLoop] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _worked_s: float | None = None
    _since: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - resolved at call time, so that a test can set the clock

    @property
    def aborted(self) -> bool:
        """Whether the run, or a run that contains it, was aborted."""
        return self._stopped or (self.parent is not None and self.parent.aborted)

    @property
    def left_s(self) -> float | None:
        """Seconds that its input may still take; None for no limit."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - self.worked_s(0.0))

    @property
    def is_ending(self) -> bool:
        """Whether it is about to end: it was aborted or cancelled, or its stream was left."""
        cancelled = self.task is not None and self.task.cancelling() > 0
        return cancelled or self.aborted or (self.readership is not None and self.readership.is_left)

    def stopped_for_s(self) -> float:
        """Return the seconds since this run or one that contains it was found stopped; 0.0 if none of them is.

        Nested runs share the time in which stopped work may end, so that each level does not add its own.
        """
        now, seconds = time.monotonic(), 0.0
        stop: RunStop | None = self
        while stop is not None:
            if stop.is_ending or stop.left_s == 0:
                stop._stopped_at = stop._stopped_at or now
                seconds = max(seconds, now - stop._stopped_at)
            stop = stop.parent
        return seconds

    def abort(self) -> None:
        """Abort the run: cancel its current work, and start nothing more."""
        with self._guard:
            self._stopped = True
            scopes, children = dict(self._scopes), set(self._children)
        for scope, loop in scopes.items():
            # A closed loop runs nothing to cancel.
            if not loop.is_closed():
                loop.call_soon_threadsafe(scope.cancel)
        for child in children:
            child.abort()

    def end_lost(self, why: str) -> None:
        """Abort the run, and store nothing more, because its process lost the session; `why` is for the sender."""
        if self.fence is not None:
            self.fence.close(why)
        self.abort()

    def check_held(self) -> None:
        """Raise `SessionLostError` if a loss of the session's lock was recorded."""
        if self.fence is not None and self.fence.why_lost:
            self.fence.check_open()
        if self.parent is not None:
            self.parent.check_held()

    async def confirm_held(self) -> None:
        """Behaves like `check_held`, but first verifies the lock itself if its last check is outdated."""
        stop: RunStop | None = self
        while stop is not None:
            if stop.confirm_lock is not None:
                await await_thread_future(stop.confirm_lock())
            stop = stop.parent
        self.check_held()

    def process_aborts(self, notes: Iterable[ControlMessage]) -> list[str]:
        """Abort the run if a note requests it; return the keys of all aborts, which can now be removed.

        At the first call, aborts sent before the run's start are ignored, as they were meant for an earlier run. Aborts
        that appear later always count, for any clock of their sender.
        """
        aborts = {note.key: note for note in notes if note.kind == "abort"}
        if self._old_aborts is None:
            self._old_aborts = frozenset(key for key, note in aborts.items() if note.sent_ns < self.started_ns)
        if aborts.keys() - self._old_aborts:
            self.abort()
        return list(aborts)

    def interruptible(self, seconds: float | None = None) -> AbstractContextManager[anyio.CancelScope]:
        """Return a cancel scope that an abort, or a timeout if given, cancels.

        The scope suppresses the cancellation; `cancelled_caught` is true if the work inside was cancelled.
        """
        return _Interruptible(self, seconds)

    async def stoppable(
        self, work: Coroutine[Any, Any, T], what: str, seconds: float | None = None, *, contained: bool = False
    ) -> T:
        """Await work that calls a user's code: a tool, hook, middleware, policy, delegate, cache, model or Store.

        An abort, a timeout and a cancellation of the caller end the wait, also if that code suppresses cancellations
        (see `end_or_abandon`); `contained` work does so itself (see `await_within`) and needs no task here. `what` is
        the work, as the subject of a sentence. The timeout None is what is left of the input's deadline.

        Returns its result, also one that it returns after it was stopped; raises `WorkStoppedError` if an abort or the
        timeout stopped it.
        """
        with self.interruptible(self.left_s if seconds is None else seconds) as scope:
            if scope.cancel_called:
                work.close()
                raise WorkStoppedError
            if contained:
                return await work
            task, ended = start(work)
            try:
                await ended
            finally:
                if not task.done():
                    await end_or_abandon(task, what)
        if contained or (scope.cancelled_caught and (not task.done() or task.cancelled())):
            raise WorkStoppedError
        return result_of(task)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Register the run with its parent, so that an abort of the parent reaches it."""
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
        """Restart the working time for a new input; return the seconds that passed before."""
        now = time.monotonic()
        queued_s = now - self._since
        self._worked_s, self._since, self._stopped_at = 0.0, now, None
        return queued_s

    def worked_s(self, before_s: float) -> float:
        """Return the working seconds of this input, after those of its earlier runs, without the time between them."""
        if self._worked_s is None:
            self._worked_s = before_s
        return self._worked_s + time.monotonic() - self._since


class _Interruptible:
    # A class: every node of every run enters it, and a generator-based context manager takes twice as long.
    __slots__ = ("_scope", "_stop")

    def __init__(self, stop: RunStop, seconds: float | None) -> None:
        self._stop = stop
        deadline = math.inf if seconds is None else anyio.current_time() + seconds
        self._scope = anyio.CancelScope(deadline=deadline)

    def __enter__(self) -> anyio.CancelScope:
        # Until it is due, even a cancelled timer keeps its context, and with this one the session's history.
        scope, stop = Context().run(self._scope.__enter__), self._stop
        with stop._guard:
            stop._scopes[scope] = asyncio.get_running_loop()
        if stop.aborted:
            scope.cancel()
        return scope

    def __exit__(self, *raised: Any) -> bool:
        with self._stop._guard:
            self._stop._scopes.pop(self._scope, None)
        swallowed = bool(self._scope.__exit__(*raised))
        if swallowed:
            self._stop.check_held()
        return swallowed


@dataclass(eq=False, slots=True)
class RunIdentity:
    """Which run it is, for its session's events, checkpoints and traces."""

    session_id: str = ""
    """The session; empty for a run that stores nothing."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    agent_name: str | None = None
    """Name that the agent's messages carry; None for an agent without a name of its own."""
    mark: InputId | None = None
    """The id of its input, which its checkpoints store; None for an input without an id."""
    warnings: tuple[str, ...] = ()
    """Faults of the request that the run answers; a `warning` event reports each when the run begins an input."""
    inputs_before: Mapping[str, str] | str | None = None
    """What its checkpoints store of the inputs before it, in savers without an index of input ids: at first, the newest
    checkpoint of each; then, the checkpoint that has them. None for nothing."""
    recent_runs: tuple[str, ...] = ()
    """Ids of the runs that a server dispatched to the session before it, which its checkpoints store."""


@dataclass(eq=False, slots=True)
class RunCalls:
    """The calls of one run: which it made ready, and which it has started."""

    planned: set[str] = field(default_factory=set)
    """Ids of the calls made ready in this run, which no earlier run can have started."""
    started_tasks: set[str] = field(default_factory=set)
    """Ids of the calls whose task has started in this run."""
    started: set[str] = field(default_factory=set)
    """Ids of the calls started in this run."""
    answered_tasks: dict[str, int] = field(default_factory=dict)
    """Task id → number of answers with which this run continued it."""
    fingerprints: dict[int, tuple[Any, str, str]] = field(default_factory=dict)
    """Cache of `recent_calls`."""

    @property
    def untouched(self) -> list[str]:
        """Ids of the calls made ready whose task has not started."""
        return sorted(self.planned - self.started_tasks)

    def plan(self, ids: Iterable[str]) -> None:
        """Record calls as made ready in this run; a call may have the id of an earlier one."""
        new = set(ids)
        self.planned |= new
        self.started_tasks -= new
        self.started -= new


@dataclass(eq=False, repr=False)
class Run:
    """One run of an agent's graph, from its entry point to its end.

    What a run is, what stops it, and which calls it has are groups of their own; a function takes the group it needs.
    """

    identity: RunIdentity = field(default_factory=RunIdentity)
    parent: Run | RunHandle | None = None
    """The run that contains this one as a delegate or a subgraph, or its handle; its abort applies to this run too."""
    readership: InitVar[ConsumerTracker | None] = None
    """State of the run's stream; see `RunStop`."""
    calls: RunCalls = field(default_factory=RunCalls)
    inbox: Inbox | None = None
    """The session's inbox; None for a run without a session."""
    has_read_inbox: bool = False
    """Whether the inbox was read. The first read removes notes that the stored state has processed."""
    deferred: DeferredWrites | None = None
    """Its queued writes; None if each write is committed at once."""
    stored_lists: tuple[str, Mapping[str, list[Any]]] | None = None
    """Id of the newest checkpoint that it stores, and its lists by channel; None before the first."""
    is_unobserved: bool = False
    """Whether it stores nothing, and its caller does not see which node wrote what; tracers may."""
    updates_only: bool = False
    """Whether it locks the session for `update_state` only, and runs no node."""
    answering: bool = False
    """Whether neither a model request nor a call is next, but the reading of a reply, or the answer."""
    observed: Any = None
    """What the observer of this process has recorded of it; None if there is none."""
    cause: BaseException | None = None
    """The exception behind the newest failure of this run; None if there is none."""
    failure: RunFailedError | None = None
    """The error to raise at the run's end; None if there is none."""
    ended: Future[None] = field(default_factory=Future)
    """Done when the session is free for its next run."""
    _shared: dict[str, asyncio.Future[Any]] = field(default_factory=dict)
    _held: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self, readership: ConsumerTracker | None) -> None:
        self.fence = CheckpointFence(self.identity.id)
        """Refuses its writes when another run has continued the session."""
        outer: RunStop | None = self.parent.stop if isinstance(self.parent, Run) else self.parent
        self.stop: RunStop = RunStop(outer, self.fence, readership)

    async def once(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return a value that several tasks of this run need, computed at the first request; no caller cancels it."""
        if key not in self._shared:
            self._shared[key] = asyncio.ensure_future(make())
        value: T = await asyncio.shield(self._shared[key])
        return value

    def shared(self, key: str, make: Callable[[], T]) -> T:
        """Return an object that several tasks of this run share, made at the first request."""
        if key not in self._held:
            self._held[key] = make()
        held: T = self._held[key]
        return held

    def release(self) -> None:
        """Drop the objects that its tasks share; the run has ended.

        Cancelled timers, such as that of the model's timeout, keep the context of a run until they are due.
        """
        self._held.clear()
        self._shared.clear()
        self.stored_lists = None

    def record_cause(self, error: BaseException) -> None:
        """Record the exception that fails the input; for an error of a hook, the hook's own exception."""
        self.cause = error.__cause__ if isinstance(error, HookError) and error.__cause__ is not None else error


@dataclass(eq=False, repr=False)
class RunHandle(RunStop):
    """Parent of one run, passed by a program in its `AgentHandle` to abort the run and to hook into it.

    Runs nested in that run, such as a delegate's, do not inherit the hooks.
    """

    surrounding: Run | RunHandle | None = None
    """The run in which the program starts this one, and whose stop is `parent`; None outside of any."""
    mark: InputId | None = None
    """The id of the run's input; None for an input without an id."""
    warnings: tuple[str, ...] = ()
    """Faults of the request that the run answers; see `RunIdentity`."""
    brought: tuple[ControlMessage, ...] = ()
    """Notes for the session, added once the run has its lock; dropped if the run is refused."""
    before: Callable[[], Awaitable[None]] | None = None
    """Awaited when the run has its session's lock, before it begins; an exception replaces the run."""
    begun: Callable[[int, Sequence[StoredEvent]], None] | None = None
    """Called before a model is asked for a plan, with the first events of the superstep, which are not stored yet, and
    the index of the first of them; None for no reader."""
    forwarder: Forwarder | None = None
    """Builds the watch that forwards a reply to a reader outside the graph's stream; None for no reader."""
    after: Callable[[Run], Awaitable[None]] | None = None
    """Awaited with the run after it has ended, while no other run of the session can begin."""
    continues_at: str | None = None
    """Id of the earlier checkpoint from which the run continues its input; None for the newest checkpoint."""


@asynccontextmanager
async def observed(run: Run, name: str) -> AsyncIterator[None]:
    """Report a run of the named agent to the observer of this process, if there is one."""
    if telemetry.observer is None:
        yield
        return
    with telemetry.observer.run(run, name):
        yield


def fence_of(config: RunnableConfig) -> CheckpointFence | None:
    """Return the fence of the run that a saver request belongs to; None if it belongs to no agent's run."""
    run = handle_of(config["configurable"]).run
    return run.fence if run is not None else None


def deferred_of(config: RunnableConfig) -> DeferredWrites | None:
    """Return the queued writes of the run that a saver request belongs to; None if the request must not be deferred."""
    configurable = config["configurable"]
    run = handle_of(configurable).run
    if run is None or run.deferred is None:
        return None
    is_own = configurable.get("checkpoint_ns", "") == run.deferred.namespace
    return run.deferred if is_own or not inherits_durability(configurable, "sync") else None


def is_running(config: RunnableConfig) -> bool:
    """Whether a config belongs to a run; False for `update_state`."""
    run = handle_of(config["configurable"]).run
    return run is not None and not run.updates_only


def run_of(config: RunnableConfig) -> Run:
    """Return the run a node belongs to; a new one for a node that is called outside a compiled agent."""
    return handle_of(config["configurable"]).run or Run()


class AnsweringControl(RunControl):
    """A caller's control of a run, which lets the run end if its calls are done and `finalize` is next.

    Otherwise a run whose answer has been streamed would be stopped before the answer is stored.
    """

    __slots__ = ("_control", "_run")

    def __init__(self, control: RunControl, run: Run) -> None:
        super().__init__()
        self._control = control
        self._run = run

    def request_drain(self, reason: str = "shutdown") -> None:
        """Request the drain of the caller's control."""
        self._control.request_drain(reason)

    @property
    def drain_requested(self) -> bool:
        """Whether the run stops before its next task."""
        return self._control.drain_requested and not self._run.answering

    @property
    def drain_reason(self) -> str | None:
        """The reason of the caller's request; None without one."""
        return self._control.drain_reason
