"""The message that ends a failed input: what failed, and what was done until then.

It is marked in `response_metadata` by `{"graph_agent": {"stop_reason": "failed", "error": kind, "answer_chars": n}}`,
with the `kind` of the `error` event. The first n characters are the beginning of the answer, where some was streamed.
"""

from __future__ import annotations

from typing import Any, get_args

from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage
from langgraph.graph.message import push_message

from graph_agent.errors import ModelFailedError, RunFailedError

MARK = "graph_agent"
"""Key in `response_metadata` of what this package says of a message."""


def failure_message(begun: str, report: str, *, stop_reason: str, kind: str, id_: str | None = None) -> AIMessage:
    """The message that ends an input whose answer could not be had.

    Args:
        begun: The beginning of the answer, as it was streamed; empty for none.
        report: What failed, and what was done.
        stop_reason: Why the input stopped.
        kind: The kind of the error.
        id_: The id that `begun` was streamed under; None for none.
    """
    text = f"{begun}\n\n{report}" if begun else report
    mark = {"stop_reason": stop_reason, "error": kind, "answer_chars": len(begun)}
    return AIMessage(text, id=id_, response_metadata={MARK: mark})


def failure_of(message: AnyMessage) -> dict[str, Any] | None:
    """The mark of a message that ends a failed input; None for any other message."""
    if not isinstance(message, AIMessage):
        return None
    mark = message.response_metadata.get(MARK)
    return mark if isinstance(mark, dict) and "error" in mark else None


def as_sent(message: AnyMessage) -> AnyMessage:
    """The message as later requests hold it: without the report, whose words are the provider's and not the model's."""
    mark = failure_of(message)
    if mark is None:
        return message
    begun = message.text[: mark.get("answer_chars", 0)]
    note = f"[{'The answer ends here' if begun else 'No answer was given'}: an error of kind {mark['error']!r}.]"
    return message.model_copy(update={"content": f"{begun}\n\n{note}" if begun else note})


def failure_error(message: str, *, kind: str, answer: str) -> RunFailedError:
    """The error that a run raises for a failed input; arguments as for `RunFailedError`."""
    # Imported here: the patterns of providers' errors are compiled with it.
    from graph_agent.models.errors import ModelErrorKind

    error = ModelFailedError if kind in get_args(ModelErrorKind) else RunFailedError
    return error(message, kind=kind, answer=answer)


def stream_rest(message: AIMessage, begun: str) -> None:
    """Send what a message holds beyond its streamed beginning to readers of `stream_mode="messages"`.

    LangGraph leaves a message out that a node returns where some of its tokens have been streamed.

    Args:
        message: The message, under the id of its tokens; nothing is sent for one without an id.
        begun: Its beginning.
    """
    if message.id is not None and (rest := message.text.removeprefix(begun)):
        chunk = AIMessageChunk(content=rest, id=message.id, response_metadata=message.response_metadata)
        push_message(chunk, state_key=None)
