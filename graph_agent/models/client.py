"""One agent's way to its model: what a request looks like in each mode and phase."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable

from graph_agent.config import LoopConfig
from graph_agent.models.aliases import ToolAliases
from graph_agent.models.prefixed import PrefixedChatModel
from graph_agent.models.prose import as_prose
from graph_agent.models.retry import ask

Phase = Literal["plan", "answer"]

_TOOL_CHOICE_NONE: dict[str, Any] = {
    "openai-chat": "none",
    "azure-openai-chat": "none",
    "groq-chat": "none",
    "mistralai-chat": "none",
    "anthropic-chat": {"type": "none"},
    "chat-google-generative-ai": "none",
    "scripted": "none",
}
"""How a provider is told to keep the tools in mind and call none, by LangChain's name for it."""


class ModelClient:
    """A chat model with the tools it is offered, under names its provider accepts.

    Args:
        model: The chat model.
        schemas: The tools in OpenAI's function format, under their own names.

    Raises:
        ConfigError: When two tool names come to the same alias.
    """

    def __init__(self, model: BaseChatModel, schemas: Sequence[dict[str, Any]]) -> None:
        self.model = model
        self._aliases = ToolAliases([schema["function"]["name"] for schema in schemas])
        self._schemas = [
            {**schema, "function": {**function, "name": self._aliases.to_alias(function["name"])}}
            for schema in schemas
            for function in [schema["function"]]
        ]
        self._bound: dict[str, Runnable[LanguageModelInput, AIMessage]] = {}

    async def plan(self, request: Sequence[AnyMessage], settings: LoopConfig, *, text: bool, quiet: bool) -> AIMessage:
        """Ask which calls come next.

        Args:
            request: System prompt and history, calls under their own names.
            settings: Model options, retries and time limit.
            text: The tools stand in the system prompt; calls and results are written out.
            quiet: Keep the reply's tokens out of the message stream.

        Raises:
            Exception: What the provider raised, when it was not transient or stayed so.
        """
        runnable = self._runnable("plan", settings, text=text)
        return await self._ask(runnable, request, settings, text=text, quiet=quiet)

    async def answer(
        self,
        request: Sequence[AnyMessage],
        settings: LoopConfig,
        *,
        text: bool,
        quiet: bool,
        prefix: str = "",
        schema: dict[str, Any] | None = None,
    ) -> AIMessage:
        """Ask for the answer: the same tools on offer, with a tool choice of none where the provider has it.

        Args:
            request: System prompt, history and the closing request.
            settings: As for `plan`.
            text: As for `plan`.
            quiet: As for `plan`.
            prefix: A sentence to stand before the answer, streamed first; empty for none.
            schema: JSON schema of the answer; None for free text.

        Raises:
            Exception: As for `plan`.
        """
        runnable = self._runnable("answer", settings, text=text, schema=schema)
        if prefix:
            runnable = PrefixedChatModel(inner=runnable, prefix=prefix)
        reply = await self._ask(runnable, request, settings, text=text, quiet=quiet)
        # Whatever it was told, a model may call a tool here; nobody will run that call, so it must leave no trace.
        return without_calls(reply)

    async def _ask(
        self,
        runnable: Runnable[LanguageModelInput, AIMessage],
        request: Sequence[AnyMessage],
        settings: LoopConfig,
        *,
        text: bool,
        quiet: bool,
    ) -> AIMessage:
        rendered = as_prose(request) if text else [self._aliased(message) for message in request]
        reply = await ask(
            runnable, rendered, retries=settings.model_retries, timeout_s=settings.model_timeout_s, quiet=quiet
        )
        return self._named(reply)

    def _runnable(
        self, phase: Phase, settings: LoopConfig, *, text: bool, schema: dict[str, Any] | None = None
    ) -> Runnable[LanguageModelInput, AIMessage]:
        options: dict[str, Any] = {
            "temperature": settings.temperature,
            "reasoning_effort": settings.reasoning_effort,
            "max_tokens": settings.max_output_tokens,
            "response_format": self._response_format(schema),
        }
        options = {name: value for name, value in options.items() if value is not None}
        with_tools = bool(self._schemas) and not text
        if with_tools and phase == "answer" and (none := _TOOL_CHOICE_NONE.get(self.model._llm_type)):
            options["tool_choice"] = none
        key = json.dumps([phase, with_tools, options], sort_keys=True)
        if key not in self._bound:
            bound = self.model.bind_tools(self._schemas, **options) if with_tools else self.model.bind(**options)
            self._bound[key] = bound
        return self._bound[key]

    def _response_format(self, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        """The provider's own way to hold an answer to a schema, where LangChain's profile says it has one."""
        if schema is None or self.model._llm_type != "openai-chat":
            return None
        if not (self.model.profile or {}).get("structured_output"):
            return None
        return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema, "strict": False}}

    def _aliased(self, message: AnyMessage) -> BaseMessage:
        if isinstance(message, AIMessage) and message.tool_calls:
            return _rename_calls(message, self._aliases.to_alias)
        if isinstance(message, ToolMessage) and message.name:
            alias = self._aliases.to_alias(message.name)
            return message if alias == message.name else message.model_copy(update={"name": alias})
        return message

    def _named(self, reply: AIMessage) -> AIMessage:
        return _rename_calls(reply, self._aliases.to_name)


def without_calls(reply: AIMessage) -> AIMessage:
    """The reply with its calls taken out, so that it can end a history."""
    if not reply.tool_calls and not reply.invalid_tool_calls:
        return reply
    content = reply.content
    if isinstance(content, list):
        content = [block for block in content if not (isinstance(block, dict) and block.get("type") in _CALL_BLOCKS)]
    kwargs = {name: value for name, value in reply.additional_kwargs.items() if name != "tool_calls"}
    return AIMessage(
        content,
        id=reply.id,
        usage_metadata=reply.usage_metadata,
        response_metadata=reply.response_metadata,
        additional_kwargs=kwargs,
    )


_CALL_BLOCKS = {"tool_use", "tool_call", "function_call"}


def _rename_calls(message: AIMessage, rename: Any) -> AIMessage:
    names = [rename(call["name"]) for call in message.tool_calls]
    if names == [call["name"] for call in message.tool_calls]:
        return message
    calls = [{**call, "name": name} for call, name in zip(message.tool_calls, names, strict=True)]
    return message.model_copy(update={"tool_calls": calls})
