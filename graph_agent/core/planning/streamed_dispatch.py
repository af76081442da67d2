"""Starts the calls of a planning reply as soon as each is complete in the stream and has the results that it needs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakMethod

from graph_agent.base._internal.text import NotFiniteError, to_json_safe
from graph_agent.base.types import Call
from graph_agent.base.waves.references import BadReferenceError, referenced_ids, resolve
from graph_agent.core.execution.overlap.early_calls import NO_VALUE, EarlyCall, EarlyCalls, equality_key
from graph_agent.core.execution.overlap.streamed_calls import StreamedCalls
from graph_agent.models.chunk_listener import chunk_listener
from graph_agent.models.client import Mode
from graph_agent.models.wire.parsing.calls import parse_tool_calls

T = TypeVar("T")
WAITS: Any = object()
"""Stands for a call that waits for the result of another one."""


class StreamedDispatch:
    """The early calls of the replies to one planning request; implements `CallReceiver`.

    A reply may be repeated, after a failure or because its plan is invalid. Calls that a former reply has begun serve
    the equal calls of the next one.

    Args:
        calls: Holds the early calls.
        start: Begins a call early; returns None if it must wait for the plan.
        writes: Whether the tool of a name may write.
        earlier_results: Returns the results of the input's earlier plans, by plan id.
        most: Maximum calls that begin.
    """

    def __init__(
        self,
        calls: EarlyCalls,
        start: Callable[[Call], EarlyCall | None],
        writes: Callable[[str], bool],
        earlier_results: Callable[[], Mapping[str, Any]],
        most: int,
    ) -> None:
        self._calls = calls
        self._start = start
        self._writes = writes
        self._earlier_results = earlier_results
        self._left = most
        self.begin()
        # The calls that wait keep this object alive; a cycle would keep the history after the run.
        calls.on_next_plan = WeakMethod(self.begin)

    async def during(self, request: Awaitable[T], mode: Mode, tools: Sequence[str]) -> T:
        """Await a planning request, and begin calls of its replies while they are streamed.

        Calls that wait for results of early calls may also begin after this returns, until the next plan is requested.
        If the request fails, the waiting calls are forgotten; early calls that have begun go on.

        Args:
            request: The request, with its repairs.
            mode: The form of the calls in its replies.
            tools: Names of the tools.

        Raises:
            BaseException: What the request raises.
        """
        token = chunk_listener.set(StreamedCalls(self, mode, partial(parse_tool_calls, tools=[*tools])))
        try:
            return await request
        except BaseException:
            self.begin()
            raise
        finally:
            chunk_listener.reset(token)

    def begin(self) -> None:
        """Begin a new reply: forget the calls of the last one. Early calls that have begun go on, and serve equal calls
        of this reply.
        """
        self._seen = Counter[str]()
        """Tool and arguments → number of such calls in the reply."""
        self._waiting: list[Call] = []
        """Calls of a structured plan that wait for results of others, in the order of the plan."""
        self._of_plan: dict[str, EarlyCall | None] = {}
        """Plan id → the early call; None for a call that does not begin early."""
        self._ids: set[str] = set()
        """Plan ids of the calls of the reply so far."""
        self._has_write = False

    def receive(self, call: Call) -> None:
        """Begin a native call, or one in text, unless it must wait for the plan; such a call needs no other one."""
        self._begin(call)

    def receive_planned(self, call: Call) -> None:
        """Receive a call of a structured plan, whose arguments may have references, and begin each waiting call whose
        needs are met now.
        """
        self._has_write = self._has_write or self._writes(call["name"])
        self._ids.add(call["id"])
        self._waiting.append(call)
        self._advance()

    def _begin(self, call: Call) -> EarlyCall | None:
        """Return the early call that serves a call of the reply: one that has begun, or a new one; None if the call
        must wait for the plan.

        At most `most` calls begin.
        """
        key = equality_key(call)
        self._seen[key] += 1
        # An equal call may have begun in a former reply, or for another reason.
        equal = self._calls.equal_to(call)
        if self._seen[key] <= len(equal):
            return equal[self._seen[key] - 1]
        early = self._start(call) if self._left > 0 else None
        self._left -= early is not None
        return early

    def _advance(self) -> None:
        """Begin the waiting calls whose needs are met, in the order of the plan; the others go on waiting. A call that
        can never begin early, because a value that it needs will not be there, is recorded as such.

        When a begun call ends, the waiting calls are checked again.
        """
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if (result := self._resolved(call)) is WAITS:
                self._waiting.append(call)
                continue
            early = self._of_plan[call["id"]] = None if result is None else self._begin(result)
            if early is not None:
                early.task.add_done_callback(self._look)

    def _look(self, task: asyncio.Task[Any]) -> None:
        """Begin the calls that have waited for a call which has ended."""
        if any(early is not None and early.task is task for early in self._of_plan.values()):
            self._advance()

    def _resolved(self, call: Call) -> Any:
        """Return a call with the results in place of its references; `WAITS` if a result is not there yet; None if the
        call cannot begin early.

        It cannot if a reference is invalid, a needed result will not be there early or has a number that is not finite,
        or it needs a call of its own plan, of which a call so far may write.
        """
        try:
            needs = {*call.get("needs", ()), *referenced_ids(call["arguments"])}
            # Without overlap, such a call runs after all calls of the plan that need none, and may see what they wrote.
            if self._has_write and not needs.isdisjoint(self._ids):
                return None
            values = dict(self._values(needs))
            if any(value is NO_VALUE for value in values.values()):
                return None
            if len(values) < len(needs):
                return WAITS
            return {**call, "arguments": to_json_safe(resolve(call["arguments"], values), finite=True)}
        except (BadReferenceError, NotFiniteError):
            return None

    def _values(self, needs: set[str]) -> Iterator[tuple[str, Any]]:
        """Yield plan id → result for the results that a call needs and that are there; `NO_VALUE` in place of a result
        that will not be there early.
        """
        for need in needs:
            if need in self._of_plan:
                early = self._of_plan[need]
                if early is None or early.task.done():
                    yield need, NO_VALUE if early is None else early.value()
            elif need not in self._ids and need in (earlier := self._earlier_results()):
                yield need, earlier[need]
