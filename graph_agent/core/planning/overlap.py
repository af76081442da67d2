"""Starts calls early while a plan is asked for: those of its reply, of agreeing candidates, and those that are likely.

The calls themselves, and the rules for them, are in `core/execution/overlap/`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config, get_store

from graph_agent.base._compat import checkpointer_of, read_state
from graph_agent.base.history.call_events import since_plan
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.history.plan_parts import SpeculationSource
from graph_agent.base.input_messages import is_user_input
from graph_agent.base.types import NO_USAGE, Call
from graph_agent.base.usage import LimitMetError
from graph_agent.core.execution.overlap.early_calls import EarlyCall, early_calls_of
from graph_agent.core.execution.overlap.learned_calls import LearnedCalls
from graph_agent.core.execution.overlap.speculation import speculation_of
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.plan_choice import call_key
from graph_agent.core.planning.reply import Planned
from graph_agent.core.planning.streamed_dispatch import StreamedDispatch
from graph_agent.core.planning.update import PlanUpdate
from graph_agent.core.state.run import run_of


def overlap_of(request: NextRequest) -> PlanningOverlap | None:
    """Return the object that starts calls early while a plan is asked for; None if a hook or middleware must see the
    reply before its calls run.
    """
    deps = request.deps
    is_seen = deps.hooks or deps.hook_set or deps.whole_replies
    return None if is_seen else PlanningOverlap(request, get_config())


async def end_predictions(update: PlanUpdate) -> None:
    """Cancel and drop the run's predicted plans, and add what their requests used and recorded to a pass through `plan`
    that asks for no plan. Raises the errors of `NextRequest.of`.
    """
    # Imported here: few agents predict plans.
    from graph_agent.core.planning.predicted_plan import predictions_of

    predictions = predictions_of(update.run)
    if predictions.are_open:
        request = await NextRequest.of(update.task, update.settings, update.history, update.loop)
        exchange = Exchange(request)
        update.take(await exchange.outcome_of(predictions.drop(exchange)))


class PlanningOverlap:
    """What begins while one plan is asked for.

    Args:
        request: The request for the plan.
        config: The config of the task that plans.
    """

    def __init__(self, request: NextRequest, config: RunnableConfig) -> None:
        self._request = request
        self._config = config
        self._calls = early_calls_of(run_of(config))
        self._speculation = speculation_of(config, request.loop, request.settings.speculation_budget)
        self.streams = request.settings.dispatch == "streamed"
        """Whether calls of a reply may begin before the plan is whole."""
        self._begun = Counter[tuple[SpeculationSource, str]]()

    def begin(self, call: Call, source: SpeculationSource) -> None:
        """Begin a call, unless it must wait for the plan, the budget has no room, or an equal one that this call can
        use has begun.

        A source that proposes the same call twice begins it twice.
        """
        key = (source, call_key(call))
        self._begun[key] += 1
        if self._begun[key] <= len(self._calls.equal_to(call)):
            return
        self._start(call, source)

    def _start(self, call: Call, source: SpeculationSource) -> EarlyCall | None:
        """Begin a call early; return None if it must wait for the plan, or the budget for early calls has no room."""
        return self._calls.start(
            call,
            self._request.deps.toolbox,
            self._config,
            self._request.settings,
            self._speculation,
            source=source,
            withheld=self._request.loop.get("withheld", ()),
        )

    async def predicted(self, exchange: Exchange) -> Planned | None:
        """Return the plan that was predicted while the wave ran; None without the setting `predict=True`, if there is
        none, or if it is not known yet whether it can be taken.

        If it is returned, early calls that it does not have are cancelled, and its step is counted in the table of
        calls.

        Raises:
            LimitMetError: The prediction cannot be taken, and what it has used forbids another request.
        """
        request = self._request
        if request.settings.predict is not True:
            return None
        # Imported here: few agents predict plans.
        from graph_agent.core.planning.predicted_plan import predictions_of

        planned = await predictions_of(run_of(self._config)).take(exchange, request)
        if planned is not None:
            self._calls.begin_plan()
            self._calls.keep(planned.calls, request.deps.toolbox.writes)
            # Nothing is left to begin, but the table counts this step, too.
            await self._likely(_learned_calls_of(request, self._config))
        elif exchange.usage["model_calls"] and (met := exchange.limit_met(NO_USAGE, None)) is not None:
            raise LimitMetError(*met)
        return planned

    async def during(self, exchange: Exchange, send: Callable[[], Awaitable[Planned]]) -> Planned:
        """Send the request for the plan, and return the plan; calls begin early meanwhile.

        They are the calls of its streamed reply and, with `predict`, calls that usually follow. With `predict=True`, a
        predicted plan that is ready sooner replaces the reply. Early calls that the plan does not have are cancelled at
        its end, all of them if the request raises.

        Args:
            exchange: The requests of the pass.
            send: Sends the request.

        Raises:
            BaseException: What `send` raises.
        """
        request = self._request
        self._calls.begin_plan()
        if not request.settings.predict:
            return await self._planned(send())
        if request.settings.predict is True:
            from graph_agent.core.planning.predicted_plan import predictions_of

            send = partial(predictions_of(run_of(self._config)).first, exchange, request, send)
        learned = _learned_calls_of(request, self._config)
        proposing = asyncio.ensure_future(self._begin_likely(learned))
        agent, saver = request.agent, checkpointer_of(self._config)
        past, names = agent.past_inputs, agent.toolbox.names
        assert past is not None  # as `predict` is a setting of the agent alone
        try:
            async with past.counted_during(agent.calls_that_followed, saver, learned.where, names):
                planned = await self._planned(send())
        finally:
            # Not cancelled: what it reads and counts is of use for later plans.
            await asyncio.wait([proposing])
        proposing.result()
        if not planned.calls:
            await learned.end(request.loop["step"])
        self._calls.keep(planned.calls, request.deps.toolbox.writes)
        return planned

    async def _planned(self, sent: Awaitable[Planned]) -> Planned:
        """Await the plan; if one reply streams, each of its calls begins as soon as it is complete.

        Early calls that the plan does not have are cancelled; all of them if the request raises, whose exception is
        raised.
        """
        request, toolbox = self._request, self._request.deps.toolbox
        if self.streams and request.settings.candidates == 1:
            dispatch = StreamedDispatch(
                self._calls,
                partial(self._start, source="streamed"),
                toolbox.writes,
                cache(request.earlier.results),
                request.settings.max_calls_per_wave,
            )
            sent = dispatch.during(sent, request.mode, toolbox.names)
        try:
            planned = await sent
        except BaseException:
            self._calls.drop()
            raise
        self._calls.keep(planned.calls, toolbox.writes)
        return planned

    async def _begin_likely(self, learned: LearnedCalls) -> None:
        """Begin the calls that followed in earlier inputs of the agent."""
        for call in await self._likely(learned):
            self.begin(call, "learned")

    async def _likely(self, learned: LearnedCalls) -> list[Call]:
        """Return the calls that usually followed the newest wave in earlier inputs of the agent, and add the wave
        itself to the table.
        """
        request = self._request

        def wave() -> Sequence[StoredEvent]:
            return since_plan(read_state(self._config, ["events"]).get("events", ()))

        return await learned.propose(request.loop["step"], _new_texts(request), wave)


def _learned_calls_of(request: NextRequest, config: RunnableConfig) -> LearnedCalls:
    """Return the run's `LearnedCalls`, created at the first call. Its table in the Store is shared by agents of the
    same name, or without one, whose tools have the same names.
    """
    run, agent = run_of(config), request.agent

    def make() -> LearnedCalls:
        # Agents without a name may share a Store.
        tools = hashlib.sha256("\n".join(sorted(agent.toolbox.names)).encode()).hexdigest()[:12]
        return LearnedCalls(agent.calls_that_followed, get_store(), f"{run.identity.agent_name or 'agent'}-{tools}")

    return run.shared("learned calls", make)


def _new_texts(request: NextRequest) -> list[str]:
    """Return the texts of the user's messages after the newest message of the model or a tool, oldest first."""
    texts: list[str] = []
    for message in reversed(request.conversation):
        if isinstance(message, AIMessage | ToolMessage):
            break
        if isinstance(message, HumanMessage) and is_user_input(message):
            texts.append(message.text)
    return texts[::-1]
