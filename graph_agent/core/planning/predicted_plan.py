"""Plans the next step while the slowest call of the present wave still runs: `predict=True`, for structured plans.

As soon as all calls of a wave but one have results, the request for the next plan is sent, with that call marked as
pending. Its schema has a further status, `wait`. The plan is a prediction until the wave has ended: its reading calls
may begin, unless the pending call may write. It becomes the plan of the next step if it does not need the pending call,
does not end planning, and nothing but the pending result has been added to the conversation. Otherwise the request is
sent again.

Parts in other files:

- `session/agent_parts.py`: `call_nodes`, which has the nodes of calls report their results here
- `core/planning/ask.py`: `_send`, which takes a prediction instead of sending a request
- `core/execution/overlap/`: the calls that begin early, and the budget
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import Field, create_model

from graph_agent.base._compat import read_state
from graph_agent.base._compat.detached import detached
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base.finish import refusal_text
from graph_agent.base.history.call_events import EarlierCalls
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.history.plan_parts import SpeculationSource
from graph_agent.base.types import NO_USAGE, Call, Usage, plan_id_of
from graph_agent.base.usage import ExtraUsage, budget_met, extra_usage, has_budget, limit_met, usage_of
from graph_agent.base.waves.schema import PlanError, PlanningResult, check_wave, fill_in_earlier, select
from graph_agent.core.execution.deps import AgentDeps, Task, spent
from graph_agent.core.execution.overlap.early_calls import early_calls_of
from graph_agent.core.execution.overlap.speculation import Speculation, speculation_of
from graph_agent.core.planning.echoes import without_echoes
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.prepared_history import PreparedHistory
from graph_agent.core.planning.reply import Planned
from graph_agent.core.planning.structured_plan import planned_of
from graph_agent.core.state.run import Run
from graph_agent.models.structured import StructuredPlanner
from graph_agent.models.wire.parsing.plans import read_plan

logger = get_logger("graph_agent.overlap")

CallNode = Callable[..., Awaitable[Command[Any]]]
LEAST_LEAD_S = 0.1
"""Seconds that the last call may still run before a request is sent: one that ends sooner gains nothing."""
_LEAST_CALLS = 2
"""Calls that a wave must have: with one there is no result yet."""
_PENDING = (
    "PENDING: this call still runs, and its result is not known yet. Plan only calls that are needed whatever it "
    "returns, and that neither refer to it nor need it. If the next plan depends on it, or there is no such call, send "
    'the status "wait" and no calls.'
)
"""Stands for the result of the pending call."""
_WAIT = (
    "continue: plan again after these calls; done: these calls, if any, are the last; wait: the pending result is "
    "needed first."
)


def noting_results(node: CallNode) -> CallNode:
    """Return a node of calls that reports the result of each call to the predictions of its run."""

    @functools.wraps(node)
    async def noted(call: Call, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps) -> Command[Any]:
        command = await node(call, config, runtime, deps=deps)
        state = read_state(config, ["messages", "events", "loop", "ready", "usage"])
        task = Task.of(state, config, runtime, deps)
        update = cast("Sequence[tuple[str, Any]]", command.update)
        predictions_of(task.run).note(task, call, update)
        return command

    return noted


class Predictions:
    """The predictions of one run: at most one for each wave."""

    def __init__(self) -> None:
        self._wave = ""
        self._results: dict[str, _Result] = {}
        """Call id → its result, for the calls of the wave that have one."""
        self._newest: _Prediction | None = None

    def note(self, task: Task, call: Call, update: Sequence[tuple[str, Any]]) -> None:
        """Record the result of a call. If only one call of the wave has no result then, begin to predict the next plan.

        An update without exactly one result, such as that of a delegate that waits for a person, is ignored.

        Args:
            task: The task of the call.
            call: The call.
            update: The state update that its node has returned.
        """
        if task.wave != self._wave:
            self._wave, self._results = task.wave, {}
        fields = dict(update)
        messages = [each for each in fields.get("messages", ()) if isinstance(each, ToolMessage)]
        if len(messages) != 1:
            return
        self._results[call["id"]] = _Result(messages[0], fields.get("events", ()))
        ready = task.state.get("ready", ())
        pending = [each for each in ready if each["id"] not in self._results]
        if len(ready) < _LEAST_CALLS or len(pending) != 1 or not _may_predict(task):
            return
        speculation = speculation_of(task.config, task.loop, task.settings.speculation_budget)
        results = {each["id"]: self._results[each["id"]] for each in ready if each is not pending[0]}
        self._newest = _Prediction(task, pending[0], results, speculation)

    async def take(self, exchange: Exchange, request: NextRequest) -> Planned | None:
        """Return the predicted plan as that of a request; None if there is none, or the request must be sent.

        What the prediction has used is counted either way.

        Args:
            exchange: The requests of the pass.
            request: The request for the plan.
        """
        prediction, self._newest = self._newest, None
        return None if prediction is None else await prediction.end(exchange, request)


def predictions_of(run: Run) -> Predictions:
    """Return the predictions of a run."""
    return run.shared("predicted plans", Predictions)


@dataclass(frozen=True, slots=True)
class _Result:
    message: ToolMessage
    events: Sequence[StoredEvent]


def _may_predict(task: Task) -> bool:
    """Whether a request for the next plan may be sent before the wave has ended.

    Only structured planning by the agent's own planner is predicted, without hooks, middleware, candidates and plan
    cache. Not if calls wait, the conversation is shortened, the run is aborted, or a limit or budget forbids another
    plan.
    """
    deps, loop, settings = task.deps, task.loop, task.settings
    is_seen = deps.hooks or deps.hook_set or deps.whole_replies or type(deps.planner) is not StructuredPlanner
    if is_seen or deps.mode(settings) != "wave" or settings.candidates != 1 or deps.caches_plans(settings):
        return False
    # A shortened conversation is prepared by the pass itself.
    if loop["waiting"] or loop["last_wave"] or loop.get("summary") or loop.get("recovery") or loop.get("kept_from"):
        return False
    if task.run.stop.aborted or limit_met(loop["step"], loop["turn"], settings) is not None:
        return False
    usage, history = task.state.get("usage") or NO_USAGE, task.state["messages"]
    return not has_budget(settings) or budget_met(spent(task.run, loop, usage, history, settings), settings) is None


class _Prediction:
    """One request for a plan that was sent before its time; implements `SpeculativeWork`."""

    source: SpeculationSource = "request"

    def __init__(self, task: Task, pending: Call, results: Mapping[str, _Result], speculation: Speculation) -> None:
        self._task = task
        self._pending = pending
        self._results = results
        self._speculation = speculation
        self._extra = ExtraUsage()
        self._usage: Usage = NO_USAGE
        self._began = self._ended = 0.0
        self._config, context = detached(task.config, lambda written: None)
        context.run(extra_usage.set, self._extra)
        self._asked = asyncio.get_running_loop().create_task(self._plan(), context=context)
        # Read here, because a prediction that failed is of no interest to anyone.
        self._asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())

    @property
    def ran_s(self) -> float:
        """Seconds that the request has run so far."""
        return (self._ended or time.monotonic()) - self._began if self._began else 0.0

    @property
    def cost(self) -> float:
        """Cost of the reply; 0.0 before it, and without prices."""
        return self._usage.get("cost", 0.0)

    def cancel(self) -> None:
        """Cancel the request if it has not ended."""
        self._asked.cancel()

    async def end(self, exchange: Exchange, request: NextRequest) -> Planned | None:
        """Return the predicted plan if its request differs from `request` by the pending result only; None otherwise.

        A predicted request that still runs is cancelled, because it would end no sooner than a request with all
        results. Its usage is counted in any case, and the prediction is recorded as used or dropped.
        """
        is_open = self._speculation.take(self)
        self._asked.cancel()
        # A cancelled request records what it has used.
        await asyncio.wait([self._asked])
        is_whole = not self._asked.cancelled() and self._asked.exception() is None
        planned = self._asked.result() if is_whole else None
        # A part of a cancelled reply is no part of an answer.
        self._extra.cut_off = None
        exchange.count_extra(self._extra, "plan")
        if is_open and planned is not None and self._fits(request):
            self._speculation.use(self)
            return planned
        exchange.count(self._usage, None)
        if is_open:
            self._speculation.drop(self)
        return None

    def _fits(self, request: NextRequest) -> bool:
        """Whether a request is the predicted one: its conversation differs by the pending result only, and step,
        withheld tools and settings are the same.
        """
        before = self._task.state["messages"]
        start, added = request.conversation[: len(before)], request.conversation[len(before) :]
        own = {id_: each.message.content for id_, each in self._results.items()}
        found = {each.tool_call_id: each.content for each in added if isinstance(each, ToolMessage)}
        loop = self._task.loop
        return (
            len(found) == len(added)
            and found.keys() == {*own, self._pending["id"]}
            and all(found[id_] == content for id_, content in own.items())
            and [each.id for each in start] == [each.id for each in before]
            and (request.loop["step"], request.loop.get("withheld")) == (loop["step"], loop.get("withheld"))
            and request.settings == self._task.settings
            and request.of_hook is None
        )

    async def _plan(self) -> Planned | None:
        """Ask for the plan after a wait of `LEAST_LEAD_S`, and begin its reading calls.

        None if the speculation budget has no room, the run is aborted, or the plan cannot be taken.
        """
        await asyncio.sleep(LEAST_LEAD_S)
        if not self._speculation.has_room() or self._task.run.stop.aborted:
            return None
        self._began = time.monotonic()
        self._speculation.begin(self)
        try:
            return await self._ask()
        finally:
            self._ended = time.monotonic()

    async def _ask(self) -> Planned | None:
        task = self._task
        settings, state = task.settings, task.state
        request = await NextRequest.of(task, settings, state["messages"], task.loop)
        # The objects of the run belong to its requests, whose history does not hold these results.
        request = request.override(prepared=PreparedHistory(), earlier=EarlierCalls())
        new = [entry for each in self._results.values() for entry in each.events]
        request.earlier.follow(state.get("events", ()), new, begun=True)
        pending = ToolMessage(json.dumps(_PENDING), tool_call_id=self._pending["id"], name=self._pending["name"])
        order = [call["id"] for call in state["ready"]]
        tail: list[AnyMessage] = [self._results[id_].message if id_ in self._results else pending for id_ in order]
        messages = request.messages(tail)
        schema = waiting_schema(request.deps.plan_schema)
        planner = request.deps.planner.with_schema(schema.model_json_schema())
        reply = await planner.plan(messages, settings, offered=request.deps.toolbox.schemas)
        self._usage = usage_of(reply, settings.prices)
        return self._read(request, reply, schema, messages)

    def _read(
        self, request: NextRequest, reply: AIMessage, schema: type[PlanningResult], messages: Sequence[AnyMessage]
    ) -> Planned | None:
        """Return the plan in a reply, and begin its reading calls, unless the pending call may write.

        None for a refusal, an invalid plan, one that ends planning or has no calls, and one that needs the pending
        result.
        """
        earlier, settings, pending = request.earlier, request.settings, plan_id_of(self._pending)
        if refusal_text(reply, visible=False) is not None:
            return None
        try:
            plan = read_plan(reply, schema)
            calls = check_wave(plan, settings.max_calls_per_wave, earlier.newest, earlier.ended)
        except PlanError as fault:
            logger.info("A predicted plan is invalid: %s", fault.faults)
            return None
        if plan.status != "continue" or not calls or any(pending in call.get("needs", ()) for call in calls):
            return None
        planned = planned_of(reply, plan, calls, self._usage, request.planner, "")
        planned = without_echoes(planned, request.deps.toolbox.schemas, messages)
        # What a pending call writes may change what the others read.
        if request.deps.toolbox.writes(self._pending["name"]):
            return planned
        # As when it is carried out: with the results of earlier waves.
        for call in select(fill_in_earlier(planned.calls, earlier.results), {}, ()).ready:
            early_calls_of(self._task.run).start(
                call,
                request.deps.toolbox,
                self._config,
                settings,
                self._speculation,
                source="predicted",
                withheld=request.loop.get("withheld", ()),
            )
        return planned


@functools.lru_cache(maxsize=16)
def waiting_schema(schema: type[PlanningResult]) -> type[PlanningResult]:
    """Return the class of predicted plans, which may have the status `wait`."""
    status: Any = (Literal["continue", "done", "wait"], Field(description=_WAIT))
    return cast("type[PlanningResult]", create_model(schema.__name__, __base__=schema, status=status))
