"""A request to the agent, in no API's words: what every chat API's body is read into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from pydantic import SecretStr

from graph_agent.server.admission.problems import ProblemError


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants."""

    messages: list[AnyMessage]
    """The conversation as the request has it, without system messages; never empty."""
    instructions: str = ""
    """Its system messages, joined; empty for none."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of `AgentContext` for this run, e.g. `temperature`; those that were left out are absent."""
    credentials: Mapping[str, SecretStr] = field(default_factory=dict)
    """What its headers bring for the tools of its run."""
    client_tools: list[dict[str, Any]] = field(default_factory=list)
    """The caller's own tools as OpenAI functions."""
    session_id: str | None = None
    """The session that the server is to keep; None for a request that is its own history."""
    stream: bool = False
    progress_as_field: bool = False
    """Whether progress is asked for in the response's body; otherwise it is in a stream's comments."""

    def context(self) -> dict[str, Any]:
        """The run's `AgentContext`, as JSON but for its credentials."""
        said = {"instructions": self.instructions} if self.instructions else {}
        brought = {"client_tools": self.client_tools} if self.client_tools else {}
        secret = {"credentials": dict(self.credentials)} if self.credentials else {}
        return {**self.options, **said, **brought, **secret}


def trailing_results(messages: Sequence[AnyMessage]) -> tuple[list[ToolMessage], list[HumanMessage]]:
    """The results that a conversation ends in, and what the user says behind them; both empty where it has none."""
    said: list[HumanMessage] = []
    results: list[ToolMessage] = []
    for message in reversed(messages):
        if isinstance(message, HumanMessage) and not results:
            said.append(message)
        elif isinstance(message, ToolMessage):
            results.append(message)
        else:
            break
    return (results[::-1], said[::-1]) if results else ([], [])


def new_messages(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """What a conversation has to say to a session that knows the rest: all behind the agent's last message."""
    at = max((i for i, message in enumerate(messages) if isinstance(message, AIMessage)), default=-1)
    return list(messages[at + 1 :])


def check_conversation(messages: Sequence[AnyMessage]) -> None:
    """Check that a conversation ends in something to answer, and that each result answers a call.

    Raises:
        ProblemError: When it does not.
    """
    if not messages:
        raise ProblemError("invalid", "There is no message to answer; send one of the user's.", param="messages")
    if isinstance(messages[-1], AIMessage):
        raise ProblemError(
            "invalid", "The last message must be the user's or a tool's result, not the assistant's.", param="messages"
        )
    open_ids: set[str] = set()
    for message in messages:
        if isinstance(message, AIMessage):
            _all_answered(open_ids)
            open_ids = {call["id"] or "" for call in message.tool_calls}
        elif isinstance(message, ToolMessage):
            if message.tool_call_id not in open_ids:
                raise ProblemError(
                    "invalid", f"The result {message.tool_call_id!r} answers no call before it.", param="messages"
                )
            open_ids.discard(message.tool_call_id)
        else:
            _all_answered(open_ids)
    _all_answered(open_ids)


def _all_answered(open_ids: set[str]) -> None:
    if open_ids:
        listed = ", ".join(sorted(open_ids))
        raise ProblemError("invalid", f"These calls have no result right behind them: {listed}.", param="messages")
