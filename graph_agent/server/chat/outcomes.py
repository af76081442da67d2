"""What a run came to, as far as a chat API tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.messages.utils import count_tokens_approximately
from langgraph.types import StateSnapshot

from graph_agent._internal.text import as_text
from graph_agent.events.types import StoredEvent
from graph_agent.server.admission.problems import ProblemError, problem_of_run
from graph_agent.server.chat.turns import Turn
from graph_agent.session.results import RunResult, run_result, since_last_input

Ending = Literal["stop", "length", "calls", "filtered", "stop_sequence"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    text: str
    """The whole answer; empty when the caller's tools are waited for and nothing was said before."""
    calls: list[dict[str, Any]]
    """Calls of the caller's own tools: `{"id", "name", "arguments"}`, in call order."""
    ending: Ending
    stop_sequence: str | None
    """The text that ended the answer, where the provider names it."""
    input_tokens: int
    output_tokens: int
    status: str
    """The session's status."""
    problem: ProblemError | None = None
    """Why there is no answer; None when there is one."""


def outcome_of(turn: Turn, state: StateSnapshot) -> Outcome:
    """Read a run's last state.

    Tokens are those that the model reports, over all of its calls; a provider that reports none gets an estimate of
    four characters a token, which is never zero.
    """
    result = run_result(state)
    messages: list[AnyMessage] = state.values.get("messages", [])
    events: list[StoredEvent] = state.values.get("events", [])
    calls = turn.client_calls(result.interrupts)
    questions = [as_text(asked.value) for asked in result.interrupts] if not calls else []
    text = result.answer
    if result.structured_response is not None:
        text = json.dumps(result.structured_response, ensure_ascii=False)
    if not text:
        text = "\n\n".join(questions) or (result.reasoning if calls else "")
    problem = None
    if result.status == "FAILED":
        errors = [event for event in since_last_input(events) if event["type"] == "error"]
        problem = problem_of_run(errors[-1]["kind"] if errors else "")
    said = messages[-1].response_metadata if messages and isinstance(messages[-1], AIMessage) and not calls else {}
    reason = str(said.get("finish_reason") or said.get("stop_reason") or "")
    sequence = said.get("stop_sequence") if reason == "stop_sequence" else None
    # The state counts the whole input, and what was told before is a part of that.
    used, before = result.usage, turn.used_before
    return Outcome(
        text=text,
        calls=calls,
        ending="calls" if calls else _ending(reason, result),
        stop_sequence=sequence if isinstance(sequence, str) else None,
        input_tokens=used["input_tokens"] - before["input_tokens"] or count_tokens_approximately(messages) or 1,
        output_tokens=used["output_tokens"] - before["output_tokens"]
        or count_tokens_approximately([AIMessage(text or as_text(calls))])
        or 1,
        status=result.status.value,
        problem=problem,
    )


def _ending(reason: str, result: RunResult) -> Ending:
    if result.truncated == "content_filter":
        return "filtered"
    # Neither API has a word for an answer that its provider broke off; what both have says that more was to come.
    if result.truncated is not None or result.stop_reason == "token_limit":
        return "length"
    return "stop_sequence" if reason == "stop_sequence" else "stop"
