"""The message that ends a failed input: the streamed part of the answer, the failure, and the completed calls.

Its `response_metadata` contains `{"graph_agent": {"stop_reason": "failed", "error": kind, "answer_chars": n}}` with the
`kind` of the `error` event. Its first n characters are the streamed part of the answer.
"""

from __future__ import annotations

from typing import Any, get_args

from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage
from langgraph.graph.message import push_message

from graph_agent.errors import ModelFailedError, RunFailedError

MARK = "graph_agent"
"""Key of this package's entry in `response_metadata`."""


def failure_message(begun: str, report: str, *, stop_reason: str, kind: str, id_: str | None = None) -> AIMessage:
    """Return the message that ends an input without a complete answer.

    Args:
        begun: The streamed part of the answer; empty for none.
        report: The failure and the completed calls.
        stop_reason: The reason the input stopped.
        kind: The kind of the error.
        id_: The message id under which `begun` was streamed; None for none.
    """
    text = f"{begun}\n\n{report}" if begun else report
    mark = {"stop_reason": stop_reason, "error": kind, "answer_chars": len(begun)}
    return AIMessage(text, id=id_, response_metadata={MARK: mark})


def failure_of(message: AnyMessage) -> dict[str, Any] | None:
    """Return the mark of a message that ends a failed input; None for any other message."""
    if not isinstance(message, AIMessage):
        return None
    mark = message.response_metadata.get(MARK)
    return mark if isinstance(mark, dict) and "error" in mark else None


def as_sent(message: AnyMessage) -> AnyMessage:
    """Return the message for later requests; a short note replaces the report, which the model did not write."""
    mark = failure_of(message)
    if mark is None:
        return message
    begun = message.text[: mark.get("answer_chars", 0)]
    note = f"[{'The answer ends here' if begun else 'No answer was given'}: an error of kind {mark['error']!r}.]"
    return message.model_copy(update={"content": f"{begun}\n\n{note}" if begun else note})


def failure_error(message: str, *, kind: str, answer: str) -> RunFailedError:
    """Return the error that a run raises for a failed input; arguments as for `RunFailedError`."""
    # Imported here because the import compiles the patterns of providers' errors.
    from graph_agent.models.errors import ModelErrorKind

    error = ModelFailedError if kind in get_args(ModelErrorKind) else RunFailedError
    return error(message, kind=kind, answer=answer)


def stream_rest(message: AIMessage, begun: str) -> None:
    """Stream the rest of a partly streamed message to readers of `stream_mode="messages"`.

    LangGraph does not stream a message returned by a node if some of its tokens have been streamed.

    Args:
        message: The message, with the id of its streamed tokens; nothing is sent without an id.
        begun: The part that was streamed.
    """
    if message.id is not None and (rest := message.text.removeprefix(begun)):
        chunk = AIMessageChunk(content=rest, id=message.id, response_metadata=message.response_metadata)
        push_message(chunk, state_key=None)
