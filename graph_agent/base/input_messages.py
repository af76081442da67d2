"""Finds the messages of a history that a user wrote, by the marks of all others."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage

from graph_agent.base.types import HIDDEN_ID_PREFIX

CONTEXT_MARK = "graph_agent_context"
"""Key in `additional_kwargs` of a message that a delegating agent sends as background; it is not user input."""
HANDED_MARK = "graph_agent_untrusted"
"""Key in `additional_kwargs` of a task from a remote agent; the value lists the parts of it that come from untrusted
text."""
STEERING_MARK = "graph_agent_steering"
"""Key in `additional_kwargs` of a steering message, which the user sent during a run."""
RECALL_MARK = "graph_agent_recall"
"""Key in `additional_kwargs` of the message with facts of the memory, which is in requests only; the value lists the
ids of the facts."""
EXAMPLE_ID = f"{HIDDEN_ID_PREFIX}example-"
"""Prefix of the ids of example messages, which are added to requests to show the form and are never stored."""
_MARKS = {CONTEXT_MARK, STEERING_MARK}
"""Keys of messages with the user's role that are not input."""


def is_example(message: BaseMessage) -> bool:
    """Whether a message of a request is an example that shows the form of calls, by the prefix of its id."""
    return (message.id or "").startswith(EXAMPLE_ID)


def new_user_messages(messages: Sequence[AnyMessage], last_input_id: str) -> list[HumanMessage]:
    """Return the user messages at the end of a history, oldest first, that no run has processed.

    Empty if there are none. The end begins after the last reply, tool result, or processed message. Messages in it that
    have the user's role but were made by the framework are left out.

    Args:
        messages: The history.
        last_input_id: Id of the newest message that was processed; empty if none was.
    """
    new: list[HumanMessage] = []
    for message in reversed(messages):
        if isinstance(message, AIMessage | ToolMessage) or (last_input_id and message.id == last_input_id):
            break
        if isinstance(message, HumanMessage) and is_user_input(message):
            new.append(message)
    return new[::-1]


def since_input(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages after the newest message that a user wrote as input, which is not included.

    All messages if there is no such message. Messages that the framework made in the user's role do not count as input.
    """
    at = len(messages)
    while at > 0 and not (isinstance(message := messages[at - 1], HumanMessage) and is_user_input(message)):
        at -= 1
    return list(messages[at:])


def is_user_input(message: HumanMessage) -> bool:
    """Whether a message with the user's role was written by the user as input.

    False for context from a delegating agent, for steering (sent during a run), and for this framework's instructions.
    """
    return not _MARKS & message.additional_kwargs.keys() and not (message.id or "").startswith(HIDDEN_ID_PREFIX)
