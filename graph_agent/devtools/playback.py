"""Plays a script: gives its replies, results, steering and stops in their places.

This is the only playback. A replay, the fixture `recorded`, and exported tests play their recordings with it. A fault
is a request of the model, or a call, for which the script has nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from unittest.mock import patch

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt, interrupt

from graph_agent.base.approvals.requests import HeldCall, calls_of_request, request_of
from graph_agent.base.calls import canonical_arguments
from graph_agent.base.errors import RunFailedError, ScriptError
from graph_agent.base.history.events import StoredEvent
from graph_agent.core.extensions.output import StopCause
from graph_agent.devtools.json_values import shown_values, value_differences
from graph_agent.devtools.recording import RecordedResult
from graph_agent.devtools.script import Failure, Reply, ReplyContent, Result, Script, Steering, Stop
from graph_agent.session.results import Done, EventAdded, Part, RunResult
from graph_agent.session.session import Session

_READY_S = 5.0
"""Seconds to wait for an event or a result that is already on its way."""
_SLOWER = 50
"""Times that the clock of an input with a deadline is slower than the real one."""
_FAR_S = 1e6
"""Seconds after any deadline."""
_Key = tuple[str, str]
"""Name and canonical arguments."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A request of the model, or a call, for which the script has nothing."""

    text: str
    """What is missing, in one sentence."""
    call: str = ""
    """Id of the call; empty for a request."""
    name: str = ""
    """Name of the tool or delegate; empty for a request."""
    arguments: Mapping[str, Any] | None = None
    """The arguments of the call; None for a request."""
    tool: BaseTool | None = None
    """The tool of the call; None for a delegation or a request."""


class Playback:
    """Plays scripts in place of the models and the calls of a session.

    `play` runs an input, and stops it at a fault. Where a test runs the inputs itself, a fault raises `ScriptError`
    from its request or call, and from each later request. `script` is the first script; None for an empty one.
    """

    def __init__(self, script: Script | None = None) -> None:
        self.load(script or Script(), None)

    def load(self, script: Script, session: Session | None, *, step: int = 0, runs_reading_tools: bool = False) -> None:
        """Load a script in place of the one before, and forget the state of that one.

        Args:
            script: The script.
            session: The session that `play` runs; None where a test runs, steers and aborts the inputs.
            step: Number of the steps before the first one of the script.
            runs_reading_tools: Whether a tool marked as reading runs for a call without a recorded result.
        """
        self._runs_reading_tools = runs_reading_tools
        self._script, self.session, self._at, self._first = script, session, 0, step
        self._ended_by: Stop | Failure | None = None
        """The newest stop or failure of the input; it counts for further requests, too."""
        self._calls = RecordedCalls(script.results)
        self._repeats = 0
        """Number of further requests of the same node that the newest reply answers, too."""
        self._task = ""
        """The task of the graph that made the newest request."""
        self._newest = AIMessage("")
        self.step = step
        """Number of the newest step that was requested."""
        self.fault: Fault | None = None
        """The first fault."""
        self.waits_for = ""
        """Name of a call that waits because its result is not recorded; empty if there is none."""
        self._halted: asyncio.Future[Fault] | None = None
        """Set at the first fault while `play` runs an input; None where a test does."""
        self._started: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Call id → set once an event has named the call."""
        self._began, self._ahead_s = time.monotonic(), 0.0
        self._has_clock = False

    def clock(self) -> AbstractContextManager[Any]:
        """Return a context manager in which the monotonic clock shows the recorded times, so that deadlines are
        repeated.

        Within it, `time.monotonic` is patched for the whole process. If the script has no times, it does nothing.
        """
        if all(getattr(each, "at_s", None) is None for each in (*self._script.items, *self._script.results)):
            return nullcontext()
        self._has_clock = True
        read, start = time.monotonic, time.monotonic()
        # A slow machine must not reach the deadline before the recorded time.
        return patch.object(time, "monotonic", lambda: start + (read() - start) / _SLOWER + self._ahead_s)

    @property
    def left(self) -> list[Reply | Steering | Failure]:
        """The items that were not played; stops do not count, as they may not be needed."""
        return [item for item in self._script.items[self._at :] if not isinstance(item, Stop)]

    @property
    def _item(self) -> Reply | Steering | Stop | Failure | None:
        """The next item; None at the end."""
        return self._script.items[self._at] if self._at < len(self._script.items) else None

    async def play(
        self,
        contents: Sequence[ReplyContent],
        decide: Callable[[HeldCall], Any],
        on_event: Callable[[StoredEvent], Awaitable[bool]] | None = None,
        *,
        resumes: bool = False,
    ) -> Sequence[Interrupt]:
        """Run one input to its end, to its first fault (see `fault`), or until it waits for a person.

        A failure of the run is not raised; the status of the session shows it. At a fault the run is cancelled, and
        nothing is returned.

        Args:
            contents: The user's messages.
            decide: Returns the decision on a call that waits for approval; None if there is none.
            on_event: Receives each event, and ends the input by returning True; None to run without a stream.
            resumes: Whether to resume the session in place of the input.

        Returns:
            The interrupts without a decision, at which the input waits; empty if it has ended.
        """
        assert self.session is not None, "use it in a `with` statement"
        # The run ends here at a fault, where a request waits for a reply that does not come.
        self._halted = asyncio.get_running_loop().create_future()
        driving = asyncio.create_task(self._drive(self.session, contents, decide, on_event, resumes=resumes))
        futures: set[asyncio.Future[Any]] = {driving, self._halted}
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if not self._halted.done():
            return await driving
        if on_event is not None and (call := self._halted.result().call):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._started[call].wait(), _READY_S)
        driving.cancel()
        with suppress(asyncio.CancelledError):
            await driving
        return ()

    async def _drive(
        self,
        session: Session,
        contents: Sequence[ReplyContent],
        decide: Callable[[HeldCall], Any],
        on_event: Callable[[StoredEvent], Awaitable[bool]] | None,
        *,
        resumes: bool,
    ) -> Sequence[Interrupt]:
        """Run the input, or with `resumes` resume the session, and answer interrupts with `decide`, until it ends or
        waits.

        Returns the open interrupts, which wait for a person; empty if the input has ended, failed, or `on_event` has
        ended it. With `on_event` None, the run is not streamed. The results of the script are available again.
        """
        self._calls, self.step, self._began = RecordedCalls(self._script.results), self._first, time.monotonic()
        self._ended_by = None
        await self._steer()
        given: Any = None if resumes else [HumanMessage(content) for content in contents]
        ended: RunResult | None
        try:
            while True:
                if on_event is None:
                    ended = await (session.resume(given) if resumes else session.run(given))
                else:
                    parts = session.stream_resume(given) if resumes else session.stream(given)
                    ended = await self._last_of(parts, on_event)
                if ended is None or not (given := _answers(ended.interrupts, decide)):
                    return () if ended is None else ended.interrupts
                resumes = True
        except RunFailedError:
            return ()  # the status of the session is the outcome

    async def _last_of(
        self, parts: AsyncGenerator[Part], on_event: Callable[[StoredEvent], Awaitable[bool]]
    ) -> RunResult | None:
        """Consume the parts of an input's stream, and return its result.

        Events are passed to `on_event`. None, and the stream is closed, if that returns True; None also for a stream
        without a result.
        """
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, EventAdded):
                    entry: StoredEvent = dict(part.event)
                    self._started[str(entry.get("id", ""))].set()
                    if await on_event(entry):
                        return None
                elif isinstance(part, Done):
                    return part.result
        return None

    async def reply(self) -> AIMessage:
        """Return the next reply of the script, to a request of the model; called within a run.

        If the recording lacks the replies to requests that a hook repeated in one node, the next reply is returned for
        each of them. After the last item, a stop or a repeated failure applies again; without one, the request is a
        fault. The steering after the reply is sent. At a stop, the input is aborted, or the deadline is waited for, and
        the call never returns. Raises the error of a recorded failure. At a fault it raises `ScriptError` if a test
        runs the inputs itself; if `play` runs them, it waits to be cancelled.
        """
        task, self._task = self._task, str(get_config()["configurable"].get("checkpoint_ns", ""))
        if self._repeats and task == self._task:  # a hook asks again; its first reply is not recorded
            self._repeats -= 1
            return self._newest
        if self.fault is not None:
            await self._halt(self.fault)
        item = self._item
        if item is None or (isinstance(self._ended_by, Failure) and self._ended_by.repeats):
            item = replace(self._ended_by, at_s=None) if isinstance(self._ended_by, Stop) else self._ended_by
        else:
            self._at += 1
        match item:
            case Reply():
                self.step = self.step + 1 if item.step is None else max(self.step, item.step)
                self._newest, self._repeats = item.message, item.repeats
                self._pass_time(item.at_s)
                await self._steer()
                return self._newest
            case Stop() if item.cause == "abort" or self._has_clock:
                self._ended_by = item
                await self._stop(item.cause, item.at_s)
            case Failure():
                self._ended_by = item
                raise item.error
        return await self._halt(Fault("The model is asked for a reply that is not recorded."))

    async def _steer(self) -> None:
        """Send the steering messages that come next in the script."""
        while isinstance(item := self._item, Steering):
            self._at += 1
            if self.session is not None:
                await self.session.steer(item.text)

    async def _stop(self, cause: StopCause, at_s: float | None) -> NoReturn:
        """Abort the input, or set the clock past the deadline, and wait to be cancelled; never returns.

        `at_s` is the time of a stop by the deadline, in seconds since the input began; None for a time beyond any
        deadline.
        """
        if cause == "abort":
            assert self.session is not None
            await self.session.abort()
        else:
            # A script that a test wrote need not state a time; any deadline has passed then.
            self._pass_time(_FAR_S if at_s is None else at_s)
        await asyncio.Event().wait()  # the abort or the deadline cancels this run
        raise AssertionError

    async def _halt(self, fault: Fault) -> NoReturn:
        """Record a fault, unless one is recorded, and wait to be cancelled by `play`.

        Raises `ScriptError` with the text of `fault` where a test runs the inputs.
        """
        self.fault = self.fault or fault
        if self._halted is None:
            raise ScriptError(fault.text)
        if not self._halted.done():
            self._halted.set_result(fault)
        await asyncio.Event().wait()  # `play` cancels this run
        raise AssertionError

    def _pass_time(self, at_s: float | None) -> None:
        """Set the patched clock forward to a time since the input began; None for no change."""
        if at_s is not None:
            self._ahead_s += max(0.0, self._began + at_s - time.monotonic())

    async def result(
        self, id_: str, name: str, arguments: Mapping[str, Any], tool: BaseTool | None
    ) -> RecordedResult | None:
        """Return the recorded result of a call; None if the tool itself may run.

        For a call that asked a person, it interrupts the graph with the same questions; for one that was stopped, it
        stops the input. At a fault it waits to be cancelled, or raises `ScriptError` where a test runs the inputs
        itself.

        Args:
            id_: Id of the call.
            name: Name of the tool, or `delegate_to_<name>`.
            arguments: The arguments, as the model sent them.
            tool: The tool; None for a delegation.
        """
        if (found := self._calls.take(id_, name, arguments)) is None:
            if self._runs_reading_tools and tool is not None and (tool.metadata or {}).get("effect") == "read":
                return None
            await self._halt(Fault(self._missing(id_, name, arguments), id_, name, arguments, tool))
        if self.session is not None and (found.stops == "abort" or (found.stops is not None and self._has_clock)):
            await self._until_others_end(self.session, id_)
            await self._stop(found.stops, found.at_s)
        self._pass_time(found.at_s)
        try:
            for question in found.questions:
                interrupt(question)
            if found.waits:
                self.waits_for = name
                interrupt(f"The recording has no result of {name}.")
        except GraphInterrupt:
            # After the answer, LangGraph runs the node again, which then asks for the result again.
            self._calls.put_back(found)
            raise
        return found.result

    async def _until_others_end(self, session: Session, id_: str) -> None:
        """Wait until all other calls with a recorded result are finished, before the call `id_` is stopped.

        Without an error, gives up after `_READY_S` seconds.
        """
        others = {each.id for each in self._script.results if each.stops is None and not each.waits} - {id_}
        # The clock of `asyncio` may be the recorded one.
        until, states = time.perf_counter() + _READY_S, dict[str, str]()
        while time.perf_counter() < until:
            states = {call.id: call.state for call in await session.calls()}
            if id_ in states and all(state == "finished" for id_, state in states.items() if id_ in others):
                return
            await asyncio.sleep(0)

    def _missing(self, id_: str, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a sentence on a call without a recorded result.

        It names the first argument in which the most similar recorded call differs, or that the result was used before.
        """
        near = [each for each in self._script.results if each.name == name]
        # Most likely, the call of the same id has changed, or one whose result no other call has taken.
        near.sort(key=lambda each: (each.id != id_, not self._calls.is_left(each)))
        if not near:
            return f"Step {self.step}, call {id_!r} ({name}): no result of {name} is recorded."
        place = f"Step {near[0].step}, call {id_!r} ({name})"
        found = next(value_differences(near[0].arguments, arguments, "$.arguments"), None)
        if found is None:
            return f"{place}: its recorded result was used before."
        recorded, now = shown_values(found.recorded, found.now)
        return f"{place} {found.path}: the recorded result is for {recorded}, and the call has {now}."


def _answers(interrupts: Sequence[Interrupt], decide: Callable[[HeldCall], Any]) -> dict[str, Any]:
    """Return interrupt id → answer to it, for `resume`; empty if `decide` has no decision at all.

    An answer has the decisions on those calls for which `decide` returns one. Interrupts without any decision are left
    out.
    """
    found: dict[str, Any] = {}
    for each in interrupts:
        given = {call["id"]: decision for call in asked_calls(each) if (decision := decide(call)) is not None}
        if given:
            found[each.id] = {"decisions": given}
    return found


def asked_calls(asked: Interrupt) -> Sequence[HeldCall]:
    """Return the calls that an interrupt asks a person to approve; empty if it asks another question."""
    request = request_of(asked)
    return calls_of_request(request) if request is not None else []


class RecordedCalls:
    """Finds the results of calls by name and arguments. Each is found once, but again for a call that middleware
    repeats.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self._left: dict[_Key, list[Result]] = defaultdict(list)
        self._found: dict[tuple[str, _Key], Result] = {}
        for each in results:
            self._left[_key(each)].append(each)

    def take(self, id_: str, name: str, arguments: Mapping[str, Any]) -> Result | None:
        """Return the result of the call with equal name and arguments; None if none is left.

        A result for the same id comes first, then one that this call received before, then any other.
        """
        key = name, canonical_arguments(arguments)
        fitting = self._left[key]
        same_id = next((each for each in fitting if each.id == id_), None)
        found = same_id or self._found.get((id_, key)) or next(iter(fitting), None)
        if found is not None:
            self._found[id_, key] = found
        if found in fitting:
            fitting.remove(found)
        return found

    def put_back(self, taken: Result) -> None:
        """Make a result that was taken available again, before others with equal arguments."""
        self._left[_key(taken)].insert(0, taken)

    def is_left(self, each: Result) -> bool:
        """Whether a result was not taken yet."""
        return each in self._left[_key(each)]


def _key(each: Result) -> _Key:
    """Return name and canonical arguments of a result, by which it is found."""
    return each.name, canonical_arguments(each.arguments)
