"""Counts the work of one input that began before a plan asked for it, to limit it and to report it in events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig

from graph_agent.base._compat import read_state
from graph_agent.base._internal import telemetry
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.history.plan_parts import SpeculationCounts, SpeculationSource
from graph_agent.base.settings.speculation import SpeculationBudget
from graph_agent.core.state.run import run_of
from graph_agent.core.state.schema import LoopState

logger = get_logger("graph_agent.overlap")
_SHORTEST_S = 0.01
"""Minimum seconds between two checks of the budget of seconds, which is exceeded by at most as much."""


class SpeculativeWork(Protocol):
    """A call or a model request that has begun before a plan asked for it, and may turn out to be of no use."""

    @property
    def source(self) -> SpeculationSource:
        """The mechanism that began the work, such as `streamed`."""
        ...

    @property
    def ran_s(self) -> float:
        """Seconds for which the work has run so far."""
        ...

    @property
    def cost(self) -> float:
        """Cost of the work so far, or an estimate, in the currency of `prices`; 0.0 without prices."""
        ...

    def cancel(self) -> object:
        """Cancel the work if it has not ended."""
        ...


class Speculation:
    """Accounts for the speculative work of one input: it is open, then used by a plan or dropped.

    Work that is dropped, and open work, counts against the budget. Call all methods in the event loop of the run.

    Args:
        input_id: Id of the input.
        before: Events of the input's earlier runs, whose work counts against the budget, too.
    """

    def __init__(self, input_id: str, before: Iterable[Mapping[str, Any]] = ()) -> None:
        self.input_id = input_id
        self.budget = SpeculationBudget.model_construct()
        """The limits that apply now."""
        self._open: dict[SpeculativeWork, None] = {}
        """Work that no plan has taken yet, in the order of its begin; the values are not used."""
        self._calls, self._seconds, self._cost = 0, 0.0, 0.0
        """What was of no use, against the budget."""
        self._unreported: dict[SpeculationSource, SpeculationCounts] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        for source, counts in (pair for entry in before for pair in entry.get("early", {}).items()):
            self._calls += counts.get("started", 0) - counts.get("used", 0)
            self._seconds += counts.get("dropped_s", 0.0)
            self._cost += counts.get("cost", 0.0)
            # What an earlier run has left open ended with that run.
            lost = counts.get("started", 0) - counts.get("used", 0) - counts.get("dropped", 0)
            self._add(source, "dropped", lost)

    def has_room(self, cost: float = 0.0) -> bool:
        """Whether the budget allows one more call or request to begin; False after `end`.

        Limits of calls and seconds must not be reached yet; the cost may reach its limit.

        Args:
            cost: The expected cost of it; 0.0 if unknown.
        """
        budget = self.budget
        return (
            not self._has_ended
            and (budget.calls is None or self._calls + len(self._open) < budget.calls)
            and (budget.seconds is None or self._seconds + self._open_s < budget.seconds)
            and (budget.cost is None or self._cost + sum(work.cost for work in self._open) + cost <= budget.cost)
        )

    def begin(self, work: SpeculativeWork) -> None:
        """Count work that has begun as open and as started, and set the timer that checks the budget.

        The caller later calls `use` or `drop` for it, or `take` and then one of them.
        """
        self._open[work] = None
        self._add(work.source, "started")
        self._set_timer()

    def take(self, work: SpeculativeWork) -> bool:
        """Remove work from the open work, because a plan waits for it, so that the budget cannot cancel it any more.

        Returns False if it is not open, e.g. because the budget has cancelled it.
        """
        if work not in self._open:
            return False
        del self._open[work]
        return True

    def use(self, work: SpeculativeWork) -> None:
        """Count work as used by a plan, and report this to the telemetry observer, if there is one."""
        self._open.pop(work, None)
        self._add(work.source, "used")
        if telemetry.observer is not None:
            telemetry.observer.speculation(work.source, "used", work.ran_s, work.cost)

    def drop(self, work: SpeculativeWork) -> None:
        """Cancel work that is open or was taken, and count it, its seconds and its cost as of no use; also report this
        to the telemetry observer, if there is one. Each call counts.
        """
        self._open.pop(work, None)
        work.cancel()
        self._calls, self._seconds, self._cost = self._calls + 1, self._seconds + work.ran_s, self._cost + work.cost
        self._add(work.source, "dropped")
        self._add(work.source, "dropped_s", work.ran_s)
        self._add(work.source, "cost", work.cost)
        if telemetry.observer is not None:
            telemetry.observer.speculation(work.source, "dropped", work.ran_s, work.cost)

    def add_cost(self, source: SpeculationSource, cost: float) -> None:
        """Count cost of dropped work that became known after it was dropped."""
        self._cost += cost
        self._add(source, "cost", cost)

    def end(self) -> None:
        """Drop all open work, because the input ends, and log its size; no more may begin."""
        self._has_ended = True
        if self._open:
            logger.info("The input did not use %d calls or requests that began early", len(self._open))
        self._drop_open()

    def report(self, entry: StoredEvent) -> None:
        """Add the counts that no event has reported yet to an event, as its field `early`: source → counts.

        Does nothing if there are none.
        """
        if self._unreported:
            entry["early"], self._unreported = self._unreported, {}

    @property
    def _open_s(self) -> float:
        """Seconds for which all open work has run so far, added up."""
        return sum(work.ran_s for work in self._open)

    def _add(self, source: SpeculationSource, name: str, value: float = 1) -> None:
        """Add a number to one of the unreported counts of a source; 0 is left out."""
        if value:
            counts: dict[str, Any] = self._unreported.setdefault(source, {})  # type: ignore[assignment]  # one key a time
            # Events would otherwise have sums such as 0.30000000000000004.
            counts[name] = round(counts.get(name, 0) + value, 6)

    def _drop_open(self) -> None:
        """Drop all open work, which cancels it."""
        for work in [*self._open]:
            self.drop(work)
        self._set_timer()

    def _set_timer(self) -> None:
        """Replace the timer for the next check of the budget of seconds, due when the budget can be used up at the
        earliest. There is no timer without such a budget, or while no call is open.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.budget.seconds is not None and self._open:
            left_s = self.budget.seconds - self._seconds - self._open_s
            delay_s = max(_SHORTEST_S, left_s / len(self._open))
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        """Drop all open work and log the budget if the budget of seconds is used up; else set the next timer."""
        if self.budget.seconds is not None and self._seconds + self._open_s >= self.budget.seconds:
            logger.info("The budget of %g s for calls that begin early is used up", self.budget.seconds)
            self._drop_open()
        else:
            self._set_timer()


def speculation_of(config: RunnableConfig, loop: LoopState, budget: SpeculationBudget) -> Speculation:
    """Return the `Speculation` of a run's current input, with the given budget.

    The first call for an input makes it and ends that of the input before. What the input's earlier runs counted,
    before a crash or in another process, is read from the events.

    Args:
        config: The config of a task of the run.
        loop: The loop state, which has the id of the input.
        budget: The limits, which apply from now on.
    """
    run, input_id = run_of(config), loop["last_input_id"]
    found = run.speculation
    if found is None or found.input_id != input_id:
        if found is not None:
            found.end()
        # Before the first plan of an input, all events are of earlier ones.
        events = read_state(config, ["events"]).get("events", ()) if loop["step"] else ()
        run.speculation = found = Speculation(input_id, _of_newest_input(events))
    found.budget = budget
    return found


def _of_newest_input(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events after the newest user message that report speculative work; all such if there is no message."""
    found: list[Mapping[str, Any]] = []
    for entry in events:
        if entry["type"] == "user_message":
            found = []
        elif "early" in entry:
            found.append(entry)
    return found
