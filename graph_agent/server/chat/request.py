"""Represents a chat request, independent of the API that received it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from pydantic import SecretStr

from graph_agent.runs.input_ids import InputId
from graph_agent.server.errors.problems import ProblemError


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One parsed chat request."""

    messages: list[AnyMessage]
    """The request's conversation without system messages; never empty."""
    instructions: str = ""
    """The system messages, joined; empty if there are none."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of `AgentContext` for this run, e.g. `temperature`; unset fields are absent."""
    credentials: Mapping[str, SecretStr] = field(default_factory=dict)
    """Credentials from the headers, for the tools of this run."""
    client_tools: list[dict[str, Any]] = field(default_factory=list)
    """The caller's own tools as OpenAI functions."""
    unsupported_tools: list[str] = field(default_factory=list)
    """Types of the caller's tools that no agent can run or hand back, such as a provider's web search."""
    offers_own_tools: bool = False
    """Whether the request lists the agent's own tools among those to use."""
    session_id: str | None = None
    """The session to continue or create; None for a request that carries its whole history."""
    is_stored: bool = True
    """Whether the request may belong to a session; if not, neither a header nor a field names one."""
    session_label: str = "This session"
    """How errors name the session, for clients that name it in another way than by its id."""
    stream: bool = False
    call_token: str | None = None
    """Token in the ids of the calls that `messages` answer, in a session whose ids are not the model's own."""
    new_call_token: str | None = None
    """Token for the ids of the calls that the answer hands to the caller; None for the default ids."""
    marks_questions: bool = False
    """Whether a question for approval names `new_call_token`, for a client that answers with its whole history."""
    decisions: Mapping[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """Decisions on calls that wait for approval: start of the interrupt's id, and index of the call → decision."""
    pending_token: str | None = None
    """Token of the request without a session that the decisions belong to; None if there is none."""
    adds_all: bool = False
    """Whether all messages are new to an existing session; otherwise those after the agent's last message are."""
    before: Callable[[], Awaitable[None]] | None = None
    """Awaited when the run has its session's lock; `SessionBusyError` refuses the run. None for nothing."""
    shows_reasoning: bool = False
    """Whether the model's reasoning is streamed."""
    shows_calls: bool = False
    """Whether the events about the agent's own plans and calls are sent."""
    mark: InputId | None = None
    """The idempotency key of the request, with a digest of its content; None without a key."""
    progress_as_field: bool = False
    """Whether to send progress in the response's body; otherwise it is sent in a stream's comments."""

    def context(self) -> dict[str, Any]:
        """Return the run's `AgentContext` as JSON, except for the credentials."""
        instructions = {"instructions": self.instructions} if self.instructions else {}
        tools = {"client_tools": self.client_tools} if self.client_tools else {}
        secret = {"credentials": dict(self.credentials)} if self.credentials else {}
        return {**self.options, **instructions, **tools, **secret}


def trailing_results(messages: Sequence[AnyMessage]) -> tuple[list[ToolMessage], list[HumanMessage]]:
    """Return the tool results at the end of a conversation, and the user messages after them; both empty if none."""
    user_messages: list[HumanMessage] = []
    results: list[ToolMessage] = []
    for message in reversed(messages):
        if isinstance(message, HumanMessage) and not results:
            user_messages.append(message)
        elif isinstance(message, ToolMessage):
            results.append(message)
        else:
            break
    return (results[::-1], user_messages[::-1]) if results else ([], [])


def new_messages(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages that a session does not have yet: those after the agent's last message."""
    at = max((i for i, message in enumerate(messages) if isinstance(message, AIMessage)), default=-1)
    return list(messages[at + 1 :])


def results_by_call(results: Sequence[ToolMessage]) -> dict[str, ToolMessage]:
    """Return the results of calls by the ids of the calls.

    Raises:
        ProblemError: If a call has two results.
    """
    found: dict[str, ToolMessage] = {}
    for result in results:
        if result.tool_call_id in found:
            raise _two_results(result.tool_call_id)
        found[result.tool_call_id] = result
    return found


def _two_results(call_id: str) -> ProblemError:
    return ProblemError("invalid", f"The call {call_id!r} has two results; send one.", param="messages")


def check_conversation(messages: Sequence[AnyMessage]) -> None:
    """Check that a conversation ends with a message to answer, and that each result belongs to a call.

    Raises:
        ProblemError: If it does not.
    """
    if not messages:
        raise ProblemError("invalid", "There is no message to answer; send one of the user's.", param="messages")
    if isinstance(messages[-1], AIMessage):
        raise ProblemError(
            "invalid", "The last message must be the user's or a tool's result, not the assistant's.", param="messages"
        )
    open_ids: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        if isinstance(message, AIMessage):
            _all_answered(open_ids)
            open_ids, answered = {call["id"] or "" for call in message.tool_calls}, set()
        elif isinstance(message, ToolMessage):
            if message.tool_call_id in answered:
                raise _two_results(message.tool_call_id)
            if message.tool_call_id not in open_ids:
                raise ProblemError(
                    "invalid", f"The result {message.tool_call_id!r} answers no call before it.", param="messages"
                )
            open_ids.discard(message.tool_call_id)
            answered.add(message.tool_call_id)
        else:
            _all_answered(open_ids)
    _all_answered(open_ids)


def _all_answered(open_ids: set[str]) -> None:
    if open_ids:
        listed = ", ".join(sorted(open_ids))
        raise ProblemError("invalid", f"These calls have no result right behind them: {listed}.", param="messages")
