"""A delegate that is a compiled graph in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import anyio.to_thread
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import get_runtime
from langgraph.types import StreamMode

from graph_agent._compat import KEEPING_NOTHING
from graph_agent.blocking import in_blocking_run
from graph_agent.budget import BUDGET_LEFT
from graph_agent.config import Price
from graph_agent.context import AgentContext, coerce_context
from graph_agent.delegation import DEPTH_LEFT, Delegation, DelegationResult
from graph_agent.events import StoredEvent
from graph_agent.graph import CompiledAgentGraph
from graph_agent.models.estimate import estimated_usage
from graph_agent.planned import usage_of
from graph_agent.state import add_usage
from graph_agent.types import NO_USAGE, SessionStatus


@dataclass(frozen=True)
class GraphDelegate:
    """Answers delegations with another compiled graph: one of ours, or any whose state has `messages`.

    It gets the conversation's last messages and the task, and runs in a history of its own. Its model's tokens stay out
    of the delegating agent's stream.
    """

    name: str
    """The name behind `delegate_to_`."""
    description: str
    """What it is good for, for the model."""
    graph: CompiledStateGraph[Any, Any, Any, Any]

    @property
    def resumes(self) -> bool:
        """Whether it goes on where it stopped: its steps are in the delegating agent's checkpoints, or in its own.

        One that was compiled with `checkpointer=False` keeps nothing, and is not asked twice for one call.
        """
        return self.graph.checkpointer is not False

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Run the graph on the task and return its last message."""
        left = delegation.left
        counter = _UsageCounter(delegation.prices, estimates=(left.tokens, left.cost) != (None, None))
        configurable = {DEPTH_LEFT: delegation.depth_left, BUDGET_LEFT: delegation.left.as_json()}
        if not self.resumes:
            configurable |= KEEPING_NOTHING
        config: RunnableConfig = merge_configs(
            ensure_config(), {"tags": ["nostream"], "callbacks": [counter], "configurable": configurable}
        )
        given = {"messages": [*delegation.context, HumanMessage(delegation.task)]}
        options: dict[str, Any] = {}
        if isinstance(self.graph, CompiledAgentGraph):
            # The caller's limits are its own; only the credentials go along.
            brought = coerce_context(get_runtime().context)
            options["context"] = AgentContext(credentials=brought.credentials if brought else {})
        if in_blocking_run.get():
            # The graph may inherit a saver that blocks, which its asynchronous entry points could not use.
            ended = await anyio.to_thread.run_sync(
                lambda: _gathered(self.graph.stream(given, config, stream_mode=_MODES, **options)),
                abandon_on_cancel=True,
            )
        else:
            chunks = self.graph.astream(given, config, stream_mode=_MODES, **options)
            ended = _gathered([chunk async for chunk in chunks])
        state, history = ended
        said = next((message for message in reversed(state["messages"]) if isinstance(message, AIMessage)), None)
        if state.get("status") == SessionStatus.FAILED:
            failed = f"The delegate {self.name!r} failed: its model did not answer."
            return DelegationResult(failed, "error", counter.usage, history=history)
        if said is None or not said.text:
            nothing = f"The delegate {self.name!r} gave no answer."
            return DelegationResult(nothing, "error", counter.usage, history=history)
        return DelegationResult(said.text, usage=counter.usage, history=history)


_MODES: list[StreamMode] = ["updates", "values"]


def _gathered(chunks: Iterable[Any]) -> tuple[dict[str, Any], list[StoredEvent]]:
    """The state a run ended in, and the events it added on the way."""
    state: dict[str, Any] = {}
    events: list[StoredEvent] = []
    for mode, payload in chunks:
        if mode == "values":
            state = payload
            continue
        changes = [change for change in payload.values() if isinstance(change, dict)]
        events += [each for change in changes for each in change.get("events") or () if _is_event(each)]
    return state, events


def _is_event(value: Any) -> bool:
    """Whether it is one of ours: a foreign graph may have a field of that name."""
    return isinstance(value, dict) and {"type", "ts", "step"} <= value.keys()


class _UsageCounter(AsyncCallbackHandler):
    """Adds up what every model call below it used; where a provider does not say and a budget counts, an estimate."""

    def __init__(self, prices: Mapping[str, Price], *, estimates: bool) -> None:
        self.usage = NO_USAGE
        self._prices = prices
        self._estimates = estimates
        self._asked: dict[UUID, Sequence[BaseMessage]] = {}

    async def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **_: Any
    ) -> None:
        if self._estimates:
            self._asked[run_id] = messages[0]

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._asked.pop(run_id, None)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        asked = self._asked.pop(run_id, None)
        for generation in response.generations[0] if response.generations else []:
            if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
                reply = generation.message
                if asked is not None and reply.usage_metadata is None:
                    reply = reply.model_copy(update={"usage_metadata": estimated_usage(asked, reply)})
                self.usage = add_usage(self.usage, usage_of(reply, self._prices))
