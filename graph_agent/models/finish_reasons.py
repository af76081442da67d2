"""Why a reply ended, by the reasons that providers give: whole, or cut off."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, assert_never

from langchain_core.messages import AIMessage

from graph_agent.models.errors import classify_model_error

CutOff = Literal["length", "content_filter", "interrupted"]
"""What cut a reply off: its longest allowed length, a content filter, or a failure of the provider's."""

INCOMPLETE = "graph_agent_incomplete"
"""Key in `response_metadata` of a streamed reply that ended inside a call's arguments."""

REFUSED = "The model's provider refused this request because of its content; put it in other words."
CUT_OFF = "The model's provider stopped the answer here because of its content."

_KEYS = frozenset({"finishreason", "stopreason", "donereason", "completionreason"})
"""Where providers put the reason, without underscores and in lower case."""


def _any_of(*reasons: str) -> re.Pattern[str]:
    # A stream that gives the reason in two chunks has it twice, because LangChain joins the texts of its chunks.
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
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def cut_off(reply: AIMessage) -> CutOff | None:
    """What cut a reply off; None for a reply that is whole, or of which nothing is known.

    A reply is also cut off where the arguments of a call end inside a string, whatever its provider says.
    """
    for reason in _reasons(reply.response_metadata):
        for kind, pattern in _REASONS.items():
            if pattern.fullmatch(reason):
                return kind
    if reply.response_metadata.get(INCOMPLETE) or any(
        _ends_in_string(call["args"] or "") for call in reply.invalid_tool_calls
    ):
        return "interrupted"
    return None


def cause_of(cut: CutOff, reply: AIMessage, max_tokens: int | None = None) -> str:
    """What cut a reply off, as the end of a sentence that begins with "was cut off".

    Args:
        cut: What `cut_off` found.
        reply: The reply.
        max_tokens: Tokens that one reply was allowed; None where that is not known.
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
            said = next(_reasons(reply.response_metadata), "")
            return f"by the provider ({said})" if said else "before it was complete"
        case _:
            assert_never(cut)


def cut_off_warning(cut: CutOff, answer: AIMessage, max_tokens: int | None = None) -> str:
    """What the user is told of an answer that was cut off; arguments as for `cause_of`."""
    told = f"The answer was cut off {cause_of(cut, answer, max_tokens)}."
    return f"{told} A larger max_output_tokens allows a longer one." if cut == "length" else told


def mark_incomplete(reply: AIMessage, arguments: Iterable[str]) -> AIMessage:
    """The reply, marked as incomplete where its stream ended inside a call.

    LangChain completes the arguments of streamed calls, so that nothing of this is left to see in the reply.

    Args:
        reply: The reply that was streamed.
        arguments: The arguments of its calls as they came.
    """
    given = any(True for _ in _reasons(reply.response_metadata))
    if not any(_ends_in_string(raw) or (not given and not _is_whole(raw)) for raw in arguments):
        return reply
    return reply.model_copy(update={"response_metadata": {**reply.response_metadata, INCOMPLETE: True}})


def refusal_in(reply: AIMessage, *, heard: bool) -> str | None:
    """What the user is told of a reply that refuses; None for a reply that is none.

    Args:
        reply: The model's reply.
        heard: Whether the reply's text is the user's to read; a plan's is not.

    Returns:
        The provider's own words where it gives some, else one sentence, below what was said so far.
    """
    if words := _words(reply):
        return words
    if cut_off(reply) != "content_filter":
        return None
    return f"{reply.text}\n\n{CUT_OFF}" if heard and reply.text.strip() else REFUSED


def refused_by(error: BaseException) -> bool:
    """Whether an exception says that the provider's content filter stopped the request."""
    return classify_model_error(error) == "content_filter"


def _words(reply: AIMessage) -> str:
    """OpenAI's refusal: beside the content, or a block of it."""
    said: Any = reply.additional_kwargs.get("refusal")
    if isinstance(said, str) and said.strip():
        return said
    blocks = reply.content if isinstance(reply.content, list) else []
    return "".join(
        str(block.get("refusal", "")) for block in blocks if isinstance(block, dict) and block.get("type") == "refusal"
    )


def _reasons(metadata: dict[str, Any]) -> Iterator[str]:
    """The reasons in a reply's metadata, in lower case."""
    details = metadata.get("incomplete_details")
    if isinstance(details, dict) and isinstance(details.get("reason"), str):
        yield _plain(details["reason"])
    for key, value in metadata.items():
        given = getattr(value, "name", value)
        if isinstance(given, str) and given and key.replace("_", "").casefold() in _KEYS:
            yield _plain(given)
    # What the Responses API says of a reply beside those details.
    if isinstance(status := metadata.get("status"), str):
        yield _plain(status)


def _plain(reason: str) -> str:
    # Some clients give the name of an enumeration's member, such as FinishReason.MAX_TOKENS.
    return reason.rpartition(".")[2].casefold().replace("-", "_").replace(" ", "_")


def _ends_in_string(raw: str) -> bool:
    """Whether JSON ends inside a string: a model that forgets a bracket still closes its strings."""
    return '"' in _STRING.sub("", raw) and not _is_whole(raw)


def _is_whole(raw: str) -> bool:
    """Whether arguments are closed, however damaged they are; a call without any has an empty text."""
    text = raw.strip()
    # Imported here: the parser is for the few replies whose arguments are in doubt.
    from graph_agent.calls.read_json import read_json
    from graph_agent.calls.work import WorkBudget

    read = read_json(text, WorkBudget(len(text))) if text else None
    return read is None or read.complete
