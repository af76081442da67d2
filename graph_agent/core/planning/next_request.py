"""Represents the next request to the model as a value: the model, the mode, the offered tools and the messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

from langchain_core.messages import AnyMessage, HumanMessage

from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base.history.call_events import EarlierCalls
from graph_agent.base.settings.config import LoopConfig, Planner
from graph_agent.core.execution.deps import AgentDeps, Task, answer_left_s
from graph_agent.core.extensions.hook_protocol import HookRequest
from graph_agent.core.extensions.request_messages import with_texts
from graph_agent.core.extensions.truncation import with_cuts
from graph_agent.core.planning.compaction import compacted_view, summarized_view
from graph_agent.core.planning.kept_results import with_kept_results
from graph_agent.core.planning.planner import planner_of
from graph_agent.core.planning.prepared_history import PreparedHistory, with_carried
from graph_agent.core.state.messages import without_failure_report
from graph_agent.core.state.run import RunHandle
from graph_agent.core.state.schema import LoopState, RequestOnlyMessages
from graph_agent.models.client import Mode
from graph_agent.models.pool import BoundModel
from graph_agent.models.sanitize import SafeMessages, sanitized
from graph_agent.models.stream_watch import Forwarder, StreamWatch


class RequestOfHook(NamedTuple):
    """The request that a loop hook has patched, which is sent in place of the agent's own."""

    request: HookRequest
    model: BoundModel | None
    """The model that the hook has chosen; None for the current one, which has fallbacks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NextRequest:
    """The next request of a pass through a node, as an immutable value; `override` returns a changed one.

    Which model is asked, how it returns calls, and what is left out of the conversation are derived from `loop`, which
    holds the measures taken after failed requests. So a changed loop state is everything that one request passes to the
    next.
    """

    agent: AgentDeps
    """The agent's parts; `deps` has them with the current model."""
    chain: Sequence[BoundModel]
    """The run's models, the fallbacks after the first; see `ModelPool.chain`."""
    settings: LoopConfig
    """The effective configuration of the run."""
    conversation: Sequence[AnyMessage]
    """The stored messages, oldest first."""
    loop: LoopState
    """The loop state, with the measures taken after failed requests so far."""
    prepared: PreparedHistory = field(default_factory=PreparedHistory)
    """Cache of the conversation in the form that requests send, shared by the requests of a run."""
    earlier: EarlierCalls = field(default_factory=EarlierCalls)
    """The session's calls so far, whose ids new calls must not have, and to whose results a plan may refer."""
    thread_id: str = ""
    """The id by which the session's planner is chosen; empty for a run that stores nothing."""
    session_id: str = ""
    """The id that hooks receive; empty for a run without a session."""
    new_watch: Forwarder = StreamWatch
    """Builds the watch of one reply's stream, which forwards the text to the run's reader if there is one."""
    ends: float | None = None
    """Deadline of the input, as `time.monotonic()`; None without one."""
    summary: str | None = None
    """Text of the current summary, which stands for the older messages; None if there is none."""
    result_texts: Mapping[str, str] = field(default_factory=dict)
    """Id of a tool message → text that requests show in place of its content."""
    recalled: Sequence[RequestOnlyMessages] = ()
    """Holds one message with facts from earlier sessions; empty if there is none."""
    of_hook: RequestOfHook | None = None
    """The request of a hook that replaces this one; None for the agent's own."""
    in_text: bool = False
    """Whether this one request asks for calls in text, although the model is otherwise asked through the provider's
    tools."""
    model: BoundModel = field(init=False)
    """The model that is asked; derived."""
    deps: AgentDeps = field(init=False)
    """The agent's parts with this model and without withheld tools.

    For a hook's request, with the hook's tools and options.
    """
    mode: Mode = field(init=False)
    """How the model is asked for calls: `native`, `text` or `wave`."""
    index: int = field(init=False)
    """Position of the current model in `chain`, even if a hook has chosen another model."""
    window: int | None = field(init=False)
    """Tokens that the model can read; None if unknown, and for a model that a hook has chosen."""
    has_fallback: bool = field(init=False)
    """Whether the chain has another model that can be asked if this one stays unavailable."""

    def __post_init__(self) -> None:
        """Compute the derived fields from the loop state and the request of a hook.

        The model is the one that a hook names, or else the model of the chain that the loop state has reached. A hook's
        model has no fallback, and its context window is unknown. The mode is `text` instead of `native` if `in_text` is
        set, or if this session has learned that the model takes no tools. Tools withheld after a loop are removed from
        `deps`.
        """
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
        # A frozen instance refuses assignments to its attributes.
        self.__dict__.update(
            model=model,
            deps=agent if of_hook is None else _with_options_of(of_hook.request, agent),
            mode=mode,
            index=index,
            window=None if chosen else self.settings.context_window or model.window or model.learned_window,
            has_fallback=chosen is None and index + 1 < len(chain),
        )

    @classmethod
    async def of(cls, task: Task, settings: LoopConfig, history: Sequence[AnyMessage], loop: LoopState) -> Self:
        """Return the first request of a pass through a node, with the run's caches of the conversation and of earlier
        calls.

        Facts that the input has recalled are read anew from the memory. A deadline in the settings becomes the
        request's end.

        Args:
            task: The task of the node.
            settings: The node's present settings, which may have changed since the task began.
            history: The node's present conversation.
            loop: The node's present loop state; it is not modified.

        Raises:
            ConfigError: The run names a model that cannot be built.
            UserError: Facts were recalled, and no caller is known, or the memory raised it.
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
            prepared=run.shared("prepared history", partial(PreparedHistory, run.stored)),
            earlier=run.shared("earlier calls", EarlierCalls),
            thread_id=task.config["configurable"].get("thread_id", ""),
            session_id=run.identity.session_id,
            recalled=await _recalled(task, loop) if "recalled" in loop else (),
            new_watch=(run.parent.forwarder if isinstance(run.parent, RunHandle) else None) or StreamWatch,
            ends=ends,
        )

    def override(self, **changes: Any) -> Self:
        """Return a copy with other values in some fields; the derived fields are computed again."""
        return replace(self, **changes)

    def with_recovery(self, **recovery: Any) -> Self:
        """Return a copy whose loop state has these keys of `Recovery` set; other keys stay."""
        return self.override(loop={**self.loop, "recovery": {**self.loop.get("recovery", {}), **recovery}})

    def with_text_tools(self) -> Self:
        """Return a copy that asks the current model for calls in text, as do all later requests to this model."""
        return self.override(loop={**self.loop, "text_tools": [*self.loop["text_tools"], self.model.name]})

    @cached_property
    def planner(self) -> Planner:
        """The session's planner; used in wave mode only."""
        return planner_of(self.thread_id, self.settings, self.agent.agentic_loop)

    @property
    def summarizes(self) -> bool:
        """Whether old messages are replaced by a summary when requests become too long.

        False once a summary failed in this input.
        """
        return self.settings.summarize_at is not None and not self.loop.get("recovery", {}).get("unsummarized")

    @cached_property
    def history(self) -> Sequence[AnyMessage]:
        """The conversation as the request sends it. If a hook has patched the request, these are the messages of the
        hook.

        Otherwise the changes are, in this order: messages of hooks and recalled facts are inserted; rewritten results
        replace the stored ones; a summary stands for the older part; after a shortening, a note does, and results are
        cut. If anything was left out, a second note repeats marked results, such as a loaded skill, unless even this
        note had to be dropped.
        """
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
        """Return the messages of a request for the next wave, the system prompt first, made safe for providers (see
        `sanitized`).

        There is no system message if the prompt is empty.

        Args:
            tail: Messages after the conversation.
        """
        # A hook's messages, and a tail, would displace the conversation that later requests hold.
        is_own = self.of_hook is None and not tail
        history = [*self.history, *tail] if tail else self.history
        messages = (self.prepared if is_own else PreparedHistory()).of(history, self.agent.prompts)
        system = self._system()
        return SafeMessages([*system, *messages], traits=system.traits | messages.traits)

    def _system(self) -> SafeMessages:
        """Return a list with the system message: the agent's own prompt and, if there are tools, the planning
        instructions.

        Empty if both are. The caller must not modify the list.
        """
        deps, added = self.deps, ""
        if deps.toolbox.names:
            planner = self.planner if self.mode == "wave" else self.settings.planner
            added = deps.instructions(self.settings, self.mode, planner)
        return self.prepared.begin(deps.prompt(added))

    def closing(self) -> list[AnyMessage]:
        """Return a list with the message that asks for the answer; empty for an agent without tools and response
        format.

        With a response format, the message contains its JSON schema.
        """
        deps = self.deps
        if not deps.toolbox.names and deps.response is None:
            return []
        schema = deps.response.json_schema if deps.response else None
        plan = bool(deps.toolbox.names) and self.mode == "wave"
        return [HumanMessage(deps.prompts.render("finalize", schema=schema, plan=plan))]

    def answer_messages(self, tail: Sequence[AnyMessage] = ()) -> SafeMessages:
        """Return the messages of a request for the answer, the system prompt first: those of a plan, and the closing
        message.

        The messages of a hook's request have the closing message already, and get none.

        Args:
            tail: Messages after the one that asks for the answer.
        """
        messages = self.messages()
        # The messages of a hook's request hold the closing message already.
        for message in (*(self.closing() if self.of_hook is None else ()), *tail):
            messages.add(sanitized(message))
        return messages

    def estimated_tokens(self) -> int:
        """Estimate the tokens of a request for the next wave from its messages.

        The schemas of its tools are not counted.
        """
        self.prepared.of(self.history, self.agent.prompts)
        return estimated_tokens(self._system()) + self.prepared.estimated_tokens()


async def _recalled(task: Task, loop: LoopState) -> Sequence[RequestOnlyMessages]:
    """Return a list with one hidden message (not shown to users) of facts that the input has recalled from the memory;
    empty if no fact is left. Errors are those of `recalled_messages`.
    """
    # Imported here: most agents have no memory.
    from graph_agent.core.planning.recall import recalled_messages

    return await recalled_messages(task, loop)


def _with_options_of(request: HookRequest, agent: AgentDeps) -> AgentDeps:
    """Return the agent's parts with the tools and model options of a hook's request, and without the plan cache.

    Its `kwargs` take precedence over its `optional_params`, and `max_tokens`, if set, over both.
    """
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
