"""Declares the state schemas; every value in a checkpoint is plain JSON or a LangChain message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.channels import EphemeralValue
from langgraph.managed import RemainingSteps
from typing_extensions import TypedDict

from graph_agent.base.types import Call, StopReason, Usage
from graph_agent.base.usage import add_usage
from graph_agent.core.approvals.requests import HeldCall
from graph_agent.core.state.call_events import Handoff
from graph_agent.core.state.channels import (
    SNAPSHOT_EVERY,
    GrowingDelta,
    MessagesChannel,
    RemoteState,
    ResponseExtras,
    StatusChannel,
    change_remote,
)
from graph_agent.core.state.events import ModelCallRecord, StoredEvent, append_events


class LoopOutcome(TypedDict):
    """The reason planning ended, passed from ``plan`` to ``finalize``."""

    stop_reason: StopReason
    limit: NotRequired[float]
    """The value of the limit that was reached; absent if there is none."""
    draft: NotRequired[AIMessage]
    """The answer, if planning produced it; the streamed part, if planning was interrupted."""
    shown: NotRequired[bool]
    """Whether the draft has been streamed; absent for False."""
    replaced: NotRequired[bool]
    """Whether the draft replaces another text that was streamed under its id; absent for False."""
    unguarded: NotRequired[bool]
    """Whether the draft has not passed hooks and middleware; absent for False."""
    unfit: NotRequired[bool]
    """Whether the planning reply was streamed and does not match the response format; absent for False."""
    empty: NotRequired[bool]
    """Whether the reply meant as answer was empty, so the model is asked once more; absent for False."""
    composed: NotRequired[bool]
    """Whether the draft is the whole answer, in the history already; absent for False."""
    failed: NotRequired[bool]
    """Whether the request for the answer failed, so that the draft is its streamed part; absent for False."""
    handoffs: NotRequired[list[Handoff]]
    """Commands to the parent graph that end the input without an answer; absent if there are none."""


class Recovery(TypedDict, total=False):
    """Measures taken for one input so that a model answers."""

    fallback: int
    """Index of the model in use: 0 or absent for the first, from 1 for the fallbacks."""
    compacted: bool
    """A warning was emitted that requests omit the older part of the history."""
    unsummarized: bool
    """A summary failed, so that none is requested again."""
    unkept: bool
    """Nothing else could be left out, so that requests do not repeat kept results."""
    cut: bool
    """A warning was emitted that requests truncate results further."""
    too_long: int
    """Estimated tokens of the shortest request that the model in use refused as too long; absent if there is none."""
    crowded: bool
    """A warning was emitted that the model's context window is nearly full."""
    asked_again: bool
    """The model was asked again because a call in its text could not be read."""
    asked_in_text: bool
    """A planning request was repeated with tools in text, because the reply indicated that tools are ignored."""
    free_choice: bool
    """A warning was emitted that the tool requested by the caller's tool choice is withheld."""
    unsupported: list[str]
    """Models for which a warning was emitted that their class cannot send an option of the configuration."""


class Summary(TypedDict):
    """The summary that requests hold in place of the older messages."""

    event: int
    """Index of its `summary` event in the history."""
    kept_from: str
    """Id of the first message that requests contain after it."""
    inputs: list[tuple[int, str]]
    """Position and id of each message before `kept_from` that belongs to the input of that time; requests keep them
    until the next input."""
    at: int
    """Number of messages when it was made."""


class HookWork(TypedDict):
    """Actions of loop hooks for one input, which count towards their limits."""

    reruns: int
    """Number of reruns of the model."""
    calls: list[str]
    """Fingerprints of the replies replaced by reruns; a reply without calls has none."""
    ended: list[int]
    """Indices of the agent's hooks whose rerun was refused; they have no more reruns."""


class RequestOnlyMessages(TypedDict):
    """Messages that are part of requests but not of the history."""

    at: int
    """Number of history messages before them."""
    messages: list[AnyMessage]


class Position(TypedDict):
    """Position in the loop: the plans and the wave of this input."""

    step: int
    """Plans made for this input; 0 at its start."""
    waves: int
    """Waves run for this input; 0 at its start."""
    last_input_id: str
    """Id of the newest user message whose event is written; empty before the first."""
    outcome: LoopOutcome | None
    """The reason planning ended; None during planning."""
    events_before: NotRequired[int]
    """Number of events when the newest plan began, so that readers can number the newest events; absent before."""
    waiting: list[Call]
    """Calls of the wave that wait for others; empty outside structured planning."""
    last_wave: bool
    """Whether the model declared this wave the last one."""
    awaiting_approval: NotRequired[list[HeldCall]]
    """Calls of the wave on which a person is asked to decide; `waiting` contains them too."""
    model_calls: NotRequired[list[ModelCallRecord]]
    """Model calls that no event reports yet, oldest first; absent if there are none."""
    ledger: NotRequired[bool]
    """Whether the effect ledger records each writing call of the wave before it runs; absent for False."""


class LimitsSoFar(TypedDict):
    """Amounts that count towards limits, and what loop detection has found in this input."""

    turn: int
    """Phase-1 model calls of the session; 0 at its start."""
    inputs: NotRequired[int]
    """User messages that began or joined an input; absent in a session that an earlier version began."""
    calls_before: NotRequired[int]
    """Model calls of the earlier inputs, of every phase; absent in a session that an earlier version began."""
    worked_s: NotRequired[float]
    """Seconds spent on this input up to the last step; only with a deadline."""
    loops: NotRequired[dict[str, int]]
    """Pattern of calls → number of repetitions with equal results in this input."""
    withheld: NotRequired[list[str]]
    """Tools not offered until the next input because their calls and results repeated."""
    unchanging: NotRequired[list[str]]
    """Tools reported in this input for equal results under different arguments."""


class RequestChanges(TypedDict):
    """Measures by which requests differ from the history: summaries, truncations, fallbacks, tools in text."""

    text_tools: list[str]
    """Models whose provider refused tools, so that this session calls tools in text."""
    native_tools: NotRequired[list[str]]
    """Models with a native tool call so far whose profile does not declare tool calling."""
    recovery: NotRequired[Recovery]
    """Measures taken so far for this input's requests; absent at its start."""
    summary: NotRequired[Summary]
    """The newest summary; absent before the first."""
    kept_from: NotRequired[str]
    """Id of the first message that requests contain in full; absent if they contain all."""
    truncations: NotRequired[dict[str, int]]
    """Id of a result's message → characters of it in requests; absent if no result is truncated further."""


class HookState(TypedDict):
    """What hooks and middleware have done for this input."""

    hooks: NotRequired[HookWork]
    """Actions of loop hooks for this input."""
    request_only_messages: NotRequired[list[RequestOnlyMessages]]
    """Messages that hooks add to requests for the rest of this input."""
    extras: NotRequired[ResponseExtras]
    """What middleware returned with the newest reply."""
    next_node: NotRequired[Literal["agent", "model", "review"]]
    """Where `plan` leads an agent with hooks: `before_agent`, `before_model`, `after_model`; absent for elsewhere."""
    reply_id: NotRequired[str]
    """Id of the model's reply that hooks see now; empty for a request without one, absent if none was made."""


class SettingsChanges(TypedDict):
    """Settings that differ from the agent's own."""

    config_overrides: NotRequired[dict[str, Any]]
    """Configuration fields changed during the session."""
    approve: NotRequired[list[str]]
    """Approval patterns of this input's context, which also count when it is resumed without them."""
    consumed_notes: NotRequired[list[str]]
    """Keys of processed notes that may still be in the inbox."""


class LoopState(Position, LimitsSoFar, RequestChanges, HookState, SettingsChanges):
    """The state of the loop between two nodes. It is one state field because each field adds bytes to a checkpoint.

    A key that is not required is absent until its first value.
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


_SESSION_KEYS = (
    "turn",
    "inputs",
    "calls_before",
    "last_input_id",
    "text_tools",
    "native_tools",
    "summary",
    "kept_from",
    "truncations",
    "consumed_notes",
)
"""Keys of the loop state that are kept when a new input begins."""


def loop_of_new_input(last: LoopState, own: Mapping[str, Any]) -> LoopState:
    """Return the loop state at the beginning of an input, after `last`, which is empty for the first input.

    `own` has configuration fields that the input's own context sets.
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
    """Output of a run."""

    messages: Annotated[list[AnyMessage], MessagesChannel()]
    """The whole conversation."""
    status: Annotated[str, StatusChannel]
    """A `SessionStatus`; absent before the first input. Invalid transitions are refused."""
    stop_reason: str | None
    """A `StopReason`; None during a run."""
    structured_response: Any
    """The answer as plain JSON per ``response_format``; None without a response format or if extraction failed."""


class AgentState(AgentOutput, total=False):
    """All fields of a checkpoint."""

    events: Annotated[list[StoredEvent], GrowingDelta(append_events, snapshot_frequency=SNAPSHOT_EVERY)]
    """The history; empty before the first input. `SessionMemory` reads it."""
    loop: LoopState
    """Position of the loop; absent before the first input."""
    ready: list[Call]
    """The calls to run next; empty after planning."""
    usage: Annotated[Usage, add_usage]
    """Tokens and model calls of this input; zeros at its start."""
    remote: Annotated[RemoteState | None, change_remote]
    """Tasks and conversations that other agents hold for this session; absent before the first."""
    wave_finished: Annotated[bool, EphemeralValue(bool, guard=False)]
    """True only in the superstep after a wave; it distinguishes a continued run from new input."""


class PlanState(AgentState, total=False):
    """Input of ``plan``: the state and the number of supersteps that LangGraph still allows."""

    remaining_steps: RemainingSteps


def report_model_calls(loop: LoopState, entry: StoredEvent) -> None:
    """Move the model calls that no event reports yet from the loop state to an event."""
    if calls := loop.pop("model_calls", None):
        entry["model_calls"] = calls
