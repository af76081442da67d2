"""Declares the state schemas; every value in a checkpoint is plain JSON or a LangChain message.

A step is one plan of the model and the wave of calls that it makes, which run in parallel. A turn is one model call of
planning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.channels import EphemeralValue
from langgraph.managed import RemainingSteps
from typing_extensions import TypedDict

from graph_agent.base.approvals.requests import HeldCall
from graph_agent.base.history.call_events import Handoff
from graph_agent.base.history.events import Rating, StoredEvent, append_events
from graph_agent.base.history.plan_parts import ModelCallRecord
from graph_agent.base.types import Call, StopReason, Usage
from graph_agent.base.usage import add_usage
from graph_agent.core.state.channels import (
    SNAPSHOT_EVERY,
    GrowingDelta,
    MessagesChannel,
    RemoteState,
    ResponseExtras,
    StatusChannel,
    change_remote,
)

Ratings = dict[str, dict[str, Rating]]
"""`seq` of a rated answer, as text → person → their newest rating."""


class LoopOutcome(TypedDict):
    """Why and how planning ended, passed from the node ``plan`` to the node ``finalize``."""

    stop_reason: StopReason
    limit: NotRequired[float]
    """The value of the limit that was reached, in the unit of its setting; absent if no limit ended planning."""
    draft: NotRequired[AIMessage]
    """The answer, if planning produced it; the streamed part, if planning was interrupted; absent for no text."""
    shown: NotRequired[bool]
    """Whether the draft has been streamed; absent for False."""
    replaced: NotRequired[bool]
    """Whether the draft replaces another text that was streamed under its id; absent for False."""
    unguarded: NotRequired[bool]
    """Whether the draft has not passed hooks and middleware; absent for False."""
    unfit: NotRequired[bool]
    """Whether the planning reply was streamed, and does not match the required response format; absent for False."""
    empty: NotRequired[bool]
    """Whether the reply that was meant as the answer was empty, so that the model is asked once more; absent for
    False."""
    composed: NotRequired[bool]
    """Whether the draft is the whole answer and in the history already; absent for False."""
    failed: NotRequired[bool]
    """Whether the request for the answer failed, so that the draft is its streamed part; absent for False."""
    handoffs: NotRequired[list[Handoff]]
    """Commands of tools to the parent graph, which end the input without an answer; absent if there are none."""


class Recovery(TypedDict, total=False):
    """Measures taken for one input so that a model answers; an absent key stands for False, 0 or nothing."""

    fallback: int
    """Index of the model in use: 0 for the configured one, from 1 for the fallbacks."""
    compacted: bool
    """Whether a warning was emitted that requests omit the older part of the history."""
    unsummarized: bool
    """Whether a request for a summary failed, so that none is requested again."""
    unkept: bool
    """Whether nothing else could be left out, so that requests no longer repeat results that compaction otherwise
    keeps."""
    cut: bool
    """Whether a warning was emitted that requests truncate results further than usual."""
    too_long: int
    """Estimated tokens of the shortest request that the model in use refused as too long."""
    crowded: bool
    """Whether a warning was emitted that the model's context window is nearly full."""
    asked_again: bool
    """Whether the model was asked again because a tool call in its text could not be parsed."""
    asked_in_text: bool
    """Whether a planning request was repeated with the tools as text, because the reply indicated that tools are
    ignored."""
    free_choice: bool
    """Whether a warning was emitted that the tool which the caller's `tool_choice` requests is withheld."""
    unsupported: list[str]
    """Names of models for which a warning was emitted that their class cannot send an option of the configuration."""


# The text itself stands in the event alone: the loop state is written again with each checkpoint.
class Summary(TypedDict):
    """The summary that requests contain in place of the older messages."""

    event: int
    """Index of the `summary` event, which holds the text, in the session's events."""
    kept_from: str
    """Id of the first message that requests contain after the summary."""
    inputs: list[tuple[int, str]]
    """Index and id of each message before `kept_from` that belonged to the current input when the summary was made;
    requests keep these until the next input."""
    at: int
    """Number of messages in the history when the summary was made."""


class HookWork(TypedDict):
    """Actions of loop hooks for one input, which count towards the limits of hooks."""

    reruns: int
    """Number of times that a hook had the model asked again."""
    calls: list[str]
    """Fingerprints (hashes of name and arguments) of the calls in replies that a rerun replaced, to detect loops."""
    ended: list[int]
    """Indices of the agent's hooks whose request for a rerun was refused; they may request no more."""


class RequestOnlyMessages(TypedDict):
    """Messages that are part of requests but not of the history."""

    at: int
    """Number of messages of the history that precede them in requests."""
    messages: list[AnyMessage]
    """The messages, in order."""


class RecalledFacts(TypedDict):
    """The facts of the memory that are part of this input's requests."""

    at: int
    """Number of messages of the history that precede them in requests."""
    facts: list[str]
    """Ids of the facts, the best first."""


class UncertainCalls(TypedDict):
    """The calls whose repetition a reviewer decides on knowingly, as of the session's newest approval request: those
    with an unknown outcome, and those that a fork leaves out.
    """

    read: int
    """Number of the session's events that were read."""
    calls: dict[str, str]
    """Fingerprint of a call (a hash of name and arguments) with an unknown outcome → its id and step, and whether an
    earlier message asked for it."""
    left_out: NotRequired[dict[str, str]]
    """Fingerprint of a call that a fork leaves out → a sentence about it; absent if there is none."""


class Position(TypedDict):
    """Position in the loop: the plans of this input, and the newest wave."""

    step: int
    """Number of plans made for this input; 0 at its start."""
    waves: int
    """Number of waves run for this input; 0 at its start."""
    last_input_id: str
    """Id of the newest user message whose event is stored; empty before the first."""
    outcome: LoopOutcome | None
    """Why and how planning ended; None during planning."""
    versions: NotRequired[str]
    """Digest of the versions of prompts and tools in the input's newest `plan` event that has them; absent before."""
    events_before: NotRequired[int]
    """Number of stored events when the newest plan began, by which readers number the events of a running step."""
    waiting: list[Call]
    """Calls of the wave that wait for results of others; empty unless planning is structured (the model names what each
    call needs)."""
    last_wave: bool
    """Whether the model declared that it needs no plan after this wave."""
    awaiting_approval: NotRequired[list[HeldCall]]
    """Calls of the wave that wait for a person's decision; `waiting` contains them, too. Absent if there are none."""
    model_calls: NotRequired[list[ModelCallRecord]]
    """Model calls that no event reports yet, oldest first; absent if there are none."""
    ledger: NotRequired[bool]
    """Whether the effect ledger (a table of calls that may write) records each such call of the wave before it runs;
    absent for False."""


class LimitsSoFar(TypedDict):
    """Amounts of this session and input that count towards limits, and findings of loop detection."""

    turn: int
    """Model calls of planning in this session; 0 at its start."""
    inputs: NotRequired[int]
    """Number of user messages that began or joined an input; absent in a session that an earlier version began."""
    calls_before: NotRequired[int]
    """Model calls of the earlier inputs, for planning and all else; absent in a session that an earlier version
    began."""
    worked_s: NotRequired[float]
    """Working seconds of this input up to the last step; only with a deadline."""
    loops: NotRequired[dict[str, int]]
    """Pattern of calls → number of repetitions with equal results in this input."""
    withheld: NotRequired[list[str]]
    """Names of tools that are not offered until the next input, because their calls and results repeated."""
    unchanging: NotRequired[list[str]]
    """Names of tools reported in this input because they returned equal results for different arguments."""


class RequestChanges(TypedDict):
    """How requests differ from the history: summaries, truncations, fallback models, tools as text."""

    text_tools: list[str]
    """Names of models whose provider refused tools, so that this session offers tools in the prompt's text."""
    native_tools: NotRequired[list[str]]
    """Names of models that have made a native tool call although their profile does not declare tool calling."""
    recovery: NotRequired[Recovery]
    """Measures taken for this input so that a model answers; absent at its start."""
    summary: NotRequired[Summary]
    """The newest summary; absent before the first."""
    kept_from: NotRequired[str]
    """Id of the first message that requests contain in full; absent if they contain all messages in full."""
    truncations: NotRequired[dict[str, int]]
    """Id of a tool result's message → number of its characters in requests; absent if no result is truncated
    further."""
    caller: NotRequired[str]
    """The authenticated caller who began the newest input; only for an agent with a memory."""
    recalled: NotRequired[RecalledFacts]
    """Facts that the memory holds for this input; absent if there are none."""


class HookState(TypedDict):
    """Records of hooks and middleware for this input."""

    hooks: NotRequired[HookWork]
    """Actions of loop hooks for this input."""
    request_only_messages: NotRequired[list[RequestOnlyMessages]]
    """Messages that hooks add to requests for the rest of this input."""
    extras: NotRequired[ResponseExtras]
    """Writes that middleware returned with the newest reply of the model."""
    next_node: NotRequired[Literal["agent", "model", "review"]]
    """The hooks that run next in an agent with hooks: `before_agent` for `agent`, `before_model` for `model`,
    `after_model` for `review`; absent if `plan` leads elsewhere."""
    reply_id: NotRequired[str]
    """Id of the model's reply that hooks receive now; empty if the request had no reply, absent if no request was
    made."""


class SettingsChanges(TypedDict):
    """Settings of the session or input that differ from the agent's own."""

    config_overrides: NotRequired[dict[str, Any]]
    """Fields of the configuration changed during the session → their values."""
    approve: NotRequired[list[str]]
    """Approval patterns (names of calls that need a decision) of this input's context, which also count if it is
    resumed without them."""
    consumed_notes: NotRequired[list[str]]
    """Keys of processed notes (messages to the session from outside a run) that may still be in the inbox."""
    uncertain: NotRequired[UncertainCalls]
    """The calls whose outcome is unknown; absent before the first approval request."""
    ratings: NotRequired[Ratings]
    """The newest rating of each person; absent before the first."""
    title: NotRequired[str]
    """The session's title; absent unless a person gave one."""
    forked_from: NotRequired[str]
    """Id of the session that this one is a copy of; absent if it is none."""


# Groups keep related keys together for a reader; at run time they are one dictionary.
class LoopState(Position, LimitsSoFar, RequestChanges, HookState, SettingsChanges):
    """The state of the loop between two nodes; a key that is not required is absent until its first value.

    All keys are one field of the state, because each field adds bytes to every checkpoint.
    """


INITIAL_LOOP: LoopState = {
    "step": 0,
    "waves": 0,
    "turn": 0,
    "last_input_id": "",
    "text_tools": [],
    "outcome": None,
    "waiting": [],
    "last_wave": False,
}
"""The loop state of a session before its first input."""


_SESSION_KEYS = (
    *("turn", "inputs", "calls_before", "text_tools", "native_tools", "summary", "kept_from", "truncations"),
    *("consumed_notes", "uncertain", "ratings", "title", "forked_from"),
    # Without it, a message would get a second event when an input is resumed.
    "last_input_id",
)
"""Keys of the loop state that keep their value when a new input begins."""


def loop_of_new_input(last: LoopState, own: Mapping[str, Any]) -> LoopState:
    """Return the loop state at the beginning of an input.

    Session-wide keys are kept, the others are reset. Configuration changes of the session are kept, except for fields
    that the input's context sets, because these are newer. `approve` is that of the context, if it has any there.

    Args:
        last: The loop state at the end of the input before; empty for the first input.
        own: Fields of the input's context that were set → their values.
    """
    loop: LoopState = {**INITIAL_LOOP, **{key: last[key] for key in _SESSION_KEYS if key in last}}  # type: ignore[literal-required, typeddict-item]  # keys of the very same type
    # Values in this input's own context are newer than changes made before it.
    if changed := {name: value for name, value in last.get("config_overrides", {}).items() if name not in own}:
        loop["config_overrides"] = changed
    if own.get("approve"):
        loop["approve"] = list(own["approve"])
    return loop


class AgentInput(TypedDict):
    """Input of a run."""

    messages: Annotated[list[AnyMessage], MessagesChannel()]
    """New messages, usually one from the user, in any form that LangChain accepts as a message."""


class AgentOutput(TypedDict, total=False):
    """Output of a run: the state that `invoke` returns."""

    messages: Annotated[list[AnyMessage], MessagesChannel()]
    """The whole conversation."""
    status: Annotated[str, StatusChannel]
    """A `SessionStatus`; absent before the first input. A transition that is not allowed raises
    `InvalidUpdateError`."""
    stop_reason: str | None
    """A `StopReason`: why planning ended; None during a run."""
    structured_response: Any
    """The answer as plain JSON per ``response_format``; None without a response format or if extraction failed."""


class AgentState(AgentOutput, total=False):
    """All fields of the state that a checkpoint holds."""

    events: Annotated[list[StoredEvent], GrowingDelta(append_events, snapshot_frequency=SNAPSHOT_EVERY)]
    """The session's events, oldest first; empty before the first input. `SessionMemory` reads them."""
    loop: LoopState
    """The state of the loop between two nodes; absent before the first input."""
    ready: list[Call]
    """The calls that the next superstep runs; empty after planning."""
    usage: Annotated[Usage, add_usage]
    """Tokens and model calls of this input; zeros at its start."""
    remote: Annotated[RemoteState | None, change_remote]
    """Tasks and conversations that delegates hold for this session; absent before the first."""
    # A channel of its own, because an ephemeral value is gone after one superstep without a write.
    wave_finished: Annotated[bool, EphemeralValue(bool, guard=False)]
    """True only in the superstep after a wave; it distinguishes a continued run from new input."""


class PlanState(AgentState, total=False):
    """Input of the node ``plan``: the state, and the number of supersteps that LangGraph still allows this run."""

    remaining_steps: RemainingSteps
