"""Converts a history to the request that an endpoint accepts: names, ids, content, reasoning, and the order of roles.

The stored history stays neutral, and the same history gives the same request at each step, because prompt caches
depend on it.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolCall, ToolMessage

from graph_agent.base._internal.media import NAMES, data_of, described, media_of, mime_type_of, only_accepted
from graph_agent.models.wire.provider_calls import has_provider_call, text_with_calls, without_unknown_calls
from graph_agent.models.wire.rules import CallIds, WireRules
from graph_agent.models.wire.text_form import as_text_history
from graph_agent.models.wire.traits import CALL_FIELDS, REASONING_FIELDS, SOURCE, SPEAKER

SENT = "graph_agent_sent"
"""Key in `additional_kwargs` of a message for a request: a dict of fields that are added to it in OpenAI's format."""
SENT_CALLS = "graph_agent_sent_calls"
"""Key in `additional_kwargs` of a message for a request: a list with one dict of further fields for each of its
calls."""
_NOTE = "(These are the results.)"
"""Assistant text between results and a user message, for endpoints where these must not follow each other."""
_NO_SIGNATURE = {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
"""Placeholder that Google documents for the signature of calls that another model wrote."""
_NOT_IN_FILE_NAME = re.compile(r"[^a-zA-Z0-9 \-()\[\]]+")
_NOT_IN_SPEAKER = re.compile(r"[\s<|\\/>]")
_ALPHABET = string.digits + string.ascii_letters
_CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call"})
_PLAIN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_MAKERS = {
    **{name: name for name in ("anthropic", "openai", "groq", "deepseek", "xai", "fireworks", "together", "cohere")},
    **{name: name for name in ("ollama", "openrouter")},
    "azure": "azure-openai",
    "google_genai": "google-gemini",
    "google_vertexai": "google-vertex",
    **dict.fromkeys(("bedrock", "bedrock_converse"), "aws-bedrock"),
    "mistralai": "mistral",
}
"""LangChain's `model_provider` in the metadata of a reply → name of the provider in `wire/table.py`."""


def render(
    messages: Sequence[BaseMessage],
    rules: WireRules,
    alias: Callable[[str], str],
    source: str = "",
    *,
    keeps_provider_calls: bool = True,
) -> list[BaseMessage]:
    """Convert a request's messages to the form that an endpoint accepts; the given messages are not changed.

    Names, ids, content, media, reasoning and the order of roles are converted where the rules require it. The same
    messages and rules always give the same result, because prompt caches depend on it.

    Args:
        messages: System prompt and history, under the tools' own names.
        rules: The rules of the endpoint.
        alias: Returns the name under which a tool is offered.
        source: Name of the endpoint. Provider-specific parts of a reply, e.g. reasoning, are kept only if they come
            from it. Empty for the provider's name.
        keeps_provider_calls: Whether the request takes calls that the provider ran in the provider's own form;
            otherwise they go as text.
    """
    source = source or rules.provider
    if rules.thinking_first:
        messages = _without_foreign_calls(messages, source)
    converted: list[BaseMessage] = []
    media: list[Any] = []
    names: dict[str, str] = {}
    for message in messages:
        # Only after the last of the results, which no user message may separate.
        if media and not isinstance(message, ToolMessage):
            _add_media(converted, media, rules)
            media = []
        if isinstance(message, AIMessage):
            # For the results, which may have no name of their own.
            names |= {call["id"] or "": call["name"] for call in message.tool_calls}
            converted.append(_reply(message, rules, alias, source, keeps_provider_calls=keeps_provider_calls))
        elif isinstance(message, ToolMessage):
            result, moved = _result(message, rules, alias, names)
            converted.append(result)
            media += moved
        else:
            converted.append(_content(message, rules))
    if media:
        _add_media(converted, media, rules)
    return _in_order(converted, rules)


def _without_foreign_calls(messages: Sequence[BaseMessage], source: str) -> list[BaseMessage]:
    """Write all calls and results since the newest user message as text, if one of those replies lacks this endpoint's
    reasoning. For endpoints that refuse a call without the reasoning before it. Otherwise the messages are returned
    unchanged.

    Args:
        messages: The messages of a request.
        source: Name of the endpoint.
    """
    newest = next((at for at in range(len(messages) - 1, -1, -1) if isinstance(messages[at], HumanMessage)), -1)
    since: list[Any] = list(messages[newest + 1 :])
    replies = [message for message in since if isinstance(message, AIMessage) and message.tool_calls]
    if all(_begins_with_reasoning(reply) and maker_of(reply) in (None, source) for reply in replies):
        return list(messages)
    return [*messages[: newest + 1], *as_text_history(since)]


def _begins_with_reasoning(reply: AIMessage) -> bool:
    """Whether the first content block of a reply holds reasoning, in the form of any provider."""
    content = reply.content
    first = content[0] if isinstance(content, list) and content else None
    return _type(first) in ("thinking", "redacted_thinking", "reasoning_content", "reasoning")


def with_source(reply: AIMessage, source: str) -> AIMessage:
    """Return a copy of a reply whose metadata names the endpoint that wrote it.

    Only that endpoint gets the reasoning back later. The same object if the reply has no provider-specific parts, is
    already marked, or comes from a model in this process.
    """
    has_parts = isinstance(reply.content, list) or not _OWN_FIELDS.isdisjoint(reply.additional_kwargs)
    if not has_parts or source == "in-process" or maker_of(reply) == source:
        return reply
    return reply.model_copy(update={"response_metadata": {**reply.response_metadata, SOURCE: source}})


def call_id_for(form: CallIds, id_: str) -> str:
    """Return a call's id if it has the form that an endpoint requires, and otherwise a hash of it in that form.

    The same id always gives the same hash.
    """
    if form == "any" or (form == "plain" and _PLAIN.fullmatch(id_)) or (form == "nine" and _NINE.fullmatch(id_)):
        return id_
    # A hash, because the same history must always give the same request.
    number = int.from_bytes(hashlib.sha256(id_.encode("utf-8", "surrogatepass")).digest()[:16])
    digits = []
    for _ in range(9 if form == "nine" else 20):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return ("" if form == "nine" else "call_") + "".join(digits)


def maker_of(reply: AIMessage) -> str | None:
    """Return the name of the endpoint or provider that wrote a reply, by its metadata or its types of blocks.

    None if unknown.
    """
    if isinstance(source := reply.response_metadata.get(SOURCE), str):
        return source
    if isinstance(maker := reply.response_metadata.get("model_provider"), str):
        return _MAKERS.get(maker, maker)
    types = {block.get("type") for block in reply.content if isinstance(block, dict)}
    if types & {"thinking", "redacted_thinking"}:
        return "anthropic"
    return "aws-bedrock" if "reasoning_content" in types else None


def _reply(
    message: AIMessage, rules: WireRules, alias: Callable[[str], str], source: str, *, keeps_provider_calls: bool
) -> AIMessage:
    """Return an assistant message as the endpoint accepts it; the same object if nothing needs to change.

    Parts for one provider only, such as reasoning and signatures, stay only if that provider is the endpoint's own;
    calls that another provider ran become text. Parts that the endpoint requires and the message lacks are added. Tool
    names and call ids get the accepted form. Where no text may be empty, a reply without text and calls becomes `(no
    text)`. The arguments are those of `render`.
    """
    update = _speaker(message, rules.reply_names)
    given = message.additional_kwargs
    own = (maker := maker_of(message)) is None or maker == source or source == "in-process"
    content = message.content
    calls = message.tool_calls
    if isinstance(content, list):
        has_call = has_provider_call(message)
        if not (own and rules.reply_parts) or (has_call and not keeps_provider_calls):
            content = text_with_calls(message) if has_call else message.text
        elif rules.provider == "anthropic" and has_call:
            # A turn that is paused goes on with its open call.
            is_paused = message.response_metadata.get("stop_reason") == "pause_turn"
            content = content if is_paused else without_unknown_calls(content)
        elif not rules.text_parts and all(_is_text(block) for block in content):
            content = _joined(content)
    if calls:
        renamed = [
            {**call, "name": alias(call["name"]), "id": call_id_for(rules.call_ids, call["id"] or "")} for call in calls
        ]
        if renamed != calls:
            update["tool_calls"] = renamed
            if isinstance(content, list):
                # The provider's own form of the calls holds the other names and ids.
                content = [block for block in content if _type(block) not in _CALL_BLOCKS]
    if not own and (kept := {name: value for name, value in given.items() if name not in _OWN_FIELDS}) != given:
        update["additional_kwargs"] = kept
    if calls and rules.provider != "in-process":
        sent = {
            name: given[name] for name in REASONING_FIELDS if own and name in rules.reasoning_fields and given.get(name)
        }
        if (needed := rules.reasoning_needed) and needed not in sent:
            sent[needed] = ""
        fields = (given.get(CALL_FIELDS) if own else None) or {}
        further = [fields.get(call["id"]) or {} for call in calls]
        # Gemini signs the first of parallel calls only.
        if rules.signature_needed and not further[0]:
            further[0] = _NO_SIGNATURE
        if sent or any(further):
            extra = {SENT: sent, SENT_CALLS: further}
            update["additional_kwargs"] = {**update.get("additional_kwargs", given), **extra}
    if calls and rules.calls_in_kwargs:
        written = [_openai_call(call) for call in update.get("tool_calls", calls)]
        update["additional_kwargs"] = {**update.get("additional_kwargs", given), "tool_calls": written}
    if not rules.empty_text and not calls and not _has_text(content):
        content = "(no text)"
    elif not rules.empty_text and isinstance(content, list):
        # Gemini puts a signature into the `extras` of an empty text.
        content = [block for block in content if not _is_text(block) or _text(block).strip() or _has_extras(block)]
    if content is not message.content:
        update["content"] = content
    return message.model_copy(update=update) if update else message


def _openai_call(call: ToolCall) -> dict[str, Any]:
    """Return a call in OpenAI's format, with its arguments as JSON."""
    function = {"name": call["name"], "arguments": json.dumps(call["args"], ensure_ascii=False)}
    return {"id": call["id"], "type": "function", "function": function}


_OWN_FIELDS = frozenset(
    {*REASONING_FIELDS, CALL_FIELDS, "tool_calls", "__gemini_function_call_thought_signatures__", "reasoning_item"}
)
"""Keys of `additional_kwargs` that only the provider that wrote the reply understands."""


def _result(
    message: ToolMessage, rules: WireRules, alias: Callable[[str], str], names: dict[str, str]
) -> tuple[ToolMessage, list[Any]]:
    """Return a tool result as the endpoint accepts it, and the content blocks for a user message after the results.

    Where no text may be empty, the result becomes `(no output)`. Media that are refused in a result but accepted in a
    user message are moved there, each after a text that names its call. Media that the endpoint accepts nowhere are
    replaced by a text that describes them.

    Args:
        message: The result.
        rules: The rules of the endpoint.
        alias: Returns the name under which a tool is offered.
        names: Call id → name of the tool, for results that have no name.
    """
    update: dict[str, Any] = {}
    moved: list[Any] = []
    if message.name and (name := alias(message.name)) != message.name:
        update["name"] = name
    if (id_ := call_id_for(rules.call_ids, message.tool_call_id)) != message.tool_call_id:
        update["tool_call_id"] = id_
    content = message.content
    if isinstance(content, list):
        kept: list[Any] = []
        name = message.name or names.get(message.tool_call_id, "tool")
        for block in content:
            kind = media_of(block)
            if kind is None or not isinstance(block, dict) or kind in rules.result_media:
                kept.append(block)
                continue
            if kind in rules.user_media:
                label = f"[{NAMES[kind].partition(' ')[2].capitalize()} of the result of {name}, call {id_}:]"
                moved += [{"type": "text", "text": label}, block]
                kept.append({"type": "text", "text": f"[{described(block)} follows the results]"})
            else:
                kept += only_accepted([block], rules.user_media)
        kept = _in_form(kept, rules)
        whole = all(_is_text(block) for block in kept)
        shown: Any = _joined(kept) if whole and (not rules.text_parts or moved) else kept
        if shown != content:
            update["content"] = shown
    if not rules.empty_text and not _has_text(update.get("content", content)):
        update["content"] = "(no output)"
    return (message.model_copy(update=update) if update else message), moved


def _add_media(converted: list[BaseMessage], media: list[Any], rules: WireRules) -> None:
    """Append a user message with the media of the results before it to `converted`.

    An assistant message is put between if the endpoint refuses a user message directly after results.
    """
    if not rules.user_after_tool:
        converted.append(AIMessage(_NOTE))
    converted.append(HumanMessage(_in_form(media, rules)))


def _content(message: BaseMessage, rules: WireRules) -> BaseMessage:
    """Return a user or system message as the endpoint accepts it; the same object if nothing needs to change.

    Refused media are replaced by a text, and an empty message gets the text `(no text)` where it may not be empty.
    """
    content = message.content
    if isinstance(content, list):
        blocks = _in_form(only_accepted(content, rules.user_media), rules)
        if not rules.empty_text:
            blocks = [block for block in blocks if not (_is_text(block) and not _text(block).strip())]
        shown: Any = _joined(blocks) if not rules.text_parts and all(map(_is_text, blocks)) else blocks
    else:
        shown = content
    if not rules.empty_text and not _has_text(shown):
        shown = "(no text)"
    update = _speaker(message, rules.user_names)
    if shown != content:
        update["content"] = shown
    return message.model_copy(update=update) if update else message


def _speaker(message: BaseMessage, accepted: bool) -> dict[str, Any]:
    """Return the change of a message's field `name` for `model_copy`; an empty dict if the name can stay.

    Characters that OpenAI refuses are replaced by `_`, and a longer name is cut to 64 characters. The name is removed
    where `accepted`, i.e. whether the endpoint takes names, is False.
    """
    name = message.name
    if name is None or (accepted and SPEAKER.fullmatch(name)):
        return {}
    return {"name": _NOT_IN_SPEAKER.sub("_", name)[:64] or None if accepted else None}


def _in_order(messages: list[BaseMessage], rules: WireRules) -> list[BaseMessage]:
    """Return the messages with the order of roles that the endpoint accepts.

    - Where there is no system role, the system prompt becomes the begin of the user message after it.
    - Where no user message may follow a result, its text is added to the result; one with content blocks follows an
      assistant message with a short text instead.
    - Where no user message may follow another, both are joined.
    """
    ordered: list[BaseMessage] = []
    for message in messages:
        before = ordered[-1] if ordered else None
        if isinstance(message, HumanMessage):
            if isinstance(before, SystemMessage) and not rules.system_role:
                ordered[-1] = message.model_copy(update={"content": _added(before.content, message.content)})
                continue
            if isinstance(before, ToolMessage) and not rules.user_after_tool:
                if isinstance(message.content, str):
                    ordered[-1] = before.model_copy(update={"content": _added(before.content, message.content)})
                    continue
                ordered.append(AIMessage(_NOTE))
            elif isinstance(before, HumanMessage) and not rules.repeated_users:
                ordered[-1] = before.model_copy(update={"content": _added(before.content, message.content)})
                continue
        ordered.append(message)
    return ordered


def _added(first: Any, second: Any) -> Any:
    """Return the contents of two messages as one: strings are joined by a blank line.

    Otherwise a list of all blocks.
    """
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_blocks(first), *_as_blocks(second)]


def _as_blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _type(block: object) -> object:
    return block.get("type") if isinstance(block, dict) else None


def _is_text(block: object) -> bool:
    return isinstance(block, str) or _type(block) == "text"


def _has_extras(block: object) -> bool:
    return isinstance(block, dict) and bool(block.get("extras"))


def _text(block: object) -> str:
    return block if isinstance(block, str) else str(block.get("text") or "") if isinstance(block, dict) else ""


def _joined(blocks: Iterable[object]) -> str:
    return "\n".join(map(_text, blocks))


def _has_text(content: Any) -> bool:
    """Whether content is something other than blank text; blocks of other types, such as images, count."""
    if isinstance(content, str):
        return bool(content.strip())
    return any(not _is_text(block) or _text(block).strip() for block in content)


def _in_form(blocks: list[Any], rules: WireRules) -> list[Any]:
    """Return content blocks without the fields, or in the form, that the endpoint requires: cache marks, file names,
    images."""
    if not rules.cache_control:
        blocks = [
            {key: value for key, value in block.items() if key != "cache_control"}
            if isinstance(block, dict) and "cache_control" in block
            else block
            for block in blocks
        ]
    if rules.plain_file_names:
        blocks = _with_plain_names(blocks)
    return _with_image_urls(blocks) if rules.image_urls else blocks


def _with_plain_names(blocks: list[Any]) -> list[Any]:
    """Return the blocks with each document's name reduced to characters that Bedrock accepts, at most 180.

    A document without a name is named `document`; equal names stay equal. If the message has a document and no text,
    a text is put first.
    """
    named: list[Any] = []
    for block in blocks:
        if media_of(block) in ("pdf", "file"):
            given = next((str(block[key]) for key in ("name", "filename", "title") if block.get(key)), "document")
            name = " ".join(_NOT_IN_FILE_NAME.sub(" ", given).split())[:180] or "document"
            named.append({**{key: value for key, value in block.items() if key != "filename"}, "name": name})
        else:
            named.append(block)
    is_alone = any(media_of(block) in ("pdf", "file") for block in named) and not any(map(_is_text, named))
    return [{"type": "text", "text": "(A document.)"}, *named] if is_alone else named


def _with_image_urls(blocks: list[Any]) -> list[Any]:
    """Return the blocks with each image in OpenAI's form `image_url`, with base64 data as a `data:` URL."""
    return [
        {"type": "image_url", "image_url": {"url": _url_of(block)}} if media_of(block) == "image" else block
        for block in blocks
    ]


def _url_of(block: dict[str, Any]) -> str:
    data = data_of(block)
    is_url = data.startswith(("data:", "http://", "https://"))
    return data if is_url else f"data:{mime_type_of(block) or 'image/png'};base64,{data}"
