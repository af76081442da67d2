"""Runs calls before a plan asks for them, and holds their results until a call of a plan takes them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig

from graph_agent.base._compat.detached import detached
from graph_agent.base.calls import begin_call
from graph_agent.base.history.call_events import output_value
from graph_agent.base.history.plan_parts import SpeculationSource
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import Call, plan_id_of
from graph_agent.core.execution.overlap.rules import Proposal, reason_to_wait
from graph_agent.core.execution.overlap.speculation import Speculation
from graph_agent.core.extensions.invoke import ReturnValue, read_output, record_return_value
from graph_agent.core.extensions.toolbox import Toolbox
from graph_agent.core.state.run import Run
from graph_agent.models.chunk_listener import chunk_listener

NO_VALUE: Any = object()
"""Stands for the value of an early call that has not ended, has failed, or has a result that no reference can
insert."""


def early_calls_of(run: Run) -> EarlyCalls:
    """Return the `EarlyCalls` of a run; the first call for a run makes them."""
    return run.shared("early tool calls", lambda: EarlyCalls(run.identity.session_id))


class EarlyCalls:
    """The calls of one run that have begun before a plan asked for them, and whose results no call has taken yet.

    Args:
        session_id: The id of the run's session; empty without one.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._held: dict[str, list[EarlyCall]] = {}
        """Key of the tool and arguments → the early calls of them, oldest first."""
        self._after_writes: set[str] = set()
        """Plan ids of the calls of the newest plan that run after one that may write."""
        self.on_next_plan: Callable[[], Callable[[], None] | None] = lambda: None
        """Weak reference to a function that is called before the next plan is asked for.

        It returns None if that is gone.
        """
        self._slots: asyncio.Semaphore | None = None

    def start(
        self,
        call: Call,
        toolbox: Toolbox,
        config: RunnableConfig,
        settings: LoopConfig,
        speculation: Speculation,
        *,
        source: SpeculationSource,
        withheld: Container[str] = (),
    ) -> EarlyCall | None:
        """Begin a call before a plan asks for it, in a task of its own, unless it must wait for a plan that asks for
        it, or the budget has no room.

        Args:
            call: The call.
            toolbox: The agent's tools.
            config: The config of a task of the run.
            settings: The configuration of the run.
            speculation: Counts the call against the budget, and cancels it when the budget is used up or the input
                ends.
            source: The mechanism that proposes the call.
            withheld: Names of tools that may not run now.

        Returns:
            The early call, whose result the next call of the same tool and arguments takes; None if it has not begun.
        """
        if reason_to_wait(Proposal(call, toolbox, settings, withheld)) is not None or not speculation.has_room():
            return None
        self._slots = self._slots or asyncio.Semaphore(settings.max_parallel_calls)
        early = EarlyCall(call, toolbox, config, self._slots, self._session_id, speculation, source)
        self._held.setdefault(early.key, []).append(early)
        return early

    def begin_plan(self) -> None:
        """Cancel the early calls that earlier plans have not used, before the next plan is asked for, and call
        `on_next_plan`.

        A call that has run since may have changed what they read. Calls of a predicted plan stay.
        """
        if (on_next_plan := self.on_next_plan()) is not None:
            on_next_plan()
        self._drop(lambda early: early.source != "predicted")

    def take(self, call: Call) -> EarlyCall | None:
        """Return the oldest early call (begun before a plan asked for it) of the same tool and arguments that the
        budget has not cancelled, and remove it, so that no other call can take it.

        None if there is none, or if the call runs after one of its plan that may write.
        """
        held = () if plan_id_of(call) in self._after_writes else self._held.get(equality_key(call), ())
        while held:
            # The budget may have cancelled it.
            if (early := held.pop(0)).take(call["id"]):
                return early
        return None

    def equal_to(self, call: Call) -> Sequence[EarlyCall]:
        """Return the early calls (begun before a plan asked for them) of the same tool and arguments that no call has
        taken, oldest first.
        """
        return self._held.get(equality_key(call), ())

    def keep(self, calls: Sequence[Call], writes: Callable[[str], bool]) -> None:
        """Cancel the early calls that a plan does not have. Of equal early calls, as many stay as the plan has calls of
        this kind.

        The arguments of a call with needs are not known yet, so all early calls of its tool stay. A call that runs
        after one that may write takes no early result: the ids of such calls are recorded, and early calls for them are
        cancelled.

        Args:
            calls: The calls of the plan, each after those it needs.
            writes: Returns whether the tool of a name may write.
        """
        depths: dict[str, int] = {}
        for call in calls:
            needed = [depths[need] for need in call.get("needs", ()) if need in depths]
            depths[plan_id_of(call)] = 1 + max(needed, default=-1)
        first_write = min((depths[plan_id_of(call)] for call in calls if writes(call["name"])), default=len(calls))
        self._after_writes = {id_ for id_, depth in depths.items() if depth > first_write}
        open_ = [call for call in calls if plan_id_of(call) not in self._after_writes]
        wanted = Counter(equality_key(call) for call in open_)
        unknown = {call["name"] for call in open_ if call.get("needs")}
        seen = Counter[str]()

        def is_unwanted(early: EarlyCall) -> bool:
            seen[early.key] += 1
            return early.name not in unknown and seen[early.key] > wanted[early.key]

        self._drop(is_unwanted)

    def drop(self) -> None:
        """Cancel all early calls (those that no plan has asked for yet), and count them as of no use."""
        self._drop(lambda _: True)

    def _drop(self, is_unwanted: Callable[[EarlyCall], bool]) -> None:
        """Cancel and remove the early calls for which `is_unwanted` returns True.

        It is called once for each; equal calls in the order in which they began.
        """
        left: dict[str, list[EarlyCall]] = {}
        for key, held in self._held.items():
            for early in held:
                if is_unwanted(early):
                    early.drop()
                else:
                    left.setdefault(key, []).append(early)
        self._held = left


class EarlyCall:
    """A call that runs before a plan asks for it, in a task of its own; implements `SpeculativeWork`.

    Its tool cannot interrupt the run. What the tool writes to the custom stream is held back until a plan's call takes
    the result.
    """

    cost = 0.0
    """Cost of the call for the budget; always 0, because a tool reports none."""

    def __init__(
        self,
        call: Call,
        toolbox: Toolbox,
        config: RunnableConfig,
        slots: asyncio.Semaphore,
        session_id: str,
        speculation: Speculation,
        source: SpeculationSource,
    ) -> None:
        self.source: SpeculationSource = source
        self.name = call["name"]
        self.key = equality_key(call)
        self._call = call
        self._id = self._taken_by = call["id"]
        self._speculation = speculation
        self._written: list[Any] = []
        self.times: dict[str, float] = {}
        """`early_s` and `lead_s` of the event of the result; empty until the result is used."""
        self._given = ReturnValue()
        self._began = self._ended = 0.0
        own, context = detached(config, self._written.append)
        # A model that the tool asks is not the one whose reply is followed.
        context.run(chunk_listener.set, None)

        async def run() -> Any:
            async with slots:
                self._began = time.monotonic()
                check = toolbox.schema_checks.get(call["name"])
                # In a thread, because a schema of others may take long to check.
                if check is not None and (fault := await asyncio.to_thread(check, call["arguments"])):
                    raise ValueError(fault)
                record_return_value(self._given)
                begin_call(session_id, call, "early")
                try:
                    return await toolbox.invoker(call["name"])(call["arguments"], call["id"], own)
                finally:
                    self._ended = time.monotonic()

        self.task = asyncio.get_running_loop().create_task(run(), context=context)
        # Read here, because no caller needs the failure of a dropped call.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        speculation.begin(self)

    @property
    def ran_s(self) -> float:
        """Seconds for which the call has run so far; 0 while it waits for its turn."""
        return (self._ended or time.monotonic()) - self._began if self._began else 0.0

    def cancel(self) -> None:
        """Cancel the call if it has not ended."""
        self.task.cancel()

    def take(self, id_: str) -> bool:
        """Assign this early call to the plan's call with this id, so that the budget cannot cancel it any more.

        Returns False if the budget has cancelled it.
        """
        self._taken_by = id_
        return self._speculation.take(self)

    def value(self) -> Any:
        """Return the value of the result, in the form in which references of a structured plan insert it.

        `NO_VALUE` if the call has not ended or not succeeded.
        """
        if not self.task.done() or self.task.cancelled() or self.task.exception() is not None:
            return NO_VALUE
        output = read_output(self.task.result(), self._call, self._given)
        return output_value(output) if output.status == "success" else NO_VALUE

    def drop(self) -> None:
        """Cancel the call and count it as of no use; does nothing if it was taken or cancelled before."""
        if self._speculation.take(self):
            self._speculation.drop(self)

    async def output(self, given: ReturnValue, run: Callable[[], Awaitable[Any]], write: Callable[[Any], None]) -> Any:
        """Wait for the end of the early call, and return the tool's output for the plan's call that has taken it.

        If the early call failed or was cancelled, it counts as dropped, and the call is run again by `run`. Otherwise
        it counts as used, `times` is set, and a tool message gets the id of the plan's call. A cancellation of the
        caller cancels and drops it.

        Args:
            given: Receives the value that the tool has returned.
            run: Runs the call.
            write: Receives what the tool has written to the custom stream.
        """
        lead_s = time.monotonic() - self._began if self._began else 0.0
        times = {"early_s": round(self.ran_s, 6), "lead_s": round(lead_s, 6)}
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            self._speculation.drop(self)
            raise
        if self.task.cancelled() or self.task.exception() is not None:
            self._speculation.drop(self)
            return await run()
        self.times = times
        self._speculation.use(self)
        given.value, given.is_known, given.has_begun = self._given.value, self._given.is_known, self._given.has_begun
        for each in self._written:
            write(each)
        result = self.task.result()
        # LangChain puts the id of the call into a message that it makes of the output.
        is_own = isinstance(result, ToolMessage) and result.tool_call_id == self._id
        return result.model_copy(update={"tool_call_id": self._taken_by}) if is_own else result


def equality_key(call: Call) -> str:
    """Return a text that is equal for calls of the same tool and arguments, under any ids."""
    # Not by `canonical_arguments`, which ignores differences that a tool may see, such as white space around a text.
    return f"{call['name']} {json.dumps(call['arguments'], sort_keys=True, default=repr)}"
