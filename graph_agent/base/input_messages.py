"""Finds the messages of a history that are input of a user."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from graph_agent.base.types import HIDDEN_ID_PREFIX

CONTEXT_MARK = "graph_agent_context"
"""Key in `additional_kwargs` of a context message from a delegator, which is not user input."""
STEERING_MARK = "graph_agent_steering"
"""Key in `additional_kwargs` of a steering message, received during a run."""
_MARKS = {CONTEXT_MARK, STEERING_MARK}


def new_user_messages(messages: Sequence[AnyMessage], last_input_id: str) -> list[HumanMessage]:
    """Return the user messages after the agent's last one, and after `last_input_id`, the newest one processed."""
    new: list[HumanMessage] = []
    for message in reversed(messages):
        if isinstance(message, AIMessage | ToolMessage) or (last_input_id and message.id == last_input_id):
            break
        if isinstance(message, HumanMessage) and is_user_input(message):
            new.append(message)
    return new[::-1]


def since_input(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages after the newest user input."""
    at = len(messages)
    while at > 0 and not (isinstance(message := messages[at - 1], HumanMessage) and is_user_input(message)):
        at -= 1
    return list(messages[at:])


def is_user_input(message: HumanMessage) -> bool:
    """Whether a user-role message is user input, not context, steering, or an instruction of the framework."""
    return not _MARKS & message.additional_kwargs.keys() and not (message.id or "").startswith(HIDDEN_ID_PREFIX)
