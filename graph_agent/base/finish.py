"""Reads how a model's reply ended: complete, cut off, refused, or paused.

Providers name the end by a finish reason. The calls of a reply that was cut off may be damaged, and are not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, assert_never

from langchain_core.messages import AIMessage

from graph_agent.base._internal.lenient_json import WorkBudget, arguments_end_inside_value, read_json
from graph_agent.base.types import CutOff

INCOMPLETE = "graph_agent_incomplete"
"""Key in `response_metadata` of a streamed reply that ended inside a call's arguments."""
UNENDED = "graph_agent_unended"
"""Key in `response_metadata` of a streamed text that may be cut off, because it has no finish reason.

It is set if the text may contain a call, or if the provider always sends a finish reason.
"""

REFUSED = "The model's provider refused this request because of its content; put it in other words."
"""Text for the user in place of a reply that the provider's filter withheld."""
REFUSAL_WARNING = "or its provider refused to answer because of the content of the request."
"""End of the warning event of a reply that refuses."""
LONGER = "A larger max_output_tokens allows a longer one."
"""Advice for the developer after an answer was cut off at the maximum length."""
CUT_OFF = "The model's provider stopped the answer here because of its content."
"""Text after an answer that the provider's content filter ended."""

_CALL_MARK = re.compile(r"[{\[<]")
_KEYS = frozenset({"finishreason", "stopreason", "donereason", "completionreason"})
"""Keys of the finish reason in `response_metadata`, in lower case without underscores."""


def _repeated(*reasons: str) -> re.Pattern[str]:
    """Return a pattern of finish reasons, which also matches a reason that is written several times in a row."""
    # A reason in two chunks of a stream occurs twice, because LangChain concatenates strings of chunks.
    return re.compile(f"(?:{'|'.join(reasons)})+")


_REASONS: dict[CutOff, re.Pattern[str]] = {
    "length": _repeated(
        "length|max_(?:length|len|context)|model_length|max_(?:output_|new_|completion_|total_)?tokens|continuation",
        "token_limit(?:_reached)?|(?:model_)?context_(?:window|length)(?:_limit)?_(?:exceeded|reached)",
    ),
    # Gemini's names come last in each line.
    "content_filter": _repeated(
        "content_filter(?:ed)?|error_toxic|guardrail_intervened|refusal|sensitive|unsafe|blocked|moderation",
        "blocklist|(?:image_)?prohibited_content|(?:image_)?recitation|(?:image_)?safety|spii|language|model_armor",
        "jailbreak",
    ),
    "interrupted": _repeated(
        "abort(?:ed)?|(?:user_)?cancel(?:l?ed)?|error(?:_limit)?|failed|incomplete|insufficient_system_resource",
        "network_error|time(?:out|_limit)|not_finished|repetition|pause_turn",
        "malformed_(?:model_output|tool_use)|(?:image_)?other|no_image|unexpected_tool_call|too_many_tool_calls",
        "malformed_(?:function_call|response)|missing_thought_signature|escalation",
    ),
}
"""Cause of a cut-off → pattern of the finish reasons that state it, in lower case with underscores."""
_DISCARDED = _repeated(
    "malformed_(?:function_call|tool_use|model_output|response)|unexpected_tool_call|missing_thought_signature"
)
"""Finish reasons of Gemini and Bedrock for a reply from which the provider removed a malformed call."""
_DAMAGE = re.compile(
    "abort|block|cancel|cut_?off|damag|error|exceed|fail|filter|incomplete|interrupt|invalid|limit|malformed|missing"
    "|prohibit|safety|timeout|too_many|truncat|unexpected|unfinished|violat"
)
"""Parts of unknown finish reasons that mean damage. A reply with any other unknown reason is complete.

Otherwise a new reason for complete replies would make each of them lose its calls.
"""
_ONLY_COMPLETE = {"google_genai": re.compile("(?:stop|finish_reason_unspecified)+")}
"""`model_provider` → its finish reasons of complete replies, for providers that document all others as incomplete."""


def cut_off(reply: AIMessage) -> CutOff | None:
    """Return why a reply was cut off; None if it is complete, or if its end is not known.

    The first finish reason that states a cut-off decides. Without one, a reply that has the mark `INCOMPLETE`, or a
    call whose arguments end inside a value, is `interrupted`, also if its finish reason states a complete reply.
    """
    for reason in _reasons(reply.response_metadata):
        if (kind := _kind_of(reason, str(reply.response_metadata.get("model_provider")))) is not None:
            return kind
    if reply.response_metadata.get(INCOMPLETE) or any(
        _ends_inside_value(call["args"] or "") for call in reply.invalid_tool_calls
    ):
        return "interrupted"
    return None


@lru_cache(maxsize=256)
def _kind_of(reason: str, provider: str) -> CutOff | None:
    """Return the cause of a cut-off that a finish reason states; None for a complete reply.

    Args:
        reason: The finish reason, in lower case with underscores.
        provider: LangChain's `model_provider`; some providers document which reasons are complete.
    """
    for kind, pattern in _REASONS.items():
        if pattern.fullmatch(reason):
            return kind
    complete = _ONLY_COMPLETE.get(provider)
    damaged = _DAMAGE.search(reason) is not None if complete is None else complete.fullmatch(reason) is None
    return "interrupted" if damaged else None


def is_paused(reply: AIMessage) -> bool:
    """Whether the provider paused the turn; it continues if the reply is sent back unchanged."""
    return any(reason == "pause_turn" for reason in _reasons(reply.response_metadata))


def has_discarded_call(reply: AIMessage) -> bool:
    """Whether the provider removed a malformed call from the reply, which now has no call at all."""
    if reply.tool_calls or reply.invalid_tool_calls:
        return False
    return any(_DISCARDED.fullmatch(reason) for reason in _reasons(reply.response_metadata))


def cause_of(cut: CutOff, reply: AIMessage, max_tokens: int | None = None) -> str:
    """Return why a reply was cut off, as a clause that follows "was cut off", e.g. "by the provider (error)".

    Args:
        cut: The result of `cut_off`.
        max_tokens: The configured maximum length, for the clause; None to name the tokens used, if reported.
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
            provider = str(reply.response_metadata.get("model_provider"))
            given = _reasons(reply.response_metadata)
            reason = next((each for each in given if _kind_of(each, provider) == "interrupted"), "")
            return f"by the provider ({reason})" if reason else "before it was complete"
        case _:
            assert_never(cut)


def cut_off_warning(cut: CutOff, answer: AIMessage, max_tokens: int | None = None) -> str:
    """Return the sentence that warns the user about a cut-off answer, with a hint for an answer that was too long.

    Args:
        cut: Why it was cut off.
        answer: The answer.
        max_tokens: The configured maximum length, for the text; None to name the tokens used, if reported.
    """
    warning = f"The answer was cut off {cause_of(cut, answer, max_tokens)}."
    return f"{warning} {LONGER}" if cut == "length" else warning


def mark_incomplete(reply: AIMessage, arguments: Sequence[str], *, streamed: bool = True) -> AIMessage:
    """Mark a streamed reply that seems to have lost its end: set `INCOMPLETE` or `UNENDED` in its metadata.

    LangChain closes the JSON of streamed arguments, so the reply itself does not show the loss. Returns the same object
    if there is nothing to mark. `INCOMPLETE` if the arguments of a call end inside a value, or without a finish reason
    are not whole; `UNENDED` if a reply without calls and finish reason ends in reasoning or the markup of a call.

    Args:
        reply: The complete reply.
        arguments: The arguments of each streamed call, as sent.
        streamed: Whether the reply was streamed; a whole reply is never marked as `UNENDED`.
    """
    if not arguments and not streamed:
        return reply
    given = any(True for _ in _reasons(reply.response_metadata))
    if any(_ends_inside_value(raw) or (not given and not _is_whole(raw)) for raw in arguments):
        key = INCOMPLETE
    elif (
        streamed and not given and not reply.tool_calls and (_ends_with_reason(reply) or _CALL_MARK.search(reply.text))
    ):
        key = UNENDED
    else:
        return reply
    return reply.model_copy(update={"response_metadata": {**reply.response_metadata, key: True}})


def answer_cut_off(answer: AIMessage) -> CutOff | None:
    """Return why an answer, which has no calls, was cut off; None if it is complete or its end is not known.

    Streams of OpenAI's and Anthropic's APIs always send a finish reason, so one without it was interrupted.
    """
    lost = answer.response_metadata.get(UNENDED) and _ends_with_reason(answer)
    return cut_off(answer) or ("interrupted" if lost else None)


def _ends_with_reason(reply: AIMessage) -> bool:
    """Whether the reply is of a provider whose streams always send a finish reason (OpenAI or Anthropic)."""
    return reply.response_metadata.get("model_provider") in {"anthropic", "openai"}


def text_cut_off(reply: AIMessage, *, unclosed: bool, partial: bool) -> CutOff | None:
    """Return the cause of a cut-off reply whose calls are in its text; None if it is complete.

    Args:
        unclosed: Whether a call lacks its end. Such a call is repaired, and counts as cut off only in a stream without
            a finish reason.
        partial: Whether the text ends inside a value of a call, which always counts as cut off.
    """
    ended = partial or (unclosed and bool(reply.response_metadata.get(UNENDED)))
    return cut_off(reply) or ("interrupted" if ended else None)


def refusal_text(reply: AIMessage, *, visible: bool) -> str | None:
    """Return the text for the user if the model or a content filter refused; None if the reply is no refusal.

    It is the refusal that the provider reports as such. For a reply that a content filter cut off, it is the reply's
    text followed by `CUT_OFF` if `visible` and the text is not blank, else `REFUSED`.

    Args:
        reply: The reply.
        visible: Whether the user has seen the reply's text.
    """
    if text := _refusal_of(reply):
        return text
    if cut_off(reply) != "content_filter":
        return None
    return f"{reply.text}\n\n{CUT_OFF}" if visible and reply.text.strip() else REFUSED


def _refusal_of(reply: AIMessage) -> str:
    """Return OpenAI's refusal: the text in `additional_kwargs` unless it is blank, else those of the content blocks,
    joined; empty if there is none."""
    refusal: Any = reply.additional_kwargs.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        return refusal
    blocks = reply.content if isinstance(reply.content, list) else []
    return "".join(
        str(block.get("refusal", "")) for block in blocks if isinstance(block, dict) and block.get("type") == "refusal"
    )


def _reasons(metadata: dict[str, Any]) -> Iterator[str]:
    """Yield the finish reasons in a reply's metadata, in lower case with underscores; none if it names none.

    Order: the details of an incomplete reply, keys that name a reason, a blocked prompt, the reply's status.
    """
    details = metadata.get("incomplete_details")
    if isinstance(details, dict) and isinstance(details.get("reason"), str):
        yield _plain(details["reason"])
    for key, value in metadata.items():
        if _is_reason(key) and isinstance(given := getattr(value, "name", value), str) and given:
            yield _plain(given)
    # Gemini's, of a prompt that was blocked: the reply has no candidates.
    feedback = metadata.get("prompt_feedback")
    blocked = feedback.get("block_reason") if isinstance(feedback, dict) else None
    if blocked and "UNSPECIFIED" not in str(blocked):
        yield "blocked"
    # The status of the Responses API.
    if isinstance(status := metadata.get("status"), str):
        yield _plain(status)


@lru_cache(maxsize=256)
def _is_reason(key: str) -> bool:
    """Whether a key of `response_metadata` is that of the finish reason, in any spelling."""
    return key.replace("_", "").casefold() in _KEYS


@lru_cache(maxsize=256)
def _plain(reason: str) -> str:
    """Return a finish reason in lower case with underscores, without the name of an enum class."""
    # Some clients give the name of an enum member, such as FinishReason.MAX_TOKENS.
    return reason.rpartition(".")[2].casefold().replace("-", "_").replace(" ", "_")


def _ends_inside_value(raw: str) -> bool:
    """Whether JSON ends inside a value. A model that omits a closing bracket has still ended all values."""
    return bool(raw.strip()) and arguments_end_inside_value(raw)


def _is_whole(raw: str) -> bool:
    """Whether the JSON of arguments is closed, even if it is damaged; True for an empty text and one without JSON."""
    text = raw.strip()
    read = read_json(text, WorkBudget(len(text))) if text else None
    return read is None or read.complete
