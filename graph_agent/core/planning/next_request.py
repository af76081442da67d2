"""Represents the next request to the model as a value: the model, the mode, the offered tools and the messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.settings.config import LoopConfig, Planner
from graph_agent.core.execution.deps import AgentDeps, Task, answer_left_s
from graph_agent.core.hooks.protocol import HookRequest
from graph_agent.core.hooks.request_messages import with_texts
from graph_agent.core.planning.compaction import compacted_view, summarized_view
from graph_agent.core.planning.kept_results import with_kept_results
from graph_agent.core.planning.planner import planner_of
from graph_agent.core.planning.prepared_history import PreparedHistory, with_carried
from graph_agent.core.runs.run import RunHandle
from graph_agent.core.state.call_events import EarlierCalls
from graph_agent.core.state.messages import without_failure_report
from graph_agent.core.state.schema import LoopState, RequestOnlyMessages
from graph_agent.core.tools.truncation import with_cuts
from graph_agent.models.client import Mode
from graph_agent.models.pool import BoundModel
from graph_agent.models.sanitize import SafeMessages, sanitized
from graph_agent.models.stream_watch import Forwarder, StreamWatch
from graph_agent.models.wire.traits import traits_of


class RequestOfHook(NamedTuple):
    """The request of a loop hook, which replaces the agent's own one."""

    request: HookRequest
    model: BoundModel | None
    """The model that the hook has chosen; None for the current one, which has fallbacks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NextRequest:
    """The parts of a pass's next request. An object is never changed: `override` returns another one.

    Which model is asked, how it returns calls, and what is left out of the conversation are derived from `loop`, which
    holds the recoveries from failed requests. So a change of the loop state is all that one request leaves for the
    next.
    """

    agent: AgentDeps
    """The agent; `deps` is the agent with the current model."""
    chain: Sequence[BoundModel]
    """The run's models, the fallbacks after the first; see `ModelPool.chain`."""
    settings: LoopConfig
    """The effective configuration of the run."""
    conversation: Sequence[AnyMessage]
    """The stored messages, oldest first."""
    loop: LoopState
    """The loop state, with the recoveries from failed requests so far."""
    prepared: PreparedHistory = field(default_factory=PreparedHistory)
    """The conversation in the form of the run's earlier requests."""
    earlier: EarlierCalls = field(default_factory=EarlierCalls)
    """The session's calls so far, whose ids new calls must not have, and to whose results a plan may refer."""
    thread_id: str = ""
    """The id by which the session's planner is chosen; empty for a run that stores nothing."""
    session_id: str = ""
    """The id that hooks receive; empty for a run without a session."""
    new_watch: Forwarder = StreamWatch
    """Builds the watch of one reply, which forwards its text if the run has a reader."""
    ends: float | None = None
    """Deadline of the input, as `time.monotonic()`; None without one."""
    summary: str | None = None
    """Text of the current summary, which stands for the older messages; None if there is none."""
    result_texts: Mapping[str, str] = field(default_factory=dict)
    """Message id → text that replaces a tool result."""
    recalled: Sequence[RequestOnlyMessages] = ()
    """The message with facts of earlier sessions; empty if there is none."""
    of_hook: RequestOfHook | None = None
    """The request of a hook that replaces this one; None for the agent's own."""
    in_text: bool = False
    """Whether calls are asked for in text, although the model is asked natively otherwise."""
    model: BoundModel = field(init=False)
    """The model that is asked."""
    deps: AgentDeps = field(init=False)
    """The agent with this model, without withheld tools; for a hook's request, with its tools and options."""
    mode: Mode = field(init=False)
    """How the model is asked for calls."""
    index: int = field(init=False)
    """Position of the current model in `chain`; a hook may have chosen another model."""
    window: int | None = field(init=False)
    """Tokens that the model can read; None if unknown, and for a model that a hook has chosen."""
    has_fallback: bool = field(init=False)
    """Whether another model can be asked if this one stays unavailable."""

    def __post_init__(self) -> None:
        """Derive model, agent, mode, window and fallback from the loop state and the request of a hook."""
        agent, chain, of_hook, loop = self.agent, self.chain, self.of_hook, self.loop
        # A resumed run may bring fewer fallbacks than the one that was interrupted.
        index = min(loop.get("recovery", {}).get("fallback", 0), len(chain) - 1)
        chosen = None if of_hook is None else of_hook.model
        model = chosen or chain[index]
        client = agent.offering(model.client)
        if client is not agent.client:
            agent = replace(agent, client=client, planner=model.planner, tool_calling=model.tool_calling)
        if withheld := loop.get("withheld"):
            agent = agent.without(withheld)
        mode = agent.mode(self.settings)
        if mode == "native" and (self.in_text or model.name in loop["text_tools"]):
            mode = "text"
        derived = {
            "model": model,
            "deps": agent if of_hook is None else _with_options_of(of_hook.request, agent),
            "mode": mode,
            "index": index,
            "window": None if chosen else self.settings.context_window or model.window or model.learned_window,
            "has_fallback": chosen is None and index + 1 < len(chain),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    async def of(cls, task: Task, settings: LoopConfig, history: Sequence[AnyMessage], loop: LoopState) -> Self:
        """Return the first request of a pass through a node.

        Args:
            task: The task of the node.
            settings: The node's present settings, which may have changed since the task began.
            history: The node's present conversation.
            loop: The node's present loop state; it is not modified.

        Raises:
            ConfigError: If the run names a model that cannot be built.
        """
        deps, run, ends = task.deps, task.run, None
        if settings.deadline_s is not None:
            ends = time.monotonic() + (answer_left_s(run, loop, settings) or 0.0)
        return cls(
            agent=deps,
            chain=await deps.models.chain(settings),
            settings=settings,
            conversation=history,
            loop=loop,
            prepared=run.shared("prepared history", PreparedHistory),
            earlier=run.shared("earlier calls", EarlierCalls),
            thread_id=task.config["configurable"].get("thread_id", ""),
            session_id=run.identity.session_id,
            recalled=await _recalled(task, loop) if "recalled" in loop else (),
            new_watch=(run.parent.forwarder if isinstance(run.parent, RunHandle) else None) or StreamWatch,
            ends=ends,
        )

    def override(self, **changes: Any) -> Self:
        """Return a request with other values in some fields; the derived fields are computed again."""
        return replace(self, **changes)

    def with_recovery(self, **recovery: Any) -> Self:
        """Return a request whose loop state has these keys of `Recovery`."""
        return self.override(loop={**self.loop, "recovery": {**self.loop.get("recovery", {}), **recovery}})

    def with_text_tools(self) -> Self:
        """Return a request that asks the current model for calls in text, as all later requests then do."""
        return self.override(loop={**self.loop, "text_tools": [*self.loop["text_tools"], self.model.name]})

    @cached_property
    def planner(self) -> Planner:
        """The session's planner; used in wave mode only."""
        return planner_of(self.thread_id, self.settings, self.agent.agentic_loop)

    @property
    def summarizes(self) -> bool:
        """Whether the model summarizes the older part of the conversation when requests become too long."""
        return self.settings.summarize_at is not None and not self.loop.get("recovery", {}).get("unsummarized")

    @cached_property
    def history(self) -> Sequence[AnyMessage]:
        """The conversation as the request holds it: with messages carried for hooks, rewritten results, summarized and
        cut."""
        if self.of_hook is not None:
            return self.of_hook.request.messages
        kept_from, carried = self.loop.get("kept_from"), self.loop.get("request_only_messages")
        if self.recalled:
            carried = [*self.recalled, *(carried or ())]
        messages = with_carried(self.conversation, carried) if carried else self.conversation
        if self.result_texts:
            messages = with_texts(messages, self.result_texts)
        whole = messages
        if self.summary is not None and (summary := self.loop.get("summary")) is not None:
            messages = summarized_view(messages, self.summary, summary["kept_from"], summary["inputs"])
        # The note of a compacted view quotes messages in the form in which requests hold them.
        view = (
            compacted_view([without_failure_report(message) for message in messages], kept_from)
            if kept_from
            else messages
        )
        if cuts := self.loop.get("truncations"):
            view = with_cuts(view, cuts)
        if (kept_from is None and messages is whole) or self.loop.get("recovery", {}).get("unkept"):
            return view
        return with_kept_results(view, self.prepared.kept.of(whole), self.window)

    def messages(self, tail: Sequence[AnyMessage] = ()) -> SafeMessages:
        """Return the messages of a request for the next wave, the system prompt first.

        Args:
            tail: Messages after the conversation.
        """
        # A hook's messages, and a tail, would displace the conversation that later requests hold.
        is_own = self.of_hook is None and not tail
        history = [*self.history, *tail] if tail else self.history
        messages = (self.prepared if is_own else PreparedHistory()).of(history, self.agent.prompts)
        if (system := self._system()) is None:
            return SafeMessages(messages, traits=messages.traits)
        return SafeMessages([system, *messages], traits=messages.traits | traits_of(system, None))

    def _system(self) -> AnyMessage | None:
        """Return the system message: the agent's own prompt and the framework's instructions; None without either."""
        deps, added = self.deps, ""
        if deps.toolbox.names:
            planner = self.planner if self.mode == "wave" else self.settings.planner
            added = deps.instructions(self.settings, self.mode, planner)
        prompt = deps.prompt(added)
        return sanitized(SystemMessage(prompt)) if prompt else None

    def closing(self) -> list[AnyMessage]:
        """Return the message that asks for the answer; empty for an agent without tools and response format."""
        deps = self.deps
        if not deps.toolbox.names and deps.response is None:
            return []
        schema = deps.response.json_schema if deps.response else None
        plan = bool(deps.toolbox.names) and self.mode == "wave"
        return [HumanMessage(deps.prompts.render("finalize", schema=schema, plan=plan))]

    def answer_messages(self, tail: Sequence[AnyMessage] = ()) -> SafeMessages:
        """Return the messages of a request for the answer, the system prompt first.

        Args:
            tail: Messages after the one that asks for the answer.
        """
        messages = self.messages()
        # The messages of a hook's request hold the closing message already.
        for message in (*(self.closing() if self.of_hook is None else ()), *tail):
            messages.add(sanitized(message))
        return messages

    def estimated_tokens(self) -> int:
        """Estimate the tokens of a request for the next wave, without its tools."""
        self.prepared.of(self.history, self.agent.prompts)
        system = self._system()
        return (0 if system is None else estimated_tokens([system])) + self.prepared.estimated_tokens()


async def _recalled(task: Task, loop: LoopState) -> Sequence[RequestOnlyMessages]:
    """Return the message with the facts that the input has recalled; empty if there is none."""
    # Imported here: most agents have no memory.
    from graph_agent.core.planning.recall import recalled_messages

    return await recalled_messages(task, loop)


def _with_options_of(request: HookRequest, agent: AgentDeps) -> AgentDeps:
    """Return the agent with the tools and the options of a hook's request."""
    options = {**request.optional_params, **request.kwargs}
    if request.max_tokens is not None:
        options["max_tokens"] = request.max_tokens
    return replace(
        agent,
        client=agent.client.with_overrides(request.tools, options),
        planner=agent.planner.with_overrides(options),
        toolbox=agent.toolbox.offering(request.tools),
        # A hook may patch the same request differently each time.
        cache=None,
    )
