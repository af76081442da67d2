"""Adapts LangChain's clients of APIs in OpenAI's chat format: fields that LangChain drops, and the cost of a request.

LangChain's base class reads and sends only the fields of OpenAI's own API. The adapted client also keeps reasoning and
unknown fields of calls, reads calls in the forms of other servers, and sends messages and tools without the traversal
of the `openai` package.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai.chat_models.base import BaseChatOpenAI

from graph_agent.base._compat import cache_block_types
from graph_agent.models.wire.render import SENT, SENT_CALLS
from graph_agent.models.wire.traits import CALL_FIELDS, REASONING_FIELDS

cache_block_types()
_AS_THEY_ARE = ("messages", "tools")
"""Arguments of a request that are moved into `extra_body`, so that the `openai` package does not traverse them."""
_KNOWN_FIELDS = frozenset({"id", "type", "function", "index"})
"""Fields of a call in OpenAI's format."""


def adapted(cls: type[BaseChatOpenAI]) -> type[Any]:
    """Return a subclass, of the same name, that keeps fields which LangChain drops.

    The class if it is such a subclass already.
    """
    return cls if issubclass(cls, _Adapter) else _adapted(cls)


class _Adapter:
    """Overrides methods of `BaseChatOpenAI`; it precedes that class in the bases of an adapted class."""

    max_tokens_name = ""
    """Name of the option for the maximum of output tokens; empty for the one that LangChain chooses."""

    def _get_request_payload(
        self: Any, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the payload of a request with the fields that LangChain drops, and with the endpoint's name of
        `max_tokens`; one of the Responses API unchanged.

        For LangChain's own classes, the messages and other fields that need no conversion are moved to `extra_body`,
        and `messages` is empty.
        """
        messages: list[BaseMessage] = self._convert_input(input_).to_messages()
        payload: dict[str, Any] = super()._get_request_payload(messages, stop=stop, **kwargs)  # type: ignore[misc]  # of BaseChatOpenAI
        if "messages" not in payload:
            return payload  # a request of the Responses API
        add_fields(payload["messages"], messages)
        for other in {"max_tokens", "max_completion_tokens"} - {self.max_tokens_name}:
            if self.max_tokens_name and other in payload:
                payload[self.max_tokens_name] = payload.pop(other)
        if not type(self).__module__.startswith("langchain_openai."):
            return payload  # the class of another package may read the payload before it is sent
        # The `openai` package traverses each argument to rename fields, which LangChain has already named, in 0.15 ms
        # of the event loop per message and call. `extra_body` is not traversed, and its fields override the arguments.
        moved = {name: payload.pop(name) for name in _AS_THEY_ARE if name in payload}
        return {**payload, "messages": [], "extra_body": {**(payload.get("extra_body") or {}), **moved}}

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], *args: Any, **kwargs: Any
    ) -> ChatGenerationChunk | None:
        """Convert a chunk of a stream, and keep the fields that LangChain drops, such as reasoning and refusals. None
        for a chunk that LangChain ignores.
        """
        delta = _delta_of(chunk)
        if calls := delta.get("tool_calls"):
            normalize_calls(calls)
        made: ChatGenerationChunk | None = super()._convert_chunk_to_generation_chunk(chunk, *args, **kwargs)  # type: ignore[misc]  # as above
        if made is not None and isinstance(message := made.message, AIMessageChunk) and delta:
            _keep_fields(message, delta, calls or ())
            if refusal := delta.get("refusal"):
                message.additional_kwargs["refusal"] = refusal
        return made

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        """Convert a whole response, and keep the fields that LangChain drops, such as reasoning. Calls are first
        brought into the form that LangChain can read, in place.
        """
        replies = list(_messages_in(response))
        for reply in replies:
            normalize_calls(_get(reply, "tool_calls") or ())
        result: ChatResult = super()._create_chat_result(response, generation_info)  # type: ignore[misc]  # as above
        for generation, reply in zip(result.generations, replies, strict=False):
            if isinstance(generation.message, AIMessage):
                _keep_fields(generation.message, reply, _get(reply, "tool_calls") or ())
        return result


@functools.cache
def _adapted(cls: type[BaseChatOpenAI]) -> type[Any]:
    """Return a subclass of a model's class with the methods of `_Adapter`; cached for each class."""
    fields = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        # Instances are never validated: their class is replaced.
        "model_config": {"defer_build": True},
    }
    adapted: type[Any] = type(cls)(cls.__name__, (_Adapter, cls), fields)  # type: ignore[misc]  # the metaclass of pydantic
    return adapted


def add_fields(sent: Sequence[dict[str, Any]], messages: Sequence[BaseMessage]) -> None:
    """Add the fields that `render` stored in the messages' `additional_kwargs` to the entries of a request's payload
    and to their tool calls, in place.

    They are fields that LangChain drops, such as reasoning.

    Args:
        sent: The messages in OpenAI's format.
        messages: The messages they were made from. Nothing is added if the numbers differ.
    """
    if len(sent) != len(messages):
        return
    for entry, message in zip(sent, messages, strict=True):
        if fields := message.additional_kwargs.get(SENT):
            entry.update(fields)
        for call, further in zip(
            entry.get("tool_calls") or (), message.additional_kwargs.get(SENT_CALLS) or (), strict=False
        ):
            call.update(further)


def normalize_calls(calls: Sequence[Any]) -> None:
    """Bring calls, or fragments of calls, into the form that LangChain can read, in place.

    Some servers send the arguments as an object instead of text, no index, or no function in later fragments.
    """
    for call in calls:
        if isinstance(call, dict):
            call.setdefault("index", None)
            function = call["function"] = call.get("function") or {}
            if isinstance(arguments := function.get("arguments"), dict):
                function["arguments"] = json.dumps(arguments, ensure_ascii=False)
        elif isinstance(arguments := getattr(getattr(call, "function", None), "arguments", None), dict):
            call.function.arguments = json.dumps(arguments, ensure_ascii=False)


def _keep_fields(message: AIMessage, given: Any, calls: Sequence[Any]) -> None:
    """Copy the reasoning of a reply or chunk, and unknown fields of its calls, into `additional_kwargs` of a message,
    in place.

    Args:
        message: LangChain's message.
        given: The reply or chunk as received.
        calls: Its calls as received.
    """
    kept = message.additional_kwargs
    for name in REASONING_FIELDS:
        if (value := _get(given, name)) and name not in kept:
            kept[name] = value
    further = {id_: fields for call in calls if (id_ := _get(call, "id")) and (fields := _further_fields(call))}
    if further:
        kept[CALL_FIELDS] = further


def _further_fields(call: Any) -> dict[str, Any]:
    """Return name → value of a call's fields that OpenAI's format does not define, e.g. Gemini's signature.

    Often empty. `call` is a dict or an object of the `openai` package.
    """
    fields = call if isinstance(call, dict) else getattr(call, "model_extra", None) or {}
    return {name: value for name, value in fields.items() if name not in _KNOWN_FIELDS and value is not None}


def _delta_of(chunk: dict[str, Any]) -> dict[str, Any]:
    """Return the delta in a chunk; empty if it has none."""
    choices = chunk.get("choices") or (chunk.get("chunk") or {}).get("choices") or [{}]
    delta = choices[0].get("delta")
    return delta if isinstance(delta, dict) else {}


def _messages_in(response: Any) -> Iterator[Any]:
    """Yield the message of each choice of a response."""
    for choice in _get(response, "choices") or ():
        if (message := _get(choice, "message")) is not None:
            yield message


def _get(given: Any, name: str) -> Any:
    """Return a key of a dict, or an attribute of any other object; None if it has none."""
    return given.get(name) if isinstance(given, dict) else getattr(given, name, None)
