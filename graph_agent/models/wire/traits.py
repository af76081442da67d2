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
"""Key in `response_metadata`: the endpoint whose provider-specific parts, e.g. reasoning, a reply has."""
CITATIONS = "graph_agent_citations"
"""Key in `response_metadata` of a reply: its citations, as in the event of an answer."""
CALL_FIELDS = "graph_agent_call_fields"
"""Key in `additional_kwargs`: call id → provider-specific fields of the call in OpenAI's format."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
"""Fields for reasoning in assistant messages of OpenAI's format; also keys of `additional_kwargs`."""


class Traits:
    """Bits for features of the messages of a history that some endpoints do not accept."""

    NONE = 0
    CALLS = 1
    """Calls or results."""
    ODD_NAMES = 2
    """Calls with tool names that not every provider accepts."""
    ODD_IDS = 4
    """Calls with ids that have characters other than letters, digits, `_` and `-`, or over 64."""
    BLOCKS = 8
    """Content that is a list of blocks."""
    PARTS = 16
    """Parts of a reply for its own provider only: reasoning, signatures, calls in the provider's form."""
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
    """Return the bits of `Traits` for a message, given the one before it; None as the previous one for the first."""
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
    return any(field in message.additional_kwargs for field in (*REASONING_FIELDS, CALL_FIELDS))


def concerned_by(rules: WireRules) -> int:
    """Return the bits of `Traits` for which an endpoint with these rules needs a conversion."""
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
