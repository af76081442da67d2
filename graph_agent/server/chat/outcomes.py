"""Outcomes of runs, as the chat APIs report them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from langgraph.types import StateSnapshot

from graph_agent._internal.text import as_text
from graph_agent.events.types import StoredEvent
from graph_agent.models.finish_reasons import REFUSAL_WARNING
from graph_agent.models.public_text import public_text
from graph_agent.server.chat.approvals import is_repeated, question_of, waiting_approvals
from graph_agent.server.chat.run_spec import RunSpec
from graph_agent.server.errors.problems import ProblemError, problem_of_run
from graph_agent.session.run_result import RunResult, run_result, since_last_input

Ending = Literal["stop", "length", "calls", "filtered", "stop_sequence"]


@dataclass(frozen=True, slots=True)
class ChatOutcome:
    """The outcome of one run."""

    text: str
    """The whole answer; empty if the run waits for the caller's tools and the model wrote no text before the calls."""
    calls: list[dict[str, Any]]
    """Calls of the caller's own tools: `{"id", "name", "arguments"}`, in call order."""
    ending: Ending
    stop_sequence: str | None
    """The stop sequence that ended the answer, if the provider reports it."""
    input_tokens: int
    output_tokens: int
    status: str
    """The session's status."""
    question: str = ""
    """The end of `text` that asks a person, and that was not streamed; empty if the run does not wait for a person."""
    approvals: list[dict[str, Any]] = field(default_factory=list)
    """Calls that wait for a person's approval: `{"token", "interrupt", "index", "name", "arguments"}`, in order.

    `token` names the thread for the caller, `index` is that in the request of the interrupt."""
    refusal: bool = False
    """Whether the model or its provider refused to answer; `text` is the refusal."""
    reply: AIMessage | None = None
    """The model's message with the answer, or with the caller's calls; None without one."""
    cached_tokens: int = 0
    """Input tokens read from the provider's cache, as far as reported."""
    cache_write_tokens: int = 0
    """Input tokens written to the provider's cache, as far as reported."""
    reasoning_tokens: int = 0
    """Output tokens of the model's reasoning, as far as reported."""
    problem: ProblemError | None = None
    """The reason why there is no answer; None if there is one."""


def read_outcome(spec: RunSpec, state: StateSnapshot) -> ChatOutcome:
    """Return the outcome of a run from its last state.

    Tokens are summed over all model calls of this run. If the provider reports none, they are estimated at 4 characters
    per token, at least 1.
    """
    result = run_result(state)
    messages: list[AnyMessage] = state.values.get("messages", [])
    events: list[StoredEvent] = state.values.get("events", [])
    calls = spec.client_calls(result.interrupts)
    question = "" if calls else question_of(result.interrupts, spec.question_token, spec.refused)
    text = public_text(result.answer)
    if result.structured_response is not None:
        text = json.dumps(result.structured_response, ensure_ascii=False)
    if not text:
        repeated = bool(spec.refused) or is_repeated(result.interrupts)
        before = result.reasoning if calls or (question and not repeated) else ""
        text = "\n\n".join(filter(None, [before, question]))
    problem = None
    recent = since_last_input(events)
    if result.status == "FAILED":
        errors = [event for event in recent if event["type"] == "error"]
        problem = problem_of_run(errors[-1]["kind"] if errors else "")
    metadata = messages[-1].response_metadata if messages and isinstance(messages[-1], AIMessage) and not calls else {}
    reason = str(metadata.get("finish_reason") or metadata.get("stop_reason") or "")
    sequence = metadata.get("stop_sequence") if reason == "stop_sequence" else None
    # The state holds the usage of the whole input; earlier requests have reported their part of it.
    used, reported = result.usage, spec.used_before
    return ChatOutcome(
        text=text,
        calls=calls,
        ending="calls" if calls else _ending(reason, result),
        stop_sequence=sequence if isinstance(sequence, str) else None,
        input_tokens=used["input_tokens"] - reported["input_tokens"] or count_tokens_approximately(messages) or 1,
        output_tokens=used["output_tokens"] - reported["output_tokens"]
        or count_tokens_approximately([AIMessage(text or as_text(calls))])
        or 1,
        status=result.status.value,
        question=question,
        approvals=waiting_approvals(result.interrupts, spec.token or spec.call_token),
        refusal=not calls and is_refusal(recent),
        reply=next((message for message in reversed(messages) if isinstance(message, AIMessage)), None),
        problem=problem,
        **_token_details(messages),
    )


def is_refusal(events: Sequence[StoredEvent]) -> bool:
    """Whether the model or its provider refused to answer, according to some events."""
    return any(event["type"] == "warning" and str(event.get("message")).endswith(REFUSAL_WARNING) for event in events)


def _token_details(messages: Sequence[AnyMessage]) -> dict[str, int]:
    """Return the reported details of the tokens of the newest input's messages."""
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


def _ending(reason: str, result: RunResult) -> Ending:
    if result.truncated == "content_filter":
        return "filtered"
    # Neither API has a reason for an answer that the provider cut off; `length` also means that the text is incomplete.
    if result.truncated is not None or result.stop_reason == "token_limit":
        return "length"
    return "stop_sequence" if reason == "stop_sequence" else "stop"
