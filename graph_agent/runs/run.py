"""A run under way: what can stop it, what it hears, and how long it has worked."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
from langchain_core.runnables import RunnableConfig

from graph_agent._internal.closing_stream import Readership
from graph_agent._internal.sync_bridge import from_thread
from graph_agent.errors import RunFailedError
from graph_agent.models.stream_watch import Reader
from graph_agent.runs.checkpoint_fence import CheckpointFence
from graph_agent.runs.inbox import Inbox, MemoryInbox, Note

T = TypeVar("T")

RUN = "__graph_agent_run"
"""Key of the `Run` in a run's `configurable`. What begins with two underscores stays out of checkpoints and traces."""


READERSHIP = "__graph_agent_readership"
"""Key of the `Readership` of a run's stream in its `configurable`."""


@dataclass(eq=False)
class Run:
    """One run of an agent's graph, from its entry point to its end. Any thread may use it."""

    inbox: Inbox = field(default_factory=MemoryInbox)
    """What is said to the session."""
    session_id: str = ""
    """The session; empty for a run that keeps nothing."""
    parent: Run | None = None
    """The run this one is part of, as a delegate or a subgraph; its abort is this one's too."""
    reader: Reader | None = None
    """Who reads the answer as it comes, past the graph's stream; None for nobody."""
    readership: Readership | None = None
    """Of the run's stream; None where the run has none, or it is not known."""
    ended: Future[None] = field(default_factory=Future)
    """Done when the session is free for its next run."""
    task: asyncio.Task[Any] | None = None
    """The task whose cancellation ends it; None where there is none."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_ns: int = field(default_factory=time.time_ns)
    """Wall clock, to tell notes sent to it from those it found when it first read its inbox."""
    planned: set[str] = field(default_factory=set)
    """Ids of the calls made ready in this very run, which no run before it can have begun."""
    taken_up: set[str] = field(default_factory=set)
    """Ids of the calls whose task has started in this run."""
    begun: set[str] = field(default_factory=set)
    """Ids of the calls begun in this run."""
    has_listened: bool = False
    """Whether its inbox has been read: the state it began with is stored, so what that had taken in can go."""
    cause: BaseException | None = None
    """What the newest failure of this run came from; None for no exception."""
    failure: RunFailedError | None = None
    """What is raised at the run's end; None for nothing."""
    fingerprints: dict[int, tuple[Any, str, str]] = field(default_factory=dict)
    """What `recent_calls` remembers of the calls it has read."""
    confirm_lock: Callable[[], Future[None]] | None = None
    """Verifies that the session's lock is held where it can be lost; None where it cannot."""
    _old_aborts: frozenset[str] | None = None
    _stopped: bool = False
    _children: set[Run] = field(default_factory=set)
    _scopes: dict[anyio.CancelScope, asyncio.AbstractEventLoop] = field(default_factory=dict)
    _shared: dict[str, asyncio.Future[Any]] = field(default_factory=dict)
    _held: dict[str, Any] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    updates_only: bool = False
    """Whether it holds the session for an update of its state from outside, and runs no node."""
    _worked_s: float | None = None
    _since: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - looked up then, so that a test can set the clock

    def __post_init__(self) -> None:
        self.fence = CheckpointFence(self.id)
        """Refuses its writes when another run has continued the session."""

    def plan_calls(self, ids: Iterable[str]) -> None:
        """Take calls for made ready in this run; a model may give them the ids of calls that it made before."""
        new = set(ids)
        self.planned |= new
        self.taken_up -= new
        self.begun -= new

    @property
    def untouched(self) -> list[str]:
        """Ids of the calls made ready whose task has not started."""
        return sorted(self.planned - self.taken_up)

    @property
    def aborted(self) -> bool:
        """Whether somebody has stopped it."""
        return self._stopped or (self.parent is not None and self.parent.aborted)

    @property
    def is_ending(self) -> bool:
        """Whether it ends by itself soon: it was stopped or cancelled, or nobody reads its stream any more."""
        cancelled = self.task is not None and self.task.cancelling() > 0
        return cancelled or self.aborted or (self.readership is not None and self.readership.is_left)

    def abort(self) -> None:
        """Stop it: whatever works for it now is cancelled, and nothing more is begun."""
        with self._guard:
            self._stopped = True
            scopes, children = dict(self._scopes), set(self._children)
        for scope, loop in scopes.items():
            # A loop that is closed has nothing left to cancel.
            if not loop.is_closed():
                loop.call_soon_threadsafe(scope.cancel)
        for child in children:
            child.abort()

    def lose(self, why: str) -> None:
        """Stop it because its process no longer holds the session: work is cancelled, and nothing more is stored.

        Args:
            why: A sentence for the person whose input it was.
        """
        self.fence.close(why)
        self.abort()

    def check_held(self) -> None:
        """Check that its process holds the session, as far as is known here.

        Raises:
            SessionLostError: When it does not.
        """
        self.fence.check_open()
        if self.parent is not None:
            self.parent.check_held()

    async def confirm_held(self) -> None:
        """As `check_held`, after a look at the lock itself where its state may be outdated, as after a long pause."""
        run: Run | None = self
        while run is not None:
            if run.confirm_lock is not None:
                await from_thread(run.confirm_lock())
            run = run.parent
        self.check_held()

    def obey(self, notes: Iterable[Note]) -> list[str]:
        """Stop when a note asks for it that was sent to this run.

        What the first look finds from before the run's start was meant for another; every later one counts, whatever
        its sender's clock says.

        Args:
            notes: Its inbox as it is.

        Returns:
            Keys of the aborts among them, which have done what they can.
        """
        aborts = {note.key: note for note in notes if note.kind == "abort"}
        if self._old_aborts is None:
            self._old_aborts = frozenset(key for key, note in aborts.items() if note.sent_ns < self.started_ns)
        if aborts.keys() - self._old_aborts:
            self.abort()
        return list(aborts)

    def interruptible(self, seconds: float | None = None) -> AbstractContextManager[anyio.CancelScope]:
        """A scope that an abort cancels, and so does the end of its time.

        The scope swallows the cancellation: `cancelled_caught` says that the work inside was cut short.

        Args:
            seconds: How long the work may take; None for no limit.
        """
        return _Interruptible(self, seconds)

    @contextmanager
    def under(self) -> Iterator[None]:
        """While this run is part of its parent, an abort of the parent reaches it."""
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

    async def once(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """What several tasks of this run need, made for the first that asks.

        Args:
            key: What it is.
            make: Makes it; a caller that is cancelled does not cancel it for the others.
        """
        if key not in self._shared:
            self._shared[key] = asyncio.ensure_future(make())
        made: T = await asyncio.shield(self._shared[key])
        return made

    def shared(self, key: str, make: Callable[[], T]) -> T:
        """What several tasks of this run use together, made for the first that asks.

        Args:
            key: What it is.
            make: Makes it.
        """
        if key not in self._held:
            self._held[key] = make()
        held: T = self._held[key]
        return held

    def begin_input(self) -> None:
        """Count the time of a new input from now."""
        self._worked_s, self._since = 0.0, time.monotonic()

    def worked_s(self, before_s: float) -> float:
        """Seconds that this input has been worked on, without the time the session stood still.

        Args:
            before_s: What the state has noted of earlier runs of the same input.
        """
        if self._worked_s is None:
            self._worked_s = before_s
        return self._worked_s + time.monotonic() - self._since


@dataclass(eq=False)
class Around(Run):
    """What a program puts around one run that it begins, to stop it and to go with it; as `RUN` in its `configurable`.

    What is begun within that run, such as a delegate's, gets nothing of it.
    """

    brought: tuple[Note, ...] = ()
    """Notes for the session: said once the run has it, and never where it is refused."""
    before: Callable[[], Awaitable[None]] | None = None
    """Awaited when the run has its session, before it begins; what it raises is raised in place of the run."""
    after: Callable[[Run], Awaitable[None]] | None = None
    """Awaited with the run when it has come to its end, while no other run of the session can begin."""


class _Interruptible:
    # A class, as every node of every run passes through it, and a generator takes twice as long.
    __slots__ = ("_run", "_scope")

    def __init__(self, run: Run, seconds: float | None) -> None:
        self._run = run
        deadline = math.inf if seconds is None else anyio.current_time() + seconds
        self._scope = anyio.CancelScope(deadline=deadline)

    def __enter__(self) -> anyio.CancelScope:
        scope, run = self._scope.__enter__(), self._run
        with run._guard:
            run._scopes[scope] = asyncio.get_running_loop()
        if run.aborted:
            scope.cancel()
        return scope

    def __exit__(self, *raised: Any) -> bool:
        with self._run._guard:
            self._run._scopes.pop(self._scope, None)
        swallowed = bool(self._scope.__exit__(*raised))
        if swallowed:
            self._run.check_held()
        return swallowed


def fence_of(config: RunnableConfig) -> CheckpointFence | None:
    """The fence of the run that a saver works for; None where no run of an agent is behind a request.

    Args:
        config: What the saver was given.
    """
    run = config["configurable"].get(RUN)
    return run.fence if isinstance(run, Run) else None


def is_running(config: RunnableConfig) -> bool:
    """Whether a config is that of a run; False for an update of the state from outside (`update_state`)."""
    run = config["configurable"].get(RUN)
    return isinstance(run, Run) and not run.updates_only


def run_of(config: RunnableConfig) -> Run:
    """The run a node belongs to; one of its own for a node that is called outside a compiled agent."""
    run = config["configurable"].get(RUN)
    return run if isinstance(run, Run) else Run()
