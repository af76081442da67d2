"""Plans the next step while the slowest call of the present wave still runs: `predict=True`.

As soon as all calls of a wave but one have results, the request for the next plan is sent, with that call marked as
pending. The model may reply that it waits for the result. The plan is a prediction until the wave has ended: its
reading calls may begin, unless the pending call may write. It becomes the plan of the next step if it does not need the
pending call, does not end planning, and nothing but the pending result has been added to the conversation. If its reply
still streams when the wave ends, and promises to become the plan, the pass waits for it; if nothing of it has arrived,
the request with all results is sent as well, and the first plan is taken. Otherwise the request is sent again.

Parts in other files:

- `session/agent_parts.py`: `call_nodes`, which has the nodes of calls report their results here
- `core/planning/predicted_request.py`: the request and its reply
- `core/planning/overlap.py`: `PlanningOverlap`, by which `_send` in `core/planning/ask.py` takes a prediction
- `nodes/plan.py`: `_end_unasked`, which counts what predictions have used if no plan is asked for
- `core/execution/overlap/`: the calls that begin early, and the budget
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent.base._compat import read_state
from graph_agent.base._compat.detached import detached
from graph_agent.base.history.plan_parts import SpeculationSource
from graph_agent.base.types import NO_USAGE, Call
from graph_agent.base.usage import ExtraUsage, budget_met, cost_of, extra_usage, has_budget, limit_met
from graph_agent.base.waves.schema import fill_in_earlier, select
from graph_agent.core.execution.deps import AgentDeps, Task, spent
from graph_agent.core.execution.overlap.early_calls import early_calls_of
from graph_agent.core.execution.overlap.speculation import Speculation, speculation_of
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.plan_cache import keep_plan
from graph_agent.core.planning.predicted_request import AskForCalls, PredictedRequest, WaveResult
from graph_agent.core.planning.reply import Planned
from graph_agent.core.state.run import Run
from graph_agent.models.structured import StructuredPlanner

CallNode = Callable[..., Awaitable[Command[Any]]]
LEAST_LEAD_S = 0.1
"""Seconds that the last call may still run before a request is sent: one that ends sooner gains nothing."""
_LEAST_CALLS = 2
"""Calls that a wave must have: with one there is no result yet."""


def noting_results(node: CallNode, ask_for_calls: AskForCalls) -> CallNode:
    """Return a wrapper of a node of calls that also reports the result of each call to the predictions of its run.

    Args:
        node: The node.
        ask_for_calls: Sends a request for native calls, or calls in text; passed in, because `core/planning/ask.py`
            takes predictions itself.
    """

    @functools.wraps(node)
    async def noted(call: Call, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps) -> Command[Any]:
        command = await node(call, config, runtime, deps=deps)
        state = read_state(config, ["messages", "events", "loop", "ready", "usage"])
        task = Task.of(state, config, runtime, deps)
        update = cast("Sequence[tuple[str, Any]]", command.update)
        predictions_of(task.run).note(task, call, update, ask_for_calls)
        return command

    return noted


class Predictions:
    """The predictions of one run: at most one for each wave."""

    def __init__(self) -> None:
        self._wave = ""
        self._results: dict[str, WaveResult] = {}
        """Call id → its result, for the calls of the wave that have one."""
        self._open: list[_Prediction] = []
        """The predictions whose usage no pass has counted, oldest first; only the newest can become a plan."""

    @property
    def are_open(self) -> bool:
        """Whether there is a prediction (a request for the next plan, sent before the wave has ended) whose usage no
        pass has counted.
        """
        return bool(self._open)

    def note(self, task: Task, call: Call, update: Sequence[tuple[str, Any]], ask_for_calls: AskForCalls) -> None:
        """Record the result of a call. If only one call of the wave has no result then, begin to predict the next plan.

        A wave of one call is not predicted, and none that `_may_predict` excludes. An update without exactly one
        result, such as that of a delegate that waits for a person, is ignored.

        Args:
            task: The task of the call.
            call: The call.
            update: The state update that its node has returned.
            ask_for_calls: Sends a request for native calls, or calls in text.
        """
        if task.wave != self._wave:
            self._wave, self._results = task.wave, {}
        fields = dict(update)
        messages = [each for each in fields.get("messages", ()) if isinstance(each, ToolMessage)]
        if len(messages) != 1:
            return
        self._results[call["id"]] = WaveResult(messages[0], fields.get("events", ()))
        ready = task.state.get("ready", ())
        pending = [each for each in ready if each["id"] not in self._results]
        if len(ready) < _LEAST_CALLS or len(pending) != 1 or not _may_predict(task):
            return
        speculation = speculation_of(task.config, task.loop, task.settings.speculation_budget)
        results = {each["id"]: self._results[each["id"]] for each in ready if each is not pending[0]}
        request = PredictedRequest(task, pending[0], results, ask_for_calls)
        self._open.append(_Prediction(request, speculation))

    async def take(self, exchange: Exchange, request: NextRequest) -> Planned | None:
        """Return the predicted plan if it can be taken as that of a request, else None.

        If its reply is still streaming and promises to become the plan, its end is awaited. If the reply does not show
        yet whether it may become the plan, the prediction stays open; then call `first`. In all other cases without a
        plan, the prediction is dropped. Usage of dropped predictions is counted; that of a returned plan is in the
        plan.

        Args:
            exchange: The requests of the pass, which receive the usage.
            request: The request for the plan.
        """
        await self._settle(self._open[:-1], exchange)
        prediction = self._open[-1] if self._open else None
        if prediction is None or (prediction.fits(request) and prediction.is_undecided):
            return None
        return await self._end(prediction, exchange, request)

    async def first(self, exchange: Exchange, request: NextRequest, send: Callable[[], Awaitable[Planned]]) -> Planned:
        """Send the request for a plan, and return its plan, or the predicted one if that is known to be the plan
        sooner.

        As soon as one of the replies shows that it is the plan, the other request is cancelled. If the predicted reply
        fails after that, the request is sent again. Without an open prediction, only the request is sent. No prediction
        stays open.

        Args:
            exchange: The requests of the pass, which receive the usage of the predictions.
            request: The request.
            send: Sends the request; called twice at most.

        Raises:
            BaseException: What `send` raises.
        """
        if not self._open:
            return await send()
        prediction = self._open[-1]
        sent = asyncio.ensure_future(send())
        try:
            await prediction.turn(sent)
            if not sent.done() and not exchange.stream.is_committed and prediction.is_promising:
                await _cancelled(sent)
                exchange.cut_off = None
                planned = await self._end(prediction, exchange, request)
                return await send() if planned is None else planned
            await self._settle([prediction], exchange)
            return await sent
        finally:
            await _cancelled(sent)
            await self._settle([*self._open], exchange)

    async def drop(self, exchange: Exchange) -> None:
        """Drop all predictions, and count what they have used."""
        await self._settle([*self._open], exchange)

    async def _end(self, prediction: _Prediction, exchange: Exchange, request: NextRequest) -> Planned | None:
        """Return the plan of a prediction (a request sent before the wave had ended) after its end; None, with its
        usage counted, if it is not that of the request.

        It is not if it does not `fits`, fails, or was cancelled by the budget. A returned plan is stored in the plan
        cache, if the agent has one.
        """
        try:
            planned = await prediction.plan() if prediction.fits(request) else None
            if planned is not None and prediction.use():
                self._open.remove(prediction)
                exchange.count_extra(prediction.extra, "plan")
                if request.deps.caches_plans(request.settings):
                    await keep_plan(request, request.messages(), planned)
                return planned
        finally:
            # After an abort, too.
            await self._settle([each for each in self._open if each is prediction], exchange)
        return None

    async def _settle(self, predictions: Sequence[_Prediction], exchange: Exchange) -> None:
        """Drop predictions, and count what they have used."""
        for each in predictions:
            self._open.remove(each)
            await each.drop()
            exchange.count_extra(each.extra, "plan")
            exchange.count(each.usage, None)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task, and wait for its end; it records what it has used."""
    task.cancel()
    await asyncio.wait([task])


def predictions_of(run: Run) -> Predictions:
    """Return the predictions of a run."""
    return run.shared("predicted plans", Predictions)


def _may_predict(task: Task) -> bool:
    """Whether a request for the next plan may be sent before the wave has ended.

    False if the agent has hooks, middleware on replies, more than one candidate for a plan, or a planner of the
    caller's own in mode `wave`. Also False if calls wait, this wave is the last, the run is aborted, or a limit or
    budget forbids another plan.
    """
    deps, loop, settings = task.deps, task.loop, task.settings
    # Hooks and middleware see each plan before its calls run; one request has nothing to be outvoted by.
    if deps.hooks or deps.hook_set or deps.whole_replies or settings.candidates != 1:
        return False
    if deps.mode(settings) == "wave" and type(deps.planner) is not StructuredPlanner:
        return False
    if loop["waiting"] or loop["last_wave"]:
        return False
    if task.run.stop.aborted or limit_met(loop["step"], loop["turn"], settings) is not None:
        return False
    usage, history = task.state.get("usage") or NO_USAGE, task.state["messages"]
    return not has_budget(settings) or budget_met(spent(task.run, loop, usage, history, settings), settings) is None


class _Prediction:
    """A request for a plan that was sent before its time; implements `SpeculativeWork`."""

    source: SpeculationSource = "request"

    def __init__(self, request: PredictedRequest, speculation: Speculation) -> None:
        self._request = request
        self._task = request.task
        self._speculation = speculation
        self.extra = ExtraUsage()
        """What the request has used apart from its reply."""
        self._began = self._ended = 0.0
        self._counted_cost: float | None = None
        """The cost when it was dropped."""
        self._config, context = detached(self._task.config, lambda written: None)
        context.run(extra_usage.set, self.extra)
        self._asked = asyncio.get_running_loop().create_task(self._plan(), context=context)
        # Read here, because a prediction that failed is of no interest to anyone.
        self._asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())

    @property
    def usage(self) -> Any:
        """Usage of the reply; none before it has arrived."""
        return self._request.usage

    @property
    def ran_s(self) -> float:
        """Seconds that the request has run so far."""
        return (self._ended or time.monotonic()) - self._began if self._began else 0.0

    @property
    def cost(self) -> float:
        """Cost of what has been used so far, as far as it is known; 0.0 without prices."""
        cut_off = sum(cost_of(reply, self._task.settings.prices) for reply in self.extra.replies)
        return cut_off + self._request.usage.get("cost", 0.0)

    @property
    def is_promising(self) -> bool:
        """Whether the request has ended or the reply so far plans calls that do not need the pending one."""
        return self._asked.done() or self._request.arriving.is_promising

    @property
    def is_undecided(self) -> bool:
        """Whether the request was sent, and its reply does not show yet whether it may become the plan."""
        return bool(self._began) and not self.is_promising and not self._request.arriving.is_useless

    def cancel(self) -> None:
        """Cancel the request if it has not ended. The cost so far is recorded, so that `drop` counts only what exceeds
        it.
        """
        self._counted_cost = self.cost
        self._asked.cancel()

    async def turn(self, other: asyncio.Future[Any]) -> None:
        """Return when the reply shows whether it may become the plan, when it has ended, or when another request has
        ended.

        Args:
            other: The other request.
        """
        turned = asyncio.ensure_future(self._request.arriving.has_turned.wait())
        try:
            await asyncio.wait([turned, self._asked, other], return_when=asyncio.FIRST_COMPLETED)
        finally:
            turned.cancel()

    async def plan(self) -> Planned | None:
        """Return the plan after the end of the reply; None if the request was not sent, has failed, or its reply cannot
        become the plan.
        """
        arriving = self._request.arriving
        while not self._asked.done() and self._began and not arriving.is_useless:
            # A further attempt after a failure begins a new reply.
            arriving.has_turned.clear()
            await self.turn(self._asked)
        is_whole = self._asked.done() and not self._asked.cancelled() and self._asked.exception() is None
        return self._asked.result() if is_whole else None

    def use(self) -> bool:
        """Count the request as used by a plan; return False if the budget has cancelled it."""
        if not self._speculation.take(self):
            return False
        self._speculation.use(self)
        return True

    async def drop(self) -> None:
        """Cancel the request, wait for its end, and count it as of no use; afterwards all that is known of its usage is
        in `extra` and `usage`.

        If the budget has cancelled it before, only cost that became known since is counted.
        """
        is_open = self._speculation.take(self)
        self._asked.cancel()
        # A cancelled request records what it has used.
        await asyncio.wait([self._asked])
        # A part of a cancelled reply is no part of an answer.
        self.extra.cut_off = None
        if is_open:
            self._speculation.drop(self)
        elif self._counted_cost is not None:
            self._speculation.add_cost(self.source, self.cost - self._counted_cost)

    def fits(self, request: NextRequest) -> bool:
        """Whether a request is the predicted one: compared with the history at the prediction, its conversation has
        only the wave's results more, and those the prediction had are equal; step, withheld tools and settings are the
        same.

        False for a request of a hook.
        """
        before = self._task.state["messages"]
        start, added = request.conversation[: len(before)], request.conversation[len(before) :]
        own = {id_: each.message.content for id_, each in self._request.results.items()}
        found = {each.tool_call_id: each.content for each in added if isinstance(each, ToolMessage)}
        loop = self._task.loop
        return (
            len(found) == len(added)
            and found.keys() == {*own, self._request.pending["id"]}
            and all(found[id_] == content for id_, content in own.items())
            and [each.id for each in start] == [each.id for each in before]
            and (request.loop["step"], request.loop.get("withheld")) == (loop["step"], loop.get("withheld"))
            and request.settings == self._task.settings
            and request.of_hook is None
        )

    async def _plan(self) -> Planned | None:
        """Ask for the plan after `LEAST_LEAD_S` seconds, begin those of its calls that only read, and return it.

        None, without a request, if the budget has no room or the run was aborted. No call begins if the pending call
        may write. Raises the errors of `PredictedRequest.send`.
        """
        await asyncio.sleep(LEAST_LEAD_S)
        if not self._speculation.has_room() or self._task.run.stop.aborted:
            return None
        self._began = time.monotonic()
        self._speculation.begin(self)
        try:
            request, planned = await self._request.send()
        finally:
            self._ended = time.monotonic()
        # What a pending call writes may change what the others read.
        if not request.deps.toolbox.writes(self._request.pending["name"]):
            self._begin(request, planned)
        return planned

    def _begin(self, request: NextRequest, planned: Planned) -> None:
        """Begin the calls of the plan that only read and need no other one of the plan. In mode `wave`, the results of
        earlier waves replace the references to them.
        """
        calls = planned.calls
        if request.mode == "wave":
            # As when it is carried out: with the results of earlier waves.
            calls = select(fill_in_earlier(calls, request.earlier.results), {}, ()).ready
        for call in calls:
            early_calls_of(self._task.run).start(
                call,
                request.deps.toolbox,
                self._config,
                request.settings,
                self._speculation,
                source="predicted",
                withheld=request.loop.get("withheld", ()),
            )
