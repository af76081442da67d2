"""Runs calls before their plan is whole, and holds their results until a call of the plan takes them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeVar

from langchain_core.runnables import RunnableConfig

from graph_agent.base._compat.detached import detached
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.calls import current_call
from graph_agent.base.settings.config import LoopConfig
from graph_agent.base.types import Call
from graph_agent.core.overlap.streamed_calls import StreamedCalls
from graph_agent.core.runs.run import Run
from graph_agent.core.state.plan_parts import EarlyCallCounts
from graph_agent.core.tools.invoke import ReturnValue, recorded_return_value
from graph_agent.core.tools.toolbox import Toolbox
from graph_agent.models.chunk_listener import chunk_listener

logger = get_logger("graph_agent.overlap")


class HasCalls(Protocol):
    """A plan."""

    @property
    def calls(self) -> Sequence[Call]:
        """Its calls."""
        ...


P = TypeVar("P", bound=HasCalls)


def early_calls_of(run: Run) -> EarlyCalls:
    """Return the early calls of a run, which are made at the first request for them."""
    return run.shared("early tool calls", lambda: EarlyCalls(run))


class EarlyCalls:
    """The calls of one run that have begun before their plan was whole.

    Args:
        run: The run; what is left at its end is cancelled.
    """

    def __init__(self, run: Run) -> None:
        self._session_id = run.identity.session_id
        self._run_task = run.stop.task
        self._held: dict[str, list[EarlyCall]] = {}
        """Tool and arguments → the early calls of them that no call has taken."""

    async def during(
        self,
        request: Awaitable[P],
        toolbox: Toolbox,
        config: RunnableConfig,
        settings: LoopConfig,
        *,
        withheld: Container[str],
        is_structured: bool,
    ) -> tuple[P, EarlyCallCounts]:
        """Await a planning request, and start the calls of its reply that only read as soon as each is complete.

        Args:
            request: The request, with its repairs; returns the plan.
            toolbox: The agent's tools.
            config: The config of the task that plans.
            settings: The configuration of the run.
            withheld: Names of tools that may not run now.
            is_structured: Whether the reply is a structured plan.

        Returns:
            The plan, and the numbers of early calls. Those that the plan does not have are cancelled.

        Raises:
            BaseException: What the request raises; no early call is left then.
        """
        self.drop()
        slots, started = asyncio.Semaphore(settings.max_parallel_calls), 0

        def start(call: Call) -> None:
            nonlocal started
            if call["name"] not in withheld and may_begin_early(call, toolbox, settings) and started < most:
                started += 1
                self._held.setdefault(_key(call), []).append(EarlyCall(call, toolbox, config, slots, self._session_id))

        most = settings.max_calls_per_wave
        token = chunk_listener.set(StreamedCalls(start, is_structured=is_structured))
        try:
            plan = await request
        except BaseException:
            self.drop()
            raise
        finally:
            chunk_listener.reset(token)
        dropped_s, dropped = self._keep(plan.calls)
        self._follow_run()
        counts: EarlyCallCounts = {"started": started, "kept": started - dropped, "dropped": dropped}
        if dropped:
            counts["dropped_s"] = round(dropped_s, 6)
            logger.info("The plan does not have %d of the %d calls that began early", dropped, started)
        return plan, counts

    def take(self, call: Call) -> EarlyCall | None:
        """Return an early call of the same tool and arguments, for one call only; None if there is none."""
        if not (found := self._held.get(_key(call))):
            return None
        taken = found.pop(0)
        self._follow_run()
        return taken

    def drop(self) -> None:
        """Cancel all early calls that no call has taken."""
        for early in self._held.values():
            for each in early:
                each.task.cancel()
        self._held.clear()
        self._follow_run()

    def _follow_run(self) -> None:
        """Have the end of the run cancel what is left, and nothing if nothing is: its task may serve many runs."""
        if self._run_task is not None:
            self._run_task.remove_done_callback(self._end)
            if any(self._held.values()):
                self._run_task.add_done_callback(self._end)

    def _end(self, _: asyncio.Task[Any]) -> None:
        self.drop()

    def _keep(self, calls: Sequence[Call]) -> tuple[float, int]:
        """Cancel the early calls that a plan does not have; return the seconds that they ran, and their number."""
        wanted, seconds, count = Counter(map(_key, calls)), 0.0, 0
        for key, early in self._held.items():
            for each in early[wanted[key] :]:
                seconds, count = seconds + each.ran_s, count + 1
                each.task.cancel()
            del early[wanted[key] :]
        return seconds, count


class EarlyCall:
    """A call that runs before its plan is whole, in a task of its own.

    Its tool cannot interrupt the run, and what it writes to the custom stream waits.
    """

    def __init__(
        self, call: Call, toolbox: Toolbox, config: RunnableConfig, slots: asyncio.Semaphore, session_id: str
    ) -> None:
        self._written: list[Any] = []
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
                try:
                    with recorded_return_value(self._given), current_call(session_id, call, "early"):
                        return await toolbox.invoker(call["name"])(call["arguments"], call["id"], own)
                finally:
                    self._ended = time.monotonic()

        self.task = asyncio.get_running_loop().create_task(run(), context=context)
        # Read here, because no caller needs the failure of a dropped call.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def ran_s(self) -> float:
        """Seconds that the call has run so far."""
        return (self._ended or time.monotonic()) - self._began if self._began else 0.0

    async def output(self, given: ReturnValue, run: Callable[[], Awaitable[Any]], write: Callable[[Any], None]) -> Any:
        """Return the tool's output for the call of the history; a tool that failed early runs once more.

        Args:
            given: Receives what the tool has returned.
            run: Runs the call.
            write: Receives what the tool has written to the custom stream.
        """
        self.lead_s = self.ran_s
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            self.task.cancel()
            raise
        if self.task.cancelled() or self.task.exception() is not None:
            self.lead_s = 0.0
            return await run()
        given.value, given.is_known, given.has_begun = self._given.value, self._given.is_known, self._given.has_begun
        for each in self._written:
            write(each)
        return self.task.result()

    lead_s = 0.0
    """Seconds that the call had run when the plan's call took it; 0 if it was of no use."""


def may_begin_early(call: Call, toolbox: Toolbox, settings: LoopConfig) -> bool:
    """Whether a call may run before its plan is whole.

    It may if its tool only reads, needs no state of the run, and no person can be asked about it. A rule for approvals
    that is a function is not asked: it may be meant for calls of accepted plans only.
    """
    name, rules = call["name"], settings.approval_rules
    if "fault" in call or name not in toolbox.tools or toolbox.writes(name) or toolbox.refused(call) is not None:
        return False
    marks = toolbox.marks(name)
    # Whether untrusted text decides on a sink is known once the plan is accepted.
    if marks.get("approve") or (settings.origins and marks.get("sinks")):
        return False
    if any(not isinstance(one, str) or fnmatchcase(name, one) for one in rules):
        return False
    return toolbox.takes_only_arguments(name) and toolbox.arguments_fault(name, call["arguments"]) is None


def _key(call: Call) -> str:
    return f"{call['name']} {json.dumps(call['arguments'], sort_keys=True)}"
