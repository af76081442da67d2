"""A delegate that is a compiled graph in this process."""

from __future__ import annotations

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

from graph_agent._compat import NO_PERSISTENCE, checkpointer_of, is_resuming
from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent._internal.sync_bridge import in_blocking_run
from graph_agent._internal.text import as_text, plain
from graph_agent.budgets import BUDGET_LEFT, cost_of, usage_of
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.config import Price
from graph_agent.context import AgentContext, coerce_context
from graph_agent.delegation import DEPTH_LEFT, Delegation, DelegationResult
from graph_agent.errors import ConfigError, RunFailedError
from graph_agent.events.json_values import as_value
from graph_agent.events.types import StoredEvent
from graph_agent.models.finish_reasons import cause_of, cut_off
from graph_agent.models.usage import add_usage, less_usage
from graph_agent.runs.usage_counter import UsageCounter
from graph_agent.session.results import DelegatePart
from graph_agent.session.stream_parts import MODES, StreamParts, is_event
from graph_agent.types import NO_USAGE, SessionStatus, Usage


@dataclass(frozen=True)
class GraphDelegate:
    """Answers delegations with another compiled graph: an agent, or any graph whose state has `messages`.

    The graph gets the conversation's last messages and the task, and runs in a history of its own. Its model's tokens
    stay out of the delegating agent's stream; `Session.stream` yields them in `DelegatePart`s.
    """

    name: str
    """The name after `delegate_to_`."""
    description: str
    """Its purpose, for the model."""
    graph: CompiledStateGraph[Any, Any, Any, Any]

    def __post_init__(self) -> None:
        if not hasattr(self.graph, "ainvoke"):
            raise ConfigError(
                f"The delegate {self.name!r} needs a compiled graph, not {self.graph!r}; compile it first."
            )

    @property
    def resumes(self) -> bool:
        """Whether it continues where it stopped: its steps are in the delegating agent's checkpoints, or in its own.

        A graph compiled with `checkpointer=False` stores nothing, and is run once per call.
        """
        return self.graph.checkpointer is not False

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Run the graph on the task and return its last message."""
        budget, is_agent = delegation.budget, isinstance(self.graph, CompiledAgentGraph)
        counter = UsageCounter(delegation.prices, estimates=(budget.tokens, budget.cost) != (None, None))
        output = _RunOutput(delegation, self.name, is_agent=is_agent)
        configurable = {DEPTH_LEFT: delegation.depth_left, BUDGET_LEFT: budget.as_json()}
        if not self.resumes:
            configurable |= NO_PERSISTENCE
        # A watched run streams its tokens to its own message stream, which leaves out models tagged `nostream`.
        tags = ["nostream"] if delegation.watch is None else []
        config: RunnableConfig = merge_configs(
            ensure_config(), {"tags": tags, "callbacks": [counter], "configurable": configurable}
        )
        given = {"messages": [*delegation.context, HumanMessage(delegation.task)]}
        options: dict[str, Any] = {}
        if is_agent:
            # The delegate keeps its own limits; only the credentials are passed on.
            context = coerce_context(get_runtime().context)
            options["context"] = AgentContext(credentials=context.credentials if context else {})
        before = await self._used_before(config, delegation.prices)
        try:
            await self._stream(given, config, options, output)
        except GraphBubbleUp:
            # An interrupt. The usage is in the delegate's state, and is added when it resumes.
            raise
        except RunFailedError:
            # Its state holds the failure, and its events the work done.
            pass
        except BaseException:
            used = add_usage(before, _larger(output.usage, counter.usage))
            delegation.record_usage(add_usage(used, counter.under_way))
            raise
        usage = add_usage(before, _larger(output.usage, counter.usage))
        state, history = output.state, output.events
        answer = next((message for message in reversed(state["messages"]) if isinstance(message, AIMessage)), None)
        value = _structured(state.get("structured_response"))
        if is_agent and state.get("status") == SessionStatus.FAILED:
            failed = f"The delegate {self.name!r} failed. {answer.text if answer else ''}".rstrip()
            return DelegationResult(failed, "error", usage, history=history)
        text = (answer.text if answer is not None else "") or (as_text(value) if value is not None else "")
        if not text:
            nothing = f"The delegate {self.name!r} gave no answer."
            return DelegationResult(nothing, "error", usage, history=history)
        content = _with_cut_off_note(answer) if answer is not None and answer.text else text
        return DelegationResult(content, usage=usage, value=value, history=history)

    async def _stream(
        self, given: dict[str, Any], config: RunnableConfig, options: dict[str, Any], output: _RunOutput
    ) -> None:
        modes: list[StreamMode] = ["updates", "values"] if output.watch is None else [*MODES, "values"]
        if not in_blocking_run.get():
            async for mode, payload in self.graph.astream(given, config, stream_mode=modes, **options):
                output.add_chunk(str(mode), payload)
            return

        def stream() -> None:
            for mode, payload in self.graph.stream(given, config, stream_mode=modes, **options):
                output.add_chunk(str(mode), payload)

        # The graph may inherit a saver that blocks, which its asynchronous entry points could not use.
        await call_in_thread(stream)

    async def _used_before(self, config: RunnableConfig, prices: Mapping[str, Price]) -> Usage:
        """Return the usage of earlier runs of the same delegation, which were interrupted or killed."""
        if not self.resumes or not is_resuming(config) or checkpointer_of(config) is None:
            return NO_USAGE
        if in_blocking_run.get():
            snapshot = await call_in_thread(self.graph.get_state, config)
        else:
            snapshot = await self.graph.aget_state(config)
        if isinstance(self.graph, CompiledAgentGraph):
            return _priced(add_usage(snapshot.values.get("usage"), None), prices)
        messages = snapshot.values.get("messages", []) if isinstance(snapshot.values, dict) else []
        replies = [message for message in messages if isinstance(message, AIMessage) and message.usage_metadata]
        usage = NO_USAGE
        for reply in replies:
            usage = add_usage(usage, usage_of(reply, prices))
        return usage


class _RunOutput:
    """Collects the state, events and usage of a delegate's run from the chunks of its stream.

    Args:
        delegation: The delegation of the run; its `watch` gets the parts.
        target: The delegate's name.
        is_agent: Whether the graph is an agent of this package, whose state holds its usage.
    """

    def __init__(self, delegation: Delegation, target: str, *, is_agent: bool) -> None:
        self._id = delegation.id
        self._target = target
        self._is_agent = is_agent
        self._parts = StreamParts(delegation.session_id, is_agent=is_agent)
        self.watch = delegation.watch
        """Called with each part of the run; None if the parts are not streamed."""
        self.state: dict[str, Any] = {}
        """The newest state."""
        self.events: list[StoredEvent] = []
        """The events that the run added."""
        self.usage: Usage = NO_USAGE
        """The usage that the run reported."""

    def add_chunk(self, mode: str, payload: Any) -> None:
        """Process one chunk."""
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
            if self._is_agent and "usage" in change:
                self.usage = add_usage(self.usage, change["usage"])


def _structured(response: Any) -> Any:
    """Return a graph's `structured_response` as plain JSON; None without one, or if it has no JSON form."""
    try:
        return plain(as_value(response))
    except ValueError:
        return None


def _larger(reported: Usage, observed: Usage) -> Usage:
    """Return the field-wise maximum of reported and observed usage, as either may be incomplete.

    Tools may call models of their own, and nested delegates may continue work that an earlier run began.
    """
    return add_usage(observed, less_usage(reported, observed))


def _priced(usage: Usage, prices: Mapping[str, Price]) -> Usage:
    """Add the cost to usage, by the highest price, unless the graph has reported a cost."""
    if not prices or "cost" in usage:
        return usage
    read, written = usage["input_tokens"], usage["output_tokens"]
    figures: UsageMetadata = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    return {**usage, "cost": cost_of(AIMessage("", usage_metadata=figures), prices)}


def _with_cut_off_note(answer: AIMessage) -> str:
    """Return the answer's text, with a note if it was cut off."""
    cut = cut_off(answer)
    return answer.text if cut is None else f"{answer.text}\n\n[This answer was cut off {cause_of(cut, answer)}.]"
