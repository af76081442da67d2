"""Reads the outcomes of runs, as the chat APIs report them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.types import StateSnapshot

from graph_agent.base._internal.media import estimated_tokens
from graph_agent.base._internal.text import as_text, text_of
from graph_agent.base.finish import CUT_OFF
from graph_agent.base.history.call_events import call_name
from graph_agent.base.history.events import NOT_RUN, StoredEvent
from graph_agent.base.model_error_text import public_text
from graph_agent.base.types import NO_USAGE, CutOff, StopReason
from graph_agent.interfaces.server.chat.run_spec import RunSpec, interrupts_question, waiting_approvals
from graph_agent.interfaces.server.feeds import RESULTS
from graph_agent.interfaces.server.problems import ProblemError, problem_of_run
from graph_agent.session.results import is_refusal, open_interrupts, since_last_input, stored_input

Ending = Literal["stop", "length", "calls", "filtered", "stop_sequence"]
"""Why an answer ended: regularly, at the token limit, with calls of the caller's tools, by a content filter, or at a
stop sequence.
"""


@dataclass(frozen=True, slots=True)
class ChatOutcome:
    """The outcome of one run, independent of the API."""

    text: str
    """The whole text of the run: its messages, joined by blank lines."""
    calls: list[dict[str, Any]]
    """Calls of the caller's own tools: `{"id", "name", "arguments"}`, in call order."""
    ending: Ending
    stop_sequence: str | None
    """The stop sequence that ended the answer; None if there was none, or the provider does not report it."""
    input_tokens: int
    output_tokens: int
    status: str
    """The session's status, e.g. `COMPLETED` or `FAILED`."""
    rest: str = field(default="", compare=False)
    """The end of `text` that was not streamed; empty if all of it was."""
    continues: bool = field(default=False, compare=False)
    """Whether `rest` continues the newest streamed message, and is not a message of its own."""
    approvals: list[dict[str, Any]] = field(default_factory=list)
    """Calls that wait for an approval: `{"token", "interrupt", "index", "name", "arguments"}`, in order.

    `token` names the thread for the caller, `interrupt` is the id of the interrupt, `index` the position of the call in
    it.
    """
    refusal: bool = False
    """Whether the model or its provider refused to answer; the text is the refusal."""
    citations: Sequence[Mapping[str, Any]] = ()
    """Sources of the answer that have a URL, with the positions `start` and `end` in the answer."""
    answer_at: int = field(default=0, compare=False)
    """Index in `text` at which the answer begins; 0 if there are no citations."""
    reply: AIMessage | None = None
    """The model's newest message, with the answer or the caller's calls; None if there is none."""
    cached_tokens: int = 0
    """Input tokens that were read from the provider's cache; 0 if the provider does not report them."""
    cache_write_tokens: int = 0
    """Input tokens that were written to the provider's cache; 0 if the provider does not report them."""
    reasoning_tokens: int = 0
    """Output tokens of the model's reasoning; 0 if the provider does not report them."""
    problem: ProblemError | None = None
    """Why the run failed; None if it did not fail."""
    has_written: bool = False
    """Whether a call with possible side effects has run for this input; False if the run did not fail."""


def read_outcome(spec: RunSpec, state: StateSnapshot, sent: Mapping[str, str]) -> ChatOutcome:
    """Return the outcome of a run from its last state.

    The text is all that was streamed, then the part of the answer that was not streamed (`rest`). The answer is the
    structured response as JSON, the agent's answer, or else the open question, which is empty while calls of the
    caller's tools wait. A failed run has the problem of its last `error` event. Tokens are summed over all model calls
    of this run; if the provider reports none, they are estimated at 4 characters per token, at least 1. Sources without
    a URL are left out.

    Args:
        spec: The run.
        state: The newest state of the thread.
        sent: Message id → the text of the message that was streamed.
    """
    found, interrupts = stored_input(state), open_interrupts(state)
    messages: list[AnyMessage] = state.values.get("messages", [])
    calls, approvals, question = list[dict[str, Any]](), list[dict[str, Any]](), ""
    if interrupts:
        calls = spec.client_calls(interrupts)
        approvals = waiting_approvals(interrupts, spec.token or spec.call_token)
        # Without a marker, the session identifies the thread.
        token = spec.token or (spec.call_token if spec.marks_questions else None)
        question = "" if calls else interrupts_question(interrupts, token, spec.refused)
    reply = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    answered, begun = found.newest("agent_response"), ""
    answer = text_of(answered.get("content", ""))
    text, structured = public_text(answer), found.values.get("structured_response")
    stop_reason: StopReason | None = found.values.get("stop_reason")
    if structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    elif text and reply is not None:
        begun = sent.get(reply.id or "", "")
    # A run that waits has no answer, so the question is the text.
    text = text or question
    rest, continues = text.removeprefix(begun), bool(begun) and text.startswith(begun)
    if approvals and sent:
        # The question belongs to the message whose calls it is about.
        rest, continues = f"\n\n{rest}", True
    whole = "\n\n".join([*sent.values(), *([rest] if rest and not continues else [])]) + (rest if continues else "")
    problem = None
    if found.status == "FAILED":
        problem = problem_of_run(found.newest("error").get("kind", ""))
    metadata = messages[-1].response_metadata if messages and isinstance(messages[-1], AIMessage) and not calls else {}
    reason = str(metadata.get("finish_reason") or metadata.get("stop_reason") or "")
    sequence = metadata.get("stop_sequence") if reason == "stop_sequence" else None
    # The state holds the usage of the whole input; earlier requests have reported their part of it.
    used, reported = found.values.get("usage") or NO_USAGE, spec.used_before
    cited = [each for each in answered.get("citations", ()) if each.get("url")]
    return ChatOutcome(
        text=whole,
        rest=rest,
        continues=continues,
        calls=calls,
        ending="calls" if calls else _ending(reason, answered.get("truncated"), stop_reason),
        stop_sequence=sequence if isinstance(sequence, str) else None,
        input_tokens=used["input_tokens"] - reported["input_tokens"] or estimated_tokens(messages) or 1,
        output_tokens=used["output_tokens"] - reported["output_tokens"]
        or estimated_tokens([AIMessage(whole or as_text(calls))])
        or 1,
        status=found.status.value,
        approvals=approvals,
        # The sentence of a limit, or the text before a content filter cut it off, makes the answer more than a refusal.
        refusal=stop_reason == "completed" and not answer.endswith(CUT_OFF) and is_refusal(found.events),
        citations=cited,
        answer_at=max(0, whole.rfind(answer)) if cited else 0,
        reply=reply,
        problem=problem,
        has_written=problem is not None and _has_written(spec, found.events),
        **_token_details(messages),
    )


def _has_written(spec: RunSpec, events: Sequence[StoredEvent]) -> bool:
    """Return whether, by the results among these events, a call that may have side effects has run.

    Calls of the caller's own tools, and calls that did not run, e.g. because they were rejected, do not count. False
    for a graph that is not this package's agent.
    """
    deps = getattr(spec.graph.builder, "deps", None)
    clients = {tool["function"]["name"] for tool in spec.context.get("client_tools", ())}
    clients |= {*spec.context.get("client_calls", {}).values()}
    return deps is not None and any(
        (name := str(call_name(event))) not in clients and deps.toolbox.writes(name)
        for event in events
        if event["type"] in RESULTS and event["status"] not in NOT_RUN
    )


def commentary_of(spec: RunSpec, state: StateSnapshot, before: Mapping[str, Any]) -> list[str]:
    """Return the texts that came before the last message of a request, oldest first: texts beside calls, and replaced
    answers.

    Empty if the answer is structured. Texts beside calls are left out if the agent does not stream while it plans,
    except that of the plan whose calls wait now.

    Args:
        spec: The run.
        state: The state at the end of the request.
        before: The state of the same input before the request; empty if the request began the input.
    """
    if spec.is_structured:
        return []
    events: list[StoredEvent] = state.values.get("events", [])
    recent = events[len(before["events"]) :] if before.get("events") else since_last_input(events)
    answers = [at for at, event in enumerate(recent) if event["type"] == "agent_response"]
    if answers and not state.next:
        recent = recent[: answers[-1]]  # the answer is not commentary
    waits = [event for event in recent if event["type"] == "plan" and event["calls"]][-1:] if state.interrupts else []
    texts = [event["reasoning"] if event in waits else text_of_event(spec, event) for event in recent]
    return [text for text in texts if text]


def text_of_event(spec: RunSpec, event: StoredEvent) -> str:
    """Return the text of an event that clients receive as a message: that of a plan with calls, commentary, or an
    answer.

    Empty for other events, for a structured plan, for each plan if the agent does not stream while it plans, in a run
    whose answer is structured, and for a graph that is not this package's agent.
    """
    deps = getattr(spec.graph.builder, "deps", None)
    if deps is None or spec.is_structured:
        return ""
    if event["type"] == "plan":
        shows = event["calls"] and "planner" not in event and deps.streams_while_planning(deps.config)
        return event["reasoning"] if shows else ""
    return event.get("commentary") or (text_of(event["content"]) if event["type"] == "agent_response" else "")


def _token_details(messages: Sequence[AnyMessage]) -> dict[str, int]:
    """Return the details that providers reported for the model calls after the last user message, which may be a
    steering message, summed.

    The keys are `cached_tokens`, `cache_write_tokens` and `reasoning_tokens`; empty if no provider reported usage.
    """
    found = Counter[str]()
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        used = message.usage_metadata if isinstance(message, AIMessage) else None
        if used is not None:
            cache, output = used.get("input_token_details", {}), used.get("output_token_details", {})
            found["cached_tokens"] += cache.get("cache_read") or 0
            found["cache_write_tokens"] += cache.get("cache_creation") or 0
            found["reasoning_tokens"] += output.get("reasoning") or 0
    return dict(found)


def _ending(reason: str, truncated: CutOff | None, stop_reason: StopReason | None) -> Ending:
    """Return why an answer ended: `filtered`, `length`, `stop_sequence` or `stop`, the first that applies.

    A content filter, or any other cut, also by the run's token limit, decides on the first two. The provider's finish
    reason `reason`, which may be empty, decides on the others.
    """
    if truncated == "content_filter":
        return "filtered"
    # Neither API has a reason for an answer that the provider cut off; `length` also means that the text is incomplete.
    if truncated is not None or stop_reason == "token_limit":
        return "length"
    return "stop_sequence" if reason == "stop_sequence" else "stop"
