"""Middleware around model requests: planning in every mode, and the answer."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Command

from graph_agent._compat import chain_model_calls
from graph_agent.config import LoopConfig
from graph_agent.errors import ConfigError
from graph_agent.hooks.copies import copied
from graph_agent.hooks.protocol import HookError, tool_schema
from graph_agent.middleware.admission import AdmittedMiddleware
from graph_agent.models.binding import ModelCall
from graph_agent.models.cleaning import without_calls
from graph_agent.models.client import Mode, ModelClient
from graph_agent.models.side_calls import side_call_context
from graph_agent.models.single_attempt import without_client_retries
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.structured import StructuredPlanner
from graph_agent.models.usage import record_replies
from graph_agent.prompts import Prompts
from graph_agent.prompts.tools_in_text import replace_tools_text, tools_in_text
from graph_agent.state.own_fields import NO_OWN_FIELDS, OwnFields
from graph_agent.state.own_writes import write_own_field

Send = Callable[[ModelRequest[Any], list[AnyMessage]], Coroutine[Any, Any, AIMessage]]
"""Sends a request after middleware has changed it; the second argument is its messages with the system prompt."""


class ModelMiddleware:
    """The middleware of one agent that wraps model calls.

    Args:
        middleware: Outermost first.
        tools: The agent's tools, by name.
        prompts: The prompts that describe tools in modes without native tools.
        own: The agent's own state fields, which middleware may read and write.
    """

    def __init__(
        self,
        middleware: Sequence[AdmittedMiddleware],
        tools: Mapping[str, BaseTool],
        prompts: Prompts,
        own: OwnFields = NO_OWN_FIELDS,
    ) -> None:
        wraps = [one.model for one in middleware if one.model is not None]
        guards = [one.model for one in middleware if one.model is not None and one.rewrites]
        self._wraps = chain_model_calls(wraps) if wraps else None
        self._guards = chain_model_calls(guards) if guards else None
        self._own = own
        self._quiet = any(one.rewrites for one in middleware)
        self._tools = tools
        self._prompts = prompts

    def around(self, client: ModelClient, planner: StructuredPlanner) -> tuple[ModelClient, StructuredPlanner]:
        """Wrap a model's client and structured planner in the middleware."""
        if self._wraps is None:
            return client, planner
        return _WrappedClient(client, self, quiet=self._quiet), _WrappedPlanner(planner, self)

    def request_tools(self, schemas: Sequence[dict[str, Any]]) -> list[Any]:
        """Convert schemas to a middleware request's tools: the agent's tool objects, and copied schemas for others."""
        names = [(schema["function"]["name"], schema) for schema in schemas]
        return [self._tools.get(name) or copied(schema) for name, schema in names]

    def schemas(self, tools: Sequence[Any], offered: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return the schemas of a request's tools after the middleware; `offered` itself if they are unchanged."""
        if tools == self.request_tools(offered):
            return offered
        return [_schema(tool, offered) for tool in tools]

    def update_prompt(
        self, messages: list[AnyMessage], tools: Sequence[Any], offered: Sequence[dict[str, Any]], mode: Mode
    ) -> list[AnyMessage]:
        """Update the system prompt's tool descriptions if middleware changed the tools; nothing in native mode."""
        remaining = self.schemas(tools, offered)
        if remaining is offered or mode == "native":
            return messages
        plan = mode == "wave"
        before = tools_in_text(self._prompts, offered, plan=plan)
        return (
            replace_tools_text(messages, before, tools_in_text(self._prompts, remaining, plan=plan))
            if before
            else messages
        )

    async def ask(
        self,
        model: BaseChatModel,
        request: Sequence[AnyMessage],
        offered: Sequence[dict[str, Any]],
        send: Send,
        watch: StreamWatch,
    ) -> AIMessage:
        """Send a request through the middleware and return the reply.

        Args:
            model: The current model.
            request: System prompt and conversation.
            offered: OpenAI schemas of the offered tools, through the provider or in text.
            send: Sends the request.
            watch: Whether tokens have been streamed. A request that fails after its first token is not sent again.

        Raises:
            ConfigError: If a middleware uses an unsupported feature.
            Exception: Errors of `send` or a middleware.
        """
        model_request = self._request(model, request, offered)
        failure: Exception | None = None
        replies: list[AIMessage] = []

        async def handler(wrapped: ModelRequest[Any]) -> ModelResponse[Any]:
            nonlocal failure
            if failure is not None and watch.seen:
                raise failure
            if wrapped.response_format is not None:
                raise ConfigError("A middleware set a response_format; give the agent its response_format instead.")
            prompt: list[AnyMessage] = [wrapped.system_message] if wrapped.system_message is not None else []
            try:
                sending = send(wrapped, [*prompt, *wrapped.messages])
                replies.append(await asyncio.create_task(sending, context=streamed))
                return ModelResponse(result=[replies[-1]])
            except Exception as error:
                failure = error
                raise

        # The request itself may be streamed; model calls of a middleware's own are not.
        streamed = contextvars.copy_context()
        reply: Any = None
        try:
            with side_call_context(replies.append) as context:
                assert self._wraps is not None
                response = await asyncio.create_task(_call(self._wraps, model_request, handler), context=context)
            self._apply(response.commands)
            returned = reply = _only_reply(response.model_response)
            return returned
        finally:
            _record_other_replies(replies, reply)

    async def guard(
        self,
        model: BaseChatModel,
        request: Sequence[AnyMessage],
        offered: Sequence[dict[str, Any]],
        answer: AIMessage,
    ) -> AIMessage:
        """Pass an answer that no model produced through the middleware that rewrites replies, as a model's reply.

        Args:
            model: The current model.
            request: As for `ask`; it is not sent.
            offered: As for `ask`.
            answer: The answer.

        Raises:
            ConfigError: As for `ask`.
            Exception: A middleware's error.
        """

        if self._guards is None:
            return answer

        async def handler(wrapped: ModelRequest[Any]) -> ModelResponse[Any]:
            return ModelResponse(result=[answer])

        replies: list[AIMessage] = []
        try:
            with side_call_context(replies.append) as context:
                model_request = self._request(model, request, offered)
                guarded = _call(self._guards, model_request, handler)
                return _only_reply((await asyncio.create_task(guarded, context=context)).model_response)
        finally:
            record_replies(replies)

    def _request(
        self, model: BaseChatModel, request: Sequence[AnyMessage], offered: Sequence[dict[str, Any]]
    ) -> ModelRequest[Any]:
        system, messages = _split(request)
        # Copied: middleware that mutates the request instead of overriding it must not change the history.
        messages = copied(messages)
        return ModelRequest(
            model=model,
            messages=messages,
            system_message=system,
            tools=self.request_tools(offered),
            state=cast("Any", {**copied(self._own.current(messages=False)), "messages": list(messages)}),
            runtime=_runtime(),
        )

    def _apply(self, commands: Sequence[Command[Any]]) -> None:
        """Write the state updates that middleware returned with its responses.

        Raises:
            HookError: If one of them is more than an update of own fields.
        """
        for command in commands:
            if command.goto or command.resume or command.graph:
                raise HookError(
                    f"A middleware returned {command!r} with a model response; it may update own state fields only. "
                    "Use `jump_to` in a before_model or after_model hook."
                )
            for name, value in dict(command.update or {}).items():
                if (fault := self._own.fault(name, value)) is not None:
                    raise HookError(f"A middleware wrote, with a model response, {fault}; it may write own fields.")
                write_own_field(name, value)


class _WrappedClient(ModelClient):
    """A model's client with middleware around each request."""

    def __init__(self, client: ModelClient, middleware: ModelMiddleware, *, quiet: bool) -> None:
        super().__init__(client.model, client.schemas)
        self._middleware = middleware
        self._quiet = quiet

    async def plan(
        self,
        request: Sequence[AnyMessage],
        settings: LoopConfig,
        *,
        mode: Mode,
        quiet: bool,
        schema: dict[str, Any] | None = None,
        watch: StreamWatch | None = None,
    ) -> AIMessage:
        stream = watch or StreamWatch()

        async def send(wrapped: ModelRequest[Any], messages: list[AnyMessage]) -> AIMessage:
            client = self._client_for(wrapped, mode)
            sent = self._middleware.update_prompt(messages, wrapped.tools, self.schemas, mode)
            return await ModelClient.plan(client, sent, settings, mode=mode, quiet=quiet, schema=schema, watch=stream)

        return await self._middleware.ask(self.model, request, self.schemas, send, stream)

    async def answer(
        self,
        request: Sequence[AnyMessage],
        settings: LoopConfig,
        *,
        mode: Mode,
        quiet: bool,
        schema: dict[str, Any] | None = None,
        watch: StreamWatch | None = None,
    ) -> AIMessage:
        stream, silent = watch or StreamWatch(), quiet or self._quiet

        async def send(wrapped: ModelRequest[Any], messages: list[AnyMessage]) -> AIMessage:
            client = self._client_for(wrapped, mode)
            sent = self._middleware.update_prompt(messages, wrapped.tools, self.schemas, mode)
            return await ModelClient.answer(
                client, sent, settings, mode=mode, quiet=silent, schema=schema, watch=stream
            )

        return await self._middleware.ask(self.model, request, self.schemas, send, stream)

    async def guarded(self, request: Sequence[AnyMessage], answer: AIMessage) -> AIMessage:
        return without_calls(await self._middleware.guard(self.model, request, self.schemas, answer))

    def answering(self, request: Sequence[AnyMessage], settings: LoopConfig, *, mode: Mode) -> ModelCall:
        # Without retries: the caller retries according to the same settings.
        once = settings.with_values({"model_retries": 0})
        return ModelCall(cast("Any", _WholeAnswer(self, request, once, mode)), {}, list(request), bounded=True)

    def _client_for(self, wrapped: ModelRequest[Any], mode: Mode) -> ModelClient:
        """Return the client for a request after the middleware; `self` if model, tools and options are unchanged."""
        options = {**wrapped.model_settings}
        if wrapped.tool_choice is not None:
            options["tool_choice"] = wrapped.tool_choice
        schemas = self._middleware.schemas(wrapped.tools, self.schemas) if mode == "native" else self.schemas
        if wrapped.model is self.model and schemas is self.schemas and not options:
            return self
        if wrapped.model is self.model:
            return self.with_overrides(schemas, options)
        other = ModelClient(without_client_retries(wrapped.model), self.schemas)
        return other.with_overrides(schemas, {**self.options, **options}, tool_choice=self._tool_choice)


class _WrappedPlanner(StructuredPlanner):
    """A model's structured planner with middleware around each request."""

    def __init__(self, planner: StructuredPlanner, middleware: ModelMiddleware) -> None:
        super().__init__(planner.model, planner.schema, planner.tool)
        self._middleware = middleware

    async def plan(
        self, request: Sequence[AnyMessage], settings: LoopConfig, *, offered: Sequence[dict[str, Any]] = ()
    ) -> AIMessage:
        async def send(wrapped: ModelRequest[Any], messages: list[AnyMessage]) -> AIMessage:
            planner: StructuredPlanner = self
            if wrapped.model is not self.model:
                planner = StructuredPlanner(without_client_retries(wrapped.model), self.schema, self.tool)
            if wrapped.model_settings:
                planner = planner.with_overrides(wrapped.model_settings)
            sent = self._middleware.update_prompt(messages, wrapped.tools, offered, "wave")
            return await StructuredPlanner.plan(planner, sent, settings)

        return await self._middleware.ask(self.model, request, offered, send, StreamWatch())


class _WholeAnswer(Runnable[Any, AIMessage]):
    """An answer after a limit's sentence, returned in one piece after the middleware has processed it."""

    def __init__(self, client: ModelClient, request: Sequence[AnyMessage], settings: LoopConfig, mode: Mode) -> None:
        self._client = client
        self._request = request
        self._settings = settings
        self._mode: Mode = mode

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        raise TypeError("This runs asynchronously only.")

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        return await self._client.answer(self._request, self._settings, mode=self._mode, quiet=True)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any | None
    ) -> AsyncIterator[AIMessage]:
        reply = await self.ainvoke(input, config)
        yield AIMessageChunk(
            content=reply.content,
            usage_metadata=reply.usage_metadata,
            response_metadata=reply.response_metadata,
            additional_kwargs=reply.additional_kwargs,
        )


def _record_other_replies(replies: Sequence[AIMessage], reply: Any) -> None:
    """Record the usage of replies other than the returned one, which the caller counts."""
    used = reply.usage_metadata if isinstance(reply, AIMessage) else None
    # A rewritten reply is another object with the same usage.
    returned = next((one for one in replies if one is reply or (used is not None and one.usage_metadata == used)), None)
    made_up = isinstance(reply, AIMessage) and returned is None and used is None
    record_replies([one for one in replies if one is not returned], uncalled=int(made_up))


def _schema(tool: Any, offered: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not isinstance(tool, BaseTool):
        return tool_schema(tool)
    own = [schema for schema in offered if schema["function"]["name"] == tool.name]
    return own[0] if own else tool_schema(tool)


def _split(request: Sequence[AnyMessage]) -> tuple[SystemMessage | None, list[AnyMessage]]:
    first = request[0] if request else None
    return (first, list(request[1:])) if isinstance(first, SystemMessage) else (None, list(request))


async def _call(composed: Any, request: ModelRequest[Any], handler: Any) -> Any:
    return await composed(request, handler)


def _only_reply(response: Any) -> AIMessage:
    if not isinstance(response, ModelResponse):
        raise HookError(f"A middleware answered a model request with {response!r}; give a ModelResponse or AIMessage.")
    reply = response.result[-1] if response.result else None
    if len(response.result) != 1 or not isinstance(reply, AIMessage):
        raise HookError(f"A middleware answered a model request with {response.result!r}; give one AIMessage.")
    return reply


def _runtime() -> Runtime[Any] | None:
    try:
        return get_runtime()
    except (RuntimeError, KeyError):
        return None
