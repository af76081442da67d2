"""Sanitizes messages and tool names for every provider and store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage

from graph_agent.base._internal.text import clean, to_json_safe
from graph_agent.base.calls import known_name
from graph_agent.base.errors import ConfigError
from graph_agent.base.tool_names import MAX_ALIAS_CHARS, alias_of
from graph_agent.base.types import Citation
from graph_agent.models.wire.traits import CITATIONS, Traits, traits_of

M = TypeVar("M", bound=BaseMessage)

CALL_BLOCKS = {"tool_use", "tool_call", "function_call"}
"""Types of content blocks that hold a call."""


def sanitized(message: M) -> M:
    """Return a message whose content has only characters that UTF-8 can encode; the same object if nothing changes.

    Null characters are removed, too. Content that is nested too deeply to check is left unchanged.
    """
    content = message.content
    if isinstance(content, str):
        # Most texts; `clean` examines the others.
        if content.isascii() and "\x00" not in content:
            return message
        safe = clean(content)
        return message if safe == content else message.model_copy(update={"content": safe})
    try:
        plainly = to_json_safe(content)
    except ValueError:
        # Too deeply nested to check; the provider decides whether to accept it.
        return message
    return message if plainly == content else message.model_copy(update={"content": plainly})


_TEXTS = ("text", "thinking", "reasoning", "reasoning_content")
"""Fields of a content block, and of `additional_kwargs`, whose text may reach a reader."""
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class ChunkSanitizer:
    """Sanitizes the chunks of one streamed reply in place, so that readers receive the same text as is stored.

    Surrogate halves of one character that arrive in two chunks are joined. Create one object for each reply.
    """

    def __init__(self) -> None:
        self._halves: dict[Any, str] = {}
        """Text or call (by its index) → first half of a character at the end of its newest chunk."""

    def __call__(self, message: BaseMessage) -> None:
        """Sanitize the next chunk in place: its content, its extra fields and the arguments of its calls. Half of a
        split character waits for the next chunk.
        """
        content = message.content
        if isinstance(content, str):
            # A chunk is a model of Pydantic, whose fields take longer to set than to compare.
            if (text := self._joined("text", content)) is not content:
                message.content = text
        else:
            for block in content:
                _clean_fields(block)
        if message.additional_kwargs:
            _clean_fields(message.additional_kwargs)
        for piece in message.tool_call_chunks if isinstance(message, AIMessageChunk) else ():
            if arguments := piece["args"]:
                piece["args"] = self._joined(piece["index"], arguments)

    def _joined(self, key: Any, text: str) -> str:
        """Return the sanitized text of a chunk.

        A half character at its end waits for the next chunk with the same key.
        """
        half = self._halves.pop(key, "") if self._halves else ""
        if not half and text.isascii():
            return clean(text)
        text = half + text
        if "\ud800" <= text[-1:] <= "\udbff" and text != half:
            self._halves[key], text = text[-1], text[:-1]
        return clean(_PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text))


def _clean_fields(fields: Any) -> None:
    """Sanitize the texts of a dict in place; other values are ignored."""
    if isinstance(fields, dict):
        for name in _TEXTS:
            if isinstance(text := fields.get(name), str):
                fields[name] = clean(text)


class SafeMessages(list[AnyMessage]):
    """A list of sanitized messages with their traits, so that a long history is not examined again for each request."""

    def __init__(self, messages: Iterable[AnyMessage] = (), *, traits: int = Traits.NONE) -> None:
        super().__init__(messages)
        self.traits = traits
        """Bits of `Traits` that any of the messages has."""

    def add(self, message: AnyMessage) -> None:
        """Append a message, which must be sanitized, and add its traits (features that an endpoint may refuse, as
        bits).
        """
        self.traits |= traits_of(message, self[-1] if self else None)
        self.append(message)


def with_traits(messages: Sequence[Any]) -> SafeMessages:
    """Return messages, which must be sanitized, as `SafeMessages`; the same object if they already are."""
    if isinstance(messages, SafeMessages):
        return messages
    read = SafeMessages()
    for message in messages:
        read.add(message)
    return read


def sanitized_all(messages: Sequence[AnyMessage]) -> SafeMessages:
    """Sanitize the messages of a request, and return them as `SafeMessages`; the same object if they already are."""
    if isinstance(messages, SafeMessages):
        return messages
    return with_traits([sanitized(message) for message in messages])


def is_text_only(messages: Sequence[BaseMessage]) -> bool:
    """Whether every message's content is a string."""
    if isinstance(messages, SafeMessages):
        return not messages.traits & Traits.BLOCKS
    return all(isinstance(message.content, str) for message in messages)


def with_text(message: AIMessage, text: str) -> AIMessage:
    """Return a message with another text; content blocks of other kinds stay. The same object if the text is equal.

    If the text is a part of the old one, the text blocks are kept and cut. Any other text replaces them by one block at
    the end, and an empty text by none. Citations move with their text, and lose their places where these are not known
    (see `cited_metadata`).
    """
    old, content = message.text, message.content
    if old == text:
        return message
    if isinstance(content, str):
        changed: Any = text
    elif text and (begin := old.find(text)) >= 0:
        changed = _cut_blocks(content, begin, begin + len(text))
    else:
        others = [block for block in content if isinstance(block, dict) and block.get("type") != "text"]
        changed = [*others, *([{"type": "text", "text": text}] if text else ())]
    metadata = {**message.response_metadata, **cited_metadata(message, text)}
    return message.model_copy(update={"content": changed, "response_metadata": metadata})


def cited_metadata(message: AIMessage, text: str) -> dict[str, Any]:
    """Return the `response_metadata` entry with a message's citations, moved to their places in another text.

    Empty if none.

    Args:
        message: The message, whose citations have places in its text.
        text: The other text. If it is a part of the message's text, citations outside of it are dropped. If it contains
            the message's text, the places are shifted. For any other text, the citations lose their places.
    """
    if not (cited := message.response_metadata.get(CITATIONS)):
        return {}
    old, own = message.text, message.text.strip()
    if text and text in old:
        shift: int | None = -old.index(text)
    else:
        shift = text.index(own) - old.index(own) if own and own in text else None
    return {CITATIONS: [moved for each in cited if (moved := _moved(each, shift, len(text))) is not None]}


def _moved(citation: Citation, shift: int | None, length: int) -> Citation | None:
    """Return a citation whose place is shifted; None if the place then lies outside of the text.

    Args:
        citation: The citation; returned unchanged if it has no place.
        shift: Characters to add to its place; None removes the place.
        length: Length of the text.
    """
    if "start" not in citation:
        return citation
    moved: Any = {name: value for name, value in citation.items() if name not in ("start", "end")}
    if shift is not None:
        moved["start"], moved["end"] = max(0, citation["start"] + shift), min(length, citation["end"] + shift)
        if moved["start"] >= moved["end"]:
            return None
    return cast("Citation", moved)


def _cut_blocks(content: list[Any], begin: int, end: int) -> list[Any]:
    """Return content blocks with only the characters from `begin` up to `end` of their joined text.

    Strings count as text; text blocks of which nothing is left are dropped, and other blocks are kept.
    """
    kept: list[Any] = []
    position = 0
    for block in content:
        if isinstance(block, dict) and block.get("type") != "text":
            kept.append(block)
            continue
        text = block if isinstance(block, str) else str(block.get("text", ""))
        part = text[max(0, begin - position) : max(0, end - position)]
        position += len(text)
        if part:
            kept.append(part if isinstance(block, str) else {**block, "text": part})
    return kept


def without_calls(reply: AIMessage) -> AIMessage:
    """Return a reply without its calls in every form (fields and content blocks), so that a history may end with it;
    the same object if it has none.

    Text, id, usage and metadata stay; the name does not.
    """
    if not reply.tool_calls and not reply.invalid_tool_calls:
        return reply
    bare = without_call_blocks(reply)
    return AIMessage(
        bare.content,
        id=reply.id,
        usage_metadata=reply.usage_metadata,
        response_metadata=reply.response_metadata,
        additional_kwargs=bare.additional_kwargs,
    )


def without_call_blocks(reply: AIMessage) -> AIMessage:
    """Return a copy of a reply whose calls are only in `tool_calls`; copies in content and extra fields are removed."""
    content = reply.content
    if isinstance(content, list):
        content = [block for block in content if not (isinstance(block, dict) and block.get("type") in CALL_BLOCKS)]
    kwargs = {name: value for name, value in reply.additional_kwargs.items() if name != "tool_calls"}
    return reply.model_copy(update={"content": content, "additional_kwargs": kwargs})


class ToolAliases:
    """Maps tool names to aliases that every provider accepts (letters, digits, `_` and `-`), and back.

    Raises:
        ConfigError: A name is empty or occurs twice, or two names have the same alias.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._alias_by_name: dict[str, str] = {}
        self._name_by_alias: dict[str, str] = {}
        for name in names:
            if not name:
                raise ConfigError("A tool has an empty name. Give it one, such as 'search'.")
            if name in self._alias_by_name:
                raise ConfigError(f"Two tools are called {name!r}. Rename one of them.")
            alias = alias_of(name)
            if (other := self._name_by_alias.get(alias)) is not None:
                raise ConfigError(
                    f"The tools {other!r} and {name!r} are both {alias!r} to a model provider, which takes only "
                    f"letters, digits, '_' and '-', {MAX_ALIAS_CHARS} of them at most. Rename one of them."
                )
            self._alias_by_name[name] = alias
            self._name_by_alias[alias] = name

    def to_alias(self, name: str) -> str:
        """Return the alias (the name that providers accept) of a tool; of an unknown one, the alias that it would have.

        A history may name tools that are no longer offered, and a provider would refuse an invalid name there, too.
        """
        return self._alias_by_name.get(name) or alias_of(name)

    def to_name(self, alias: str) -> str:
        """Return the tool's own name for an alias, also for a slightly damaged one.

        Other names are returned unchanged.
        """
        # No alias is another tool's own name, so the lookup needs no precedence.
        return self._name_by_alias.get(known_name(alias, self._name_by_alias.keys()), alias)
