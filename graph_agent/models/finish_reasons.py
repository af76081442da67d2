"""Reads finish reasons of replies: complete, cut off, or refused because of content.

A refusal by the model or its provider is an answer to the user, not an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, assert_never

from langchain_core.messages import AIMessage

from graph_agent.models.errors import classify_model_error
from graph_agent.parsing.json_values import arguments_end_inside_value, read_json
from graph_agent.parsing.tolerant import WorkBudget
from graph_agent.types import CutOff

INCOMPLETE = "graph_agent_incomplete"
"""Key in `response_metadata` of a streamed reply that ended inside a call's arguments."""
UNENDED = "graph_agent_unended"
"""Key in `response_metadata` of a streamed text without a finish reason that may hold calls."""

REFUSED = "The model's provider refused this request because of its content; put it in other words."
REFUSAL_WARNING = "or its provider refused to answer because of the content of the request."
"""End of the warning event of a refusal."""
LONGER = "A larger max_output_tokens allows a longer one."
CUT_OFF = "The model's provider stopped the answer here because of its content."

_CALL_MARK = re.compile(r"[{\[<]")
_KEYS = frozenset({"finishreason", "stopreason", "donereason", "completionreason"})
"""Metadata keys of the finish reason, in lower case without underscores."""


def _any_of(*reasons: str) -> re.Pattern[str]:
    # A reason in two chunks of a stream occurs twice, because LangChain concatenates strings of chunks.
    return re.compile(f"(?:{'|'.join(reasons)})+")


_REASONS: dict[CutOff, re.Pattern[str]] = {
    "length": _any_of(
        "length|max_length|model_length|max_(?:output_|new_|completion_)?tokens|token_limit",
        "(?:model_)?context_(?:window|length)_exceeded",
    ),
    "content_filter": _any_of(
        "blocklist|content_filter(?:ed)?|error_toxic|guardrail_intervened|(?:image_)?prohibited_content|recitation",
        "refusal|(?:image_)?safety|sensitive|spii",
    ),
    "interrupted": _any_of(
        "abort(?:ed)?|cancell?ed|error(?:_limit)?|failed|incomplete|insufficient_system_resource",
        "malformed_(?:function_call|model_output|tool_use)|network_error|time(?:out|_limit)",
    ),
}


def cut_off(reply: AIMessage) -> CutOff | None:
    """Return the cause of a cut-off reply; None if the reply is complete or its end is unknown.

    A reply is also cut off if the arguments of a call end inside a value, regardless of the finish reason.
    """
    for reason in _reasons(reply.response_metadata):
        for kind, pattern in _REASONS.items():
            if pattern.fullmatch(reason):
                return kind
    if reply.response_metadata.get(INCOMPLETE) or any(
        _ends_inside_value(call["args"] or "") for call in reply.invalid_tool_calls
    ):
        return "interrupted"
    return None


def cause_of(cut: CutOff, reply: AIMessage, max_tokens: int | None = None) -> str:
    """Return the cause as the end of a sentence that starts with "was cut off".

    Args:
        cut: The result of `cut_off`.
        max_tokens: Maximum tokens of one reply; None if unknown.
    """
    match cut:
        case "length":
            if max_tokens is not None:
                return f"at the longest length allowed, {max_tokens:,} tokens"
            used = reply.usage_metadata["output_tokens"] if reply.usage_metadata else 0
            return f"at the longest length allowed, after {used:,} tokens" if used else "at the longest length allowed"
        case "content_filter":
            return "by the provider's content filter"
        case "interrupted":
            interrupted = _REASONS["interrupted"]
            reason = next(filter(interrupted.fullmatch, _reasons(reply.response_metadata)), "")
            return f"by the provider ({reason})" if reason else "before it was complete"
        case _:
            assert_never(cut)


def cut_off_warning(cut: CutOff, answer: AIMessage, max_tokens: int | None = None) -> str:
    """Return the warning to the user about a cut-off answer; arguments as for `cause_of`."""
    warning = f"The answer was cut off {cause_of(cut, answer, max_tokens)}."
    return f"{warning} {LONGER}" if cut == "length" else warning


def mark_incomplete(reply: AIMessage, arguments: Iterable[str], *, streamed: bool = True) -> AIMessage:
    """Mark a reply as incomplete if its stream ended inside a call.

    LangChain completes the arguments of streamed calls, so the reply itself does not show it.

    Args:
        reply: The streamed reply.
        arguments: The raw arguments of its calls.
        streamed: Whether the reply was streamed.
    """
    given = any(True for _ in _reasons(reply.response_metadata))
    if any(_ends_inside_value(raw) or (not given and not _is_whole(raw)) for raw in arguments):
        key = INCOMPLETE
    elif streamed and not given and not reply.tool_calls and _CALL_MARK.search(reply.text):
        key = UNENDED
    else:
        return reply
    return reply.model_copy(update={"response_metadata": {**reply.response_metadata, key: True}})


def text_cut_off(reply: AIMessage, *, unclosed: bool, partial: bool) -> CutOff | None:
    """Return the cause of a cut-off reply whose calls are in its text; None if it is complete.

    Args:
        unclosed: Whether the text ends in an unclosed call; repaired, except in a stream without a finish reason.
        partial: Whether the text ends inside a value of a call.
    """
    ended = partial or (unclosed and bool(reply.response_metadata.get(UNENDED)))
    return cut_off(reply) or ("interrupted" if ended else None)


def refusal_text(reply: AIMessage, *, visible: bool) -> str | None:
    """Return the text to the user for a reply that refuses; None if the reply does not refuse.

    Args:
        visible: Whether the user sees the reply's text; that of a plan is hidden.

    Returns:
        The provider's text if it gives one, else one sentence, below the visible text so far.
    """
    if text := _refusal_of(reply):
        return text
    if cut_off(reply) != "content_filter":
        return None
    return f"{reply.text}\n\n{CUT_OFF}" if visible and reply.text.strip() else REFUSED


def is_content_refusal(error: BaseException) -> bool:
    """Whether an exception reports that the provider's content filter refused the request."""
    return classify_model_error(error) == "content_filter"


def _refusal_of(reply: AIMessage) -> str:
    """Return OpenAI's refusal, from `additional_kwargs` or the content blocks; empty if there is none."""
    refusal: Any = reply.additional_kwargs.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        return refusal
    blocks = reply.content if isinstance(reply.content, list) else []
    return "".join(
        str(block.get("refusal", "")) for block in blocks if isinstance(block, dict) and block.get("type") == "refusal"
    )


def _reasons(metadata: dict[str, Any]) -> Iterator[str]:
    """Yield the finish reasons in a reply's metadata, in lower case."""
    details = metadata.get("incomplete_details")
    if isinstance(details, dict) and isinstance(details.get("reason"), str):
        yield _plain(details["reason"])
    for key, value in metadata.items():
        given = getattr(value, "name", value)
        if isinstance(given, str) and given and key.replace("_", "").casefold() in _KEYS:
            yield _plain(given)
    # The status of the Responses API.
    if isinstance(status := metadata.get("status"), str):
        yield _plain(status)


def _plain(reason: str) -> str:
    # Some clients give the name of an enum member, such as FinishReason.MAX_TOKENS.
    return reason.rpartition(".")[2].casefold().replace("-", "_").replace(" ", "_")


def _ends_inside_value(raw: str) -> bool:
    """Whether JSON ends inside a value: a model that omits a bracket still ends its values."""
    return bool(raw.strip()) and arguments_end_inside_value(raw)


def _is_whole(raw: str) -> bool:
    """Whether arguments are closed, even if damaged; a call without arguments has an empty text."""
    text = raw.strip()
    read = read_json(text, WorkBudget(len(text))) if text else None
    return read is None or read.complete
