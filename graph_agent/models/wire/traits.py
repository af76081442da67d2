"""Records the features that a history's messages use, so that a request that needs no conversion is sent unchanged."""

from __future__ import annotations

import re

from langchain_core.messages import AIMessage, BaseMessage

from graph_agent.base.tool_names import NAME
from graph_agent.models.wire.rules import WireRules

SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}")
"""Matches message names that OpenAI accepts."""
_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SOURCE = "graph_agent_source"
"""Key in a reply's `response_metadata`: name of the endpoint that wrote its provider-specific parts, e.g. reasoning."""
CITATIONS = "graph_agent_citations"
"""Key in a reply's `response_metadata`: its citations, in the form in which the event of an answer has them."""
CALL_FIELDS = "graph_agent_call_fields"
"""Key in a reply's `additional_kwargs`: a dict of call id → fields of that call that only its provider defines."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
"""Fields for reasoning in assistant messages of OpenAI's format; also keys of `additional_kwargs`."""


class Traits:
    """Bits for features of a message that some endpoints do not accept, combined by `|`."""

    NONE = 0
    """No such feature."""
    CALLS = 1
    """Calls or results."""
    ODD_NAMES = 2
    """Calls with tool names that not every provider accepts."""
    ODD_IDS = 4
    """Calls with ids that have characters other than letters, digits, `_` and `-`, or over 64."""
    BLOCKS = 8
    """Content that is a list of blocks."""
    PARTS = 16
    """Parts that are for the provider of the reply only: reasoning, signatures, calls in the provider's own form."""
    BLANK = 32
    """A message whose text is blank."""
    USER_AFTER_TOOL = 64
    """A user message that follows a tool result."""
    REPEATED_USERS = 128
    """A user message that follows another."""
    SYSTEM = 256
    """A system prompt."""
    USER_NAMES = 512
    """A user or system message with a name."""
    REPLY_NAMES = 1024
    """An assistant message with a name."""
    ODD_SPEAKERS = 2048
    """A message name that OpenAI does not accept."""


def traits_of(message: BaseMessage, previous: BaseMessage | None) -> int:
    """Return the features of a message as bits of `Traits`: calls, unusual names or ids, blank text, content blocks,
    and a role that some endpoints refuse at its place.

    Args:
        message: The message.
        previous: The message before it in the history; None for the first one.
    """
    traits = Traits.NONE
    content = message.content
    if not isinstance(content, str):
        traits |= Traits.BLOCKS
    elif not content or content.isspace():
        traits |= Traits.BLANK
    # Each message of a history comes through here once per input; its type is cheaper to compare than its class.
    kind = message.type
    if kind == "tool":
        return traits | Traits.CALLS
    if name := message.name:
        traits |= Traits.REPLY_NAMES if kind == "ai" else Traits.USER_NAMES
        if SPEAKER.fullmatch(name) is None:
            traits |= Traits.ODD_SPEAKERS
    if isinstance(message, AIMessage):
        if calls := message.tool_calls:
            traits |= Traits.CALLS
            for call in calls:
                if NAME.fullmatch(call["name"]) is None:
                    traits |= Traits.ODD_NAMES
                if _PLAIN_ID.fullmatch(call["id"] or "") is None:
                    traits |= Traits.ODD_IDS
        if traits & Traits.BLOCKS or (message.additional_kwargs and _has_parts(message)):
            traits |= Traits.PARTS
    elif kind == "human":
        before = previous.type if previous is not None else ""
        if before == "tool":
            traits |= Traits.USER_AFTER_TOOL
        elif before == "human":
            traits |= Traits.REPEATED_USERS
    elif kind == "system":
        traits |= Traits.SYSTEM
    return traits


def _has_parts(message: AIMessage) -> bool:
    """Whether a reply's `additional_kwargs` hold reasoning or fields of its calls that only its provider defines."""
    return any(field in message.additional_kwargs for field in (*REASONING_FIELDS, CALL_FIELDS))


def concerned_by(rules: WireRules) -> int:
    """Return the features, as bits of `Traits`, that an endpoint with these rules may not accept.

    A history without any of them can be sent to the endpoint unchanged.
    """
    traits = Traits.ODD_NAMES
    if rules.provider == "in-process":
        return traits
    traits |= Traits.PARTS | Traits.ODD_SPEAKERS
    if not rules.user_names:
        traits |= Traits.USER_NAMES
    if not rules.reply_names:
        traits |= Traits.REPLY_NAMES
    if rules.plain_file_names or not (
        rules.text_parts and rules.cache_control and rules.result_media == rules.user_media
    ):
        traits |= Traits.BLOCKS
    if rules.call_ids == "plain":
        traits |= Traits.ODD_IDS
    needs = (rules.reasoning_needed, rules.signature_needed, rules.thinking_first, rules.calls_in_kwargs)
    # Nearly every id has another form, so that all calls count.
    if rules.call_ids == "nine" or any(needs):
        traits |= Traits.CALLS
    if not rules.empty_text:
        traits |= Traits.BLANK
    if not rules.user_after_tool:
        traits |= Traits.USER_AFTER_TOOL
    if not rules.repeated_users:
        traits |= Traits.REPEATED_USERS
    if not rules.system_role:
        traits |= Traits.SYSTEM
    return traits
