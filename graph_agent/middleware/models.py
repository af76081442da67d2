"""Middleware around model requests: planning, in every mode, and the answer."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime, get_runtime

from graph_agent.config import LoopConfig
from graph_agent.errors import ConfigError
from graph_agent.hooks.copies import copied
from graph_agent.hooks.protocol import tool_schema
from graph_agent.middleware.admission import Admitted
from graph_agent.middleware.chain import through
from graph_agent.models.binding import Way
from graph_agent.models.cleaning import without_calls
from graph_agent.models.client import Mode, ModelClient
from graph_agent.models.metering import note_replies
from graph_agent.models.side_calls import aside
from graph_agent.models.single_attempt import without_client_retries
from graph_agent.models.stream_watch import Spoken
from graph_agent.models.structured import StructuredPlanner
from graph_agent.prompts import Prompts
from graph_agent.prompts.tools_in_text import retold, tools_in_text

Send = Callable[[ModelRequest[Any], list[AnyMessage]], Coroutine[Any, Any, AIMessage]]
"""Sends a request as middleware has left it; the second argument is its messages with the system prompt."""


class AroundModels:
    """The middleware of one agent that wraps model calls.

    Args:
        middleware: Outermost first.
        tools: The agent's tools, by name.
        prompts: How tools are told of where the provider is not sent them.
    """

    def __init__(self, middleware: Sequence[Admitted], tools: Mapping[str, BaseTool], prompts: Prompts) -> None:
        self._wraps = [one.model for one in middleware if one.model is not None]
        self._guards = [one.model for one in middleware if one.model is not None and one.rewrites]
        self._quiet = any(one.rewrites for one in middleware)
        self._tools = tools
        self._prompts = prompts

    def around(self, client: ModelClient, planner: StructuredPlanner) -> tuple[ModelClient, StructuredPlanner]:
        """A model's two ways to be asked, with the middleware around them."""
        if not self._wraps:
            return client, planner
        return _WrappedClient(client, self, quiet=self._quiet), _WrappedPlanner(planner, self)

    def shown(self, schemas: Sequence[dict[str, Any]]) -> list[Any]:
        """What is offered, as middleware sees it: the agent's tools themselves, and schemas for what is none."""
        names = [(schema["function"]["name"], schema) for schema in schemas]
        return [self._tools.get(name) or copied(schema) for name, schema in names]

    def schemas(self, tools: Sequence[Any], offered: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The schemas of tools as middleware has left them, by those that were offered."""
        if tools == self.shown(offered):
            return offered
        return [_schema(tool, offered) for tool in tools]

    def retold(
        self, messages: list[AnyMessage], tools: Sequence[Any], offered: Sequence[dict[str, Any]], mode: Mode
    ) -> list[AnyMessage]:
        """A request whose system prompt tells of the tools that middleware has left, where that is what offers them."""
        left = self.schemas(tools, offered)
        if mode == "native" or left is offered:
            return messages
        plan = mode == "wave"
        before = tools_in_text(self._prompts, offered, plan=plan)
        return retold(messages, before, tools_in_text(self._prompts, left, plan=plan)) if before else messages

    async def ask(
        self,
        model: BaseChatModel,
        request: Sequence[AnyMessage],
        offered: Sequence[dict[str, Any]],
        send: Send,
        watch: Spoken,
    ) -> AIMessage:
        """Have a request answered through the middleware.

        Args:
            model: The model in force.
            request: System prompt and conversation.
            offered: OpenAI schemas of the tools on offer, through the provider or in text.
            send: Sends the request.
            watch: What the reader has seen. A request that fails after its first token is not sent again.

        Raises:
            ConfigError: When a middleware asks for what this agent does not have.
            Exception: What `send` or a middleware raised.
        """
        asked = self._request(model, request, offered)
        failure: Exception | None = None
        heard: list[AIMessage] = []

        async def handler(asked: ModelRequest[Any]) -> ModelResponse[Any]:
            nonlocal failure
            if failure is not None and watch.seen:
                raise failure
            if asked.response_format is not None:
                raise ConfigError("A middleware set a response_format; give the agent its response_format instead.")
            prompt: list[AnyMessage] = [asked.system_message] if asked.system_message is not None else []
            try:
                sending = send(asked, [*prompt, *asked.messages])
                heard.append(await asyncio.create_task(sending, context=streamed))
                return ModelResponse(result=[heard[-1]])
            except Exception as error:
                failure = error
                raise

        # The request itself may be streamed; what a middleware asks models of its own is nobody's answer.
        streamed = contextvars.copy_context()
        reply: Any = None
        try:
            with aside(heard.append) as context:
                response: ModelResponse[Any] = await asyncio.create_task(
                    through(self._wraps, asked, handler, _response), context=context
                )
            replied = reply = _only_reply(response)
            return replied
        finally:
            _note_the_others(heard, reply)

    async def guard(
        self,
        model: BaseChatModel,
        request: Sequence[AnyMessage],
        offered: Sequence[dict[str, Any]],
        answer: AIMessage,
    ) -> AIMessage:
        """Show an answer that no model was asked for to the middleware that rewrites replies, as the model's reply.

        Args:
            model: The model in force.
            request: As for `ask`; it is not sent.
            offered: As for `ask`.
            answer: The answer.

        Raises:
            ConfigError: As for `ask`.
            Exception: What a middleware raised.
        """

        async def handler(asked: ModelRequest[Any]) -> ModelResponse[Any]:
            return ModelResponse(result=[answer])

        heard: list[AIMessage] = []
        try:
            with aside(heard.append) as context:
                asked = self._request(model, request, offered)
                return _only_reply(
                    await asyncio.create_task(through(self._guards, asked, handler, _response), context=context)
                )
        finally:
            note_replies(heard)

    def _request(
        self, model: BaseChatModel, request: Sequence[AnyMessage], offered: Sequence[dict[str, Any]]
    ) -> ModelRequest[Any]:
        system, messages = _split(request)
        # Middleware ought to override what it is given; one that changes it in place must not change the history.
        messages = copied(messages)
        return ModelRequest(
            model=model,
            messages=messages,
            system_message=system,
            tools=self.shown(offered),
            state={"messages": list(messages)},
            runtime=_runtime(),
        )


class _WrappedClient(ModelClient):
    """A model's client with middleware around each request."""

    def __init__(self, client: ModelClient, middleware: AroundModels, *, quiet: bool) -> None:
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
        watch: Spoken | None = None,
    ) -> AIMessage:
        heard = watch or Spoken()

        async def send(asked: ModelRequest[Any], messages: list[AnyMessage]) -> AIMessage:
            client, told = self._for(asked, mode), self._middleware.retold(messages, asked.tools, self.schemas, mode)
            return await ModelClient.plan(client, told, settings, mode=mode, quiet=quiet, schema=schema, watch=heard)

        return await self._middleware.ask(self.model, request, self.schemas, send, heard)

    async def answer(
        self,
        request: Sequence[AnyMessage],
        settings: LoopConfig,
        *,
        mode: Mode,
        quiet: bool,
        schema: dict[str, Any] | None = None,
        watch: Spoken | None = None,
    ) -> AIMessage:
        heard, silent = watch or Spoken(), quiet or self._quiet

        async def send(asked: ModelRequest[Any], messages: list[AnyMessage]) -> AIMessage:
            client, told = self._for(asked, mode), self._middleware.retold(messages, asked.tools, self.schemas, mode)
            return await ModelClient.answer(client, told, settings, mode=mode, quiet=silent, schema=schema, watch=heard)

        return await self._middleware.ask(self.model, request, self.schemas, send, heard)

    async def guarded(self, request: Sequence[AnyMessage], answer: AIMessage) -> AIMessage:
        return without_calls(await self._middleware.guard(self.model, request, self.schemas, answer))

    def answering(self, request: Sequence[AnyMessage], settings: LoopConfig, *, mode: Mode) -> Way:
        # The caller sends it again, by the same settings.
        once = settings.with_values({"model_retries": 0})
        return Way(cast("Any", _Whole(self, request, once, mode)), {}, list(request), bounded=True)

    def _for(self, asked: ModelRequest[Any], mode: Mode) -> ModelClient:
        """The client of a request as middleware has left it; this very one where it has left model and tools."""
        options = {**asked.model_settings}
        if asked.tool_choice is not None:
            options["tool_choice"] = asked.tool_choice
        schemas = self._middleware.schemas(asked.tools, self.schemas) if mode == "native" else self.schemas
        if asked.model is self.model and schemas is self.schemas and not options:
            return self
        if asked.model is self.model:
            return self.asked_with(schemas, options)
        other = ModelClient(without_client_retries(asked.model), self.schemas)
        return other.asked_with(schemas, {**self.options, **options}, tool_choice=self._tool_choice)


class _WrappedPlanner(StructuredPlanner):
    """A model's structured planner with middleware around each request."""

    def __init__(self, planner: StructuredPlanner, middleware: AroundModels) -> None:
        super().__init__(planner.model, planner.schema, planner.tool)
        self._middleware = middleware

    async def plan(
        self, request: Sequence[AnyMessage], settings: LoopConfig, *, offered: Sequence[dict[str, Any]] = ()
    ) -> AIMessage:
        async def send(asked: ModelRequest[Any], messages: list[AnyMessage]) -> AIMessage:
            planner: StructuredPlanner = self
            if asked.model is not self.model:
                planner = StructuredPlanner(without_client_retries(asked.model), self.schema, self.tool)
            if asked.model_settings:
                planner = planner.asked_with(asked.model_settings)
            told = self._middleware.retold(messages, asked.tools, offered, "wave")
            return await StructuredPlanner.plan(planner, told, settings)

        return await self._middleware.ask(self.model, request, offered, send, Spoken())


class _Whole(Runnable[Any, AIMessage]):
    """An answer that stands below a sentence: it comes in one piece, once the middleware has seen it."""

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


def _note_the_others(heard: Sequence[AIMessage], reply: Any) -> None:
    """Note the replies that were heard and not returned; whoever gets the one that is counts that."""
    used = reply.usage_metadata if isinstance(reply, AIMessage) else None
    # One that was rewritten is another object, and keeps its figures.
    returned = next((one for one in heard if one is reply or (used is not None and one.usage_metadata == used)), None)
    made_up = isinstance(reply, AIMessage) and returned is None and used is None
    note_replies([one for one in heard if one is not returned], uncalled=int(made_up))


def _schema(tool: Any, offered: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not isinstance(tool, BaseTool):
        return tool_schema(tool)
    own = [schema for schema in offered if schema["function"]["name"] == tool.name]
    return own[0] if own else tool_schema(tool)


def _split(request: Sequence[AnyMessage]) -> tuple[SystemMessage | None, list[AnyMessage]]:
    first = request[0] if request else None
    return (first, list(request[1:])) if isinstance(first, SystemMessage) else (None, list(request))


def _response(answer: Any) -> ModelResponse[Any]:
    """What a middleware gave, in the form the next one outside is shown."""
    if isinstance(answer, ExtendedModelResponse):
        if answer.command is not None:
            raise ConfigError("A middleware asked for a state update with its answer; that is not supported here.")
        answer = answer.model_response
    if isinstance(answer, AIMessage):
        return ModelResponse(result=[answer])
    if not isinstance(answer, ModelResponse):
        raise ConfigError(f"A middleware answered a model request with {answer!r}; give a ModelResponse or AIMessage.")
    return answer


def _only_reply(response: ModelResponse[Any]) -> AIMessage:
    reply = response.result[-1] if response.result else None
    if len(response.result) != 1 or not isinstance(reply, AIMessage):
        raise ConfigError(f"A middleware answered a model request with {response.result!r}; give one AIMessage.")
    return reply


def _runtime() -> Runtime[Any] | None:
    try:
        return get_runtime()
    except (RuntimeError, KeyError):
        return None
