"""A delegate that is a compiled graph in this process."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.errors import GraphBubbleUp
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import get_runtime
from langgraph.types import StreamMode

from graph_agent._compat import KEEPING_NOTHING, checkpointer_of, is_resuming
from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent._internal.sync_bridge import in_blocking_run
from graph_agent._internal.text import as_text, plain
from graph_agent.budgets import BUDGET_LEFT, cost_of, usage_of
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.config import Price
from graph_agent.context import AgentContext, coerce_context
from graph_agent.delegation import DEPTH_LEFT, Delegation, DelegationResult
from graph_agent.errors import ConfigError, RunFailedError
from graph_agent.events.types import StoredEvent
from graph_agent.events.values import as_value
from graph_agent.session.results import DelegatePart
from graph_agent.session.stream_parts import MODES, StreamParts, is_event
from graph_agent.state.usage import add_usage, less_usage
from graph_agent.types import NO_USAGE, SessionStatus, Usage


@dataclass(frozen=True)
class GraphDelegate:
    """Answers delegations with another compiled graph: one of ours, or any whose state has `messages`.

    It gets the conversation's last messages and the task, and runs in a history of its own. Its model's tokens stay out
    of the delegating agent's stream; `Session.stream` gives them in `DelegatePart`s.
    """

    name: str
    """The name behind `delegate_to_`."""
    description: str
    """What it is good for, for the model."""
    graph: CompiledStateGraph[Any, Any, Any, Any]

    def __post_init__(self) -> None:
        # Loaded with the first delegate: an import by a delegation would block the event loop.
        importlib.import_module("graph_agent.runs.usage_counter")
        importlib.import_module("graph_agent.models.finish_reasons")
        if not hasattr(self.graph, "ainvoke"):
            raise ConfigError(
                f"The delegate {self.name!r} wants a compiled graph, not {self.graph!r}; compile it first."
            )

    @property
    def resumes(self) -> bool:
        """Whether it goes on where it stopped: its steps are in the delegating agent's checkpoints, or in its own.

        One that was compiled with `checkpointer=False` keeps nothing, and is not asked twice for one call.
        """
        return self.graph.checkpointer is not False

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Run the graph on the task and return its last message."""
        left, ours = delegation.left, isinstance(self.graph, CompiledAgentGraph)
        from graph_agent.runs.usage_counter import UsageCounter

        counter = UsageCounter(delegation.prices, estimates=(left.tokens, left.cost) != (None, None))
        gathered = _Gathered(delegation, self.name, ours=ours)
        configurable = {DEPTH_LEFT: delegation.depth_left, BUDGET_LEFT: delegation.left.as_json()}
        if not self.resumes:
            configurable |= KEEPING_NOTHING
        # The tokens of a run that is watched are in a message stream of its own, which reads no quiet ones.
        tags = ["nostream"] if delegation.watch is None else []
        config: RunnableConfig = merge_configs(
            ensure_config(), {"tags": tags, "callbacks": [counter], "configurable": configurable}
        )
        given = {"messages": [*delegation.context, HumanMessage(delegation.task)]}
        options: dict[str, Any] = {}
        if ours:
            # The caller's limits are its own; only the credentials go along.
            brought = coerce_context(get_runtime().context)
            options["context"] = AgentContext(credentials=brought.credentials if brought else {})
        before = await self._used_before(config, delegation.prices)
        try:
            await self._stream(given, config, options, gathered)
        except GraphBubbleUp:
            # It asks a person. What it has used is in its state, and counts when it goes on.
            raise
        except RunFailedError:
            # Its state says what failed, and its events what was done.
            pass
        except BaseException:
            delegation.used(add_usage(add_usage(before, _larger(gathered.usage, counter.usage)), counter.under_way))
            raise
        usage = add_usage(before, _larger(gathered.usage, counter.usage))
        state, history = gathered.state, gathered.events
        said = next((message for message in reversed(state["messages"]) if isinstance(message, AIMessage)), None)
        value = _structured(state.get("structured_response"))
        if ours and state.get("status") == SessionStatus.FAILED:
            failed = f"The delegate {self.name!r} failed. {said.text if said else ''}".rstrip()
            return DelegationResult(failed, "error", usage, history=history)
        text = (said.text if said is not None else "") or (as_text(value) if value is not None else "")
        if not text:
            nothing = f"The delegate {self.name!r} gave no answer."
            return DelegationResult(nothing, "error", usage, history=history)
        whole = _whole(said) if said is not None and said.text else text
        return DelegationResult(whole, usage=usage, value=value, history=history)

    async def _stream(
        self, given: dict[str, Any], config: RunnableConfig, options: dict[str, Any], gathered: _Gathered
    ) -> None:
        modes: list[StreamMode] = ["updates", "values"] if gathered.watch is None else [*MODES, "values"]
        if not in_blocking_run.get():
            async for mode, payload in self.graph.astream(given, config, stream_mode=modes, **options):
                gathered.take(str(mode), payload)
            return

        def stream() -> None:
            for mode, payload in self.graph.stream(given, config, stream_mode=modes, **options):
                gathered.take(str(mode), payload)

        # The graph may inherit a saver that blocks, which its asynchronous entry points could not use.
        await call_in_thread(stream)

    async def _used_before(self, config: RunnableConfig, prices: Mapping[str, Price]) -> Usage:
        """What runs before this one used of the same delegation: one that asked a person, or was killed."""
        if not self.resumes or not is_resuming(config) or checkpointer_of(config) is None:
            return NO_USAGE
        if in_blocking_run.get():
            found = await call_in_thread(self.graph.get_state, config)
        else:
            found = await self.graph.aget_state(config)
        if isinstance(self.graph, CompiledAgentGraph):
            return _priced(add_usage(found.values.get("usage"), None), prices)
        messages = found.values.get("messages", []) if isinstance(found.values, dict) else []
        replies = [message for message in messages if isinstance(message, AIMessage) and message.usage_metadata]
        usage = NO_USAGE
        for reply in replies:
            usage = add_usage(usage, usage_of(reply, prices))
        return usage


class _Gathered:
    """What a run's chunks come to.

    Args:
        delegation: What the run is for; its parts go to its `watch`.
        target: The delegate's name.
        ours: Whether the graph is an agent of ours, whose state says what it used.
    """

    def __init__(self, delegation: Delegation, target: str, *, ours: bool) -> None:
        self._id = delegation.id
        self._target = target
        self._ours = ours
        self._parts = StreamParts(delegation.session_id, ours=ours)
        self.watch = delegation.watch
        """Takes the parts of the run; None where nobody watches it."""
        self.state: dict[str, Any] = {}
        """The state it ended in."""
        self.events: list[StoredEvent] = []
        """The events it added on the way."""
        self.usage: Usage = NO_USAGE
        """What it says that it used on the way."""

    def take(self, mode: str, payload: Any) -> None:
        """Take one chunk in."""
        if self.watch is not None:
            for part in self._parts.take(mode, payload):
                self.watch(DelegatePart(self._id, self._target, part))
        if mode == "values":
            self.state = payload
        if mode != "updates":
            return
        for change in payload.values():
            if not isinstance(change, dict):
                continue
            self.events += [each for each in change.get("events") or () if is_event(each)]
            if self._ours and "usage" in change:
                self.usage = add_usage(self.usage, change["usage"])


def _structured(response: Any) -> Any:
    """A graph's `structured_response` as plain JSON; None without one, or for one that has no JSON form."""
    try:
        return plain(as_value(response))
    except ValueError:
        return None


def _larger(told: Usage, heard: Usage) -> Usage:
    """Of what a graph says of itself and what was heard of its models, the larger: either may know more.

    Tools may ask models of their own, and delegates of delegates may go on with what an earlier run began.
    """
    return add_usage(heard, less_usage(told, heard))


def _priced(usage: Usage, prices: Mapping[str, Price]) -> Usage:
    """Usage with what it cost, by the dearest price where the graph itself knows of no prices."""
    if not prices or "cost" in usage:
        return usage
    asked, answered = usage["input_tokens"], usage["output_tokens"]
    figures: UsageMetadata = {"input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered}
    return {**usage, "cost": cost_of(AIMessage("", usage_metadata=figures), prices)}


def _whole(said: AIMessage) -> str:
    """The answer, with a note where it was cut off."""
    from graph_agent.models.finish_reasons import cause_of, cut_off

    cut = cut_off(said)
    return said.text if cut is None else f"{said.text}\n\n[This answer was cut off {cause_of(cut, said)}.]"
