"""Wraps middleware around model requests: planning in every mode, and the answer.

A guard is middleware that may rewrite replies. Modes are the ways in which a model calls tools: `native` through the
provider, `text` in the text, `wave` by a structured plan.
"""

from __future__ import annotations

import contextvars
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.errors import InvalidUpdateError
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Command

from graph_agent.base._compat import chain_model_calls
from graph_agent.base._internal.sync_bridge import await_in_task
from graph_agent.base.errors import ConfigError, HookError
from graph_agent.base.settings.config import LoopConfig, user_context
from graph_agent.base.usage import record_replaced, record_replies
from graph_agent.base.waves.schema import PlanError, PlanningResult
from graph_agent.core.extensions.hook_copies import copied
from graph_agent.core.extensions.hook_failures import hook_error, hook_that_raised
from graph_agent.core.extensions.hook_protocol import tool_schema
from graph_agent.core.extensions.middleware import AdmittedMiddleware
from graph_agent.core.state.channels import write_field
from graph_agent.core.state.custom_state import NO_OWN_FIELDS, CustomState
from graph_agent.core.state.messages import messages_fault, value_fault
from graph_agent.models.binding import ModelCall
from graph_agent.models.client import Mode, ModelClient, Phase
from graph_agent.models.prompts import Prompts
from graph_agent.models.retry import side_call_context
from graph_agent.models.sanitize import without_calls
from graph_agent.models.stream_watch import StreamWatch
from graph_agent.models.structured import StructuredPlanner
from graph_agent.models.system_prompt import replace_tools_text, tools_in_text
from graph_agent.models.wire.client_retries import without_client_retries
from graph_agent.models.wire.parsing.plans import read_plan
from graph_agent.models.wire.shape import adapted_copy

Send = Callable[[ModelRequest[Any], list[AnyMessage]], Coroutine[Any, Any, AIMessage]]
"""Sends a request after middleware has changed it; the second argument is its messages with the system prompt."""


class ModelMiddleware:
    """Sends model requests through the middleware of one agent that wraps model calls.

    Args:
        middleware: The agent's middleware, outermost first.
        tools: The agent's tools, by name.
        prompts: The prompts that describe tools in modes without native tools.
        own: The fields of the agent's `state_schema`, which middleware may read and write.
    """

    def __init__(
        self,
        middleware: Sequence[AdmittedMiddleware],
        tools: Mapping[str, BaseTool],
        prompts: Prompts,
        own: CustomState = NO_OWN_FIELDS,
    ) -> None:
        self._names = " or ".join(f"{one.name}.wrap_model_call" for one in middleware if one.model is not None)
        wraps = [one.model for one in middleware if one.model is not None]
        guards = [one.model for one in middleware if one.model is not None and one.rewrites]
        self._wraps = chain_model_calls(wraps) if wraps else None
        self._guards = chain_model_calls(guards) if guards else None
        self._own = own
        self._quiet = any(one.rewrites for one in middleware)
        self._runs_tools = any(one.tool is not None for one in middleware)
        self._tools = tools
        self._prompts = prompts

    def around(self, client: ModelClient, planner: StructuredPlanner) -> tuple[ModelClient, StructuredPlanner]:
        """Return the client and planner of a model wrapped in the middleware.

        The same objects if no middleware wraps model calls.
        """
        if self._wraps is None:
            return client, planner
        return _WrappedClient(client, self, quiet=self._quiet), _WrappedPlanner(planner, self)

    def request_tools(self, schemas: Sequence[dict[str, Any]]) -> list[Any]:
        """Return the tools for the middleware's request: the agent's tool objects, and for other names copies of the
        schemas."""
        names = [(schema["function"]["name"], schema) for schema in schemas]
        return [self._tools.get(name) or copied(schema) for name, schema in names]

    def schemas(self, tools: Sequence[Any], offered: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Convert the tools that middleware left in a request to OpenAI schemas; `offered` itself if it changed none.

        Args:
            tools: The tools of the request after the middleware.
            offered: Schemas of the tools before the middleware.

        Raises:
            ValueError: An object is no tool.
        """
        if tools == self.request_tools(offered):
            return offered
        return [_schema(tool, offered) for tool in tools]

    def update_prompt(
        self, messages: list[AnyMessage], tools: Sequence[Any], offered: Sequence[dict[str, Any]], mode: Mode
    ) -> list[AnyMessage]:
        """If middleware changed the tools, replace the description of tools in the system prompt, and return the
        messages; unchanged in native mode, whose prompt does not describe tools, and if no tools were described before.

        Args:
            messages: The request, with the system prompt.
            tools: The tools of the request after the middleware.
            offered: Schemas of the tools before the middleware.
            mode: How the model is asked for calls.
        """
        remaining = self.schemas(tools, offered)
        if remaining is offered or mode == "native":
            return messages
        plan = mode == "wave"
        before = tools_in_text(self._prompts, offered, plan=plan)
        after = tools_in_text(self._prompts, remaining, plan=plan)
        return replace_tools_text(messages, before, after) if before else messages

    async def ask(
        self,
        model: BaseChatModel,
        request: Sequence[AnyMessage],
        offered: Sequence[dict[str, Any]],
        send: Send,
        watch: StreamWatch,
    ) -> AIMessage:
        """Send a request through the middleware, and return the reply that the outermost one returns.

        State updates of the middleware are written by `write_field`. Usage of replies that are not returned is
        recorded. A reply with another text or other calls than the model's, or given without asking the model, is
        recorded as `replaced`.

        Args:
            model: The model that the agent would ask.
            request: The messages, with the system prompt.
            offered: OpenAI schemas of the offered tools.
            send: Sends a request to a model; called for each request that the innermost middleware passes on.
            watch: The stream of the reply. A request that fails after its first streamed token is not sent again.

        Raises:
            ConfigError: Middleware uses an unsupported feature, such as a `response_format`.
            HookError: Middleware raised an exception, or its request or response is unusable.
            Exception: `send` raised it.
        """
        model_request = self._request(model, request, offered)
        failure: Exception | None = None
        own: AIMessage | None = None
        replies: list[AIMessage] = []

        async def handler(wrapped: ModelRequest[Any]) -> ModelResponse[Any]:
            nonlocal failure, own
            # Readers have received tokens of the failed reply, and a second one would follow them.
            if failure is not None and watch.is_committed:
                raise failure
            if wrapped.response_format is not None:
                # The agent parses the answer by its own schema.
                raise ConfigError("A middleware set a response_format; give the agent its response_format instead.")
            self._check_request(wrapped, offered)
            prompt: list[AnyMessage] = [wrapped.system_message] if wrapped.system_message is not None else []
            try:
                sending = send(wrapped, [*prompt, *wrapped.messages])
                replies.append(received := await await_in_task(sending, streamed))
                # A copy: middleware may change the message itself.
                own = copied(received)
                return ModelResponse(result=[received])
            except Exception as error:
                failure = error
                raise

        # The request itself may be streamed; model calls of a middleware's own are not.
        streamed = contextvars.copy_context()
        reply: Any = None
        try:
            with side_call_context(replies.append) as context:
                response = await self._call(self._wraps, model_request, handler, context)
            returned = reply = self._only_reply(response.model_response)
            # The observer records that the model's own reply did not count.
            if own is None or not _is_same(own, returned):
                record_replaced(self._names, own)
            self._apply(response.commands, response.model_response.structured_response)
            return returned
        finally:
            _record_other_replies(replies, reply)

    async def guard(
        self, model: BaseChatModel, request: Sequence[AnyMessage], offered: Sequence[dict[str, Any]], answer: AIMessage
    ) -> AIMessage:
        """Pass an answer that needed no model call through the middleware that rewrites replies, and return the result.

        Unchanged if there is no such middleware. No request is sent; a changed text is recorded as `replaced`. State
        updates of the middleware are dropped.

        Args:
            model: The model that the request names.
            request: The messages of the request that middleware receives.
            offered: OpenAI schemas of the offered tools.
            answer: The answer, which middleware receives as the model's reply.

        Raises:
            ConfigError: Middleware uses an unsupported feature.
            HookError: Middleware raised an exception, or its response is unusable.
        """

        if self._guards is None:
            return answer
        text = answer.text

        async def handler(wrapped: ModelRequest[Any]) -> ModelResponse[Any]:
            return ModelResponse(result=[answer])

        replies: list[AIMessage] = []
        try:
            with side_call_context(replies.append) as context:
                model_request = self._request(model, request, offered)
                response = await self._call(self._guards, model_request, handler, context)
            returned = self._only_reply(response.model_response)
            if returned.text != text:
                record_replaced(self._names, answer)
            return returned
        finally:
            record_replies(replies)

    async def _call(self, wraps: Any, request: ModelRequest[Any], handler: Any, context: contextvars.Context) -> Any:
        """Call the chained wrap methods in a context, and return the response.

        Args:
            wraps: The wrap methods, chained.
            request: The request for the outermost.
            handler: Sends the request that the innermost passes on.
            context: Context variables for the middleware.

        Raises:
            HookError: One of them raised an exception itself.
            Exception: The handler raised it.
        """
        try:
            return await await_in_task(wraps(request, handler), context)
        except (Exception, SystemExit) as error:
            if (hook := hook_that_raised(error)) is None:
                raise
            raise hook_error(hook, error) from error

    def _unusable(self, fault: str) -> HookError:
        """Return (not raise) the error for a request or response of the middleware that cannot be used.

        Args:
            fault: What is wrong and how to fix it, as a clause.
        """
        return HookError(f"The hook {self._names} failed: {fault}", kind="middleware")

    def _only_reply(self, response: Any) -> AIMessage:
        """Return the single model message of a response.

        Raises:
            HookError: The response is no `ModelResponse`, or has not exactly one `AIMessage`.
        """
        if not isinstance(response, ModelResponse):
            raise self._unusable(f"it answered a model request with {response!r}; give a ModelResponse or AIMessage.")
        reply = response.result[-1] if response.result else None
        if len(response.result) != 1 or not isinstance(reply, AIMessage):
            raise self._unusable(f"it answered a model request with {response.result!r}; give one AIMessage.")
        return reply

    def _request(
        self, model: BaseChatModel, request: Sequence[AnyMessage], offered: Sequence[dict[str, Any]]
    ) -> ModelRequest[Any]:
        """Build LangChain's `ModelRequest` with copies of messages and state; in-place changes have no effect."""
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

    def _check_request(self, request: ModelRequest[Any], offered: Sequence[dict[str, Any]]) -> None:
        """Check the model and the tools of a request after the middleware.

        Args:
            offered: Schemas of the tools before the middleware.

        Raises:
            ConfigError: Middleware added a tool, and no middleware wraps tool calls, so that its calls could not run.
            HookError: The model is no model, or a tool is no tool.
        """
        tools = request.tools
        if not isinstance(request.model, Runnable):
            raise self._unusable(f"it asks the model {request.model!r}; give a chat model.")
        try:
            self.schemas(tools, offered)
        except ValueError as error:
            raise self._unusable(" ".join(str(error).split())) from None
        known = {*self._tools, *(schema["function"]["name"] for schema in offered)}
        added = [each.name for each in tools if isinstance(each, BaseTool) and each.name not in known]
        if added and not self._runs_tools:
            raise ConfigError(
                f"Middleware added tools that the agent cannot run. Unknown tools: {', '.join(added)}. Give them to "
                "the agent, or run them in `wrap_tool_call` with request.override(tool=…)."
            )

    def _apply(self, commands: Sequence[Command[Any]], structured: Any) -> None:
        """Write the state updates that middleware returned with its response; they become a part of the node's update.

        The structured response is written first, then the commands' fields in order.

        Args:
            commands: The commands, innermost first.
            structured: The structured response of the model response; None if it has none.

        Raises:
            HookError: A command does more than update messages, the structured response and fields of `state_schema`,
                or a field without a reducer is written twice.
        """
        updates: list[tuple[str, Any]] = [] if structured is None else [("structured_response", structured)]
        for command in commands:
            for name in ("goto", "resume", "graph"):
                if getattr(command, name):
                    why = f"Command {name} is not yet supported with a model response: {command!r}"
                    fix = "update the state only; `jump_to` in a before_model or after_model hook goes elsewhere"
                    raise hook_error(self._names, NotImplementedError(f"{why}; {fix}."))
            updates += dict(command.update or {}).items()
        written: set[str] = set()
        for name, value in updates:
            if (fault := self._fault(name, value)) is not None:
                raise self._unusable(f"it wrote, with a model response, what it may not: {fault}.")
            if name in written and name != "messages" and name not in self._own.reduced:
                fault = f"Middleware wrote {name!r} twice with one model response; write it once."
                raise hook_error(self._names, InvalidUpdateError(fault))
            written.add(name)
            write_field(name, value)

    def _fault(self, name: str, value: Any) -> str | None:
        """Return why middleware may not write a value to a field, as a clause; None if it may. Of messages, only those
        of the user and the system may follow a model response.
        """
        if name == "structured_response":
            return value_fault(value)
        if name != "messages":
            return self._own.fault(name, value)
        items = value if isinstance(value, list) else [value]
        if all(isinstance(each, HumanMessage | SystemMessage) for each in items):
            return messages_fault(items)
        return f"the messages {value!r}, of which only those of the user and the system can follow a reply"


class _WrappedClient(ModelClient):
    """A `ModelClient` whose requests pass through the middleware.

    Args:
        client: The client to wrap.
        middleware: The middleware.
        quiet: Whether answers are not streamed, because middleware may rewrite them.
    """

    def __init__(self, client: ModelClient, middleware: ModelMiddleware, *, quiet: bool) -> None:
        super().__init__(client.model, client.schemas)
        self._middleware = middleware
        self._quiet = quiet

    async def ask(
        self,
        phase: Phase,
        request: Sequence[AnyMessage],
        settings: LoopConfig,
        *,
        mode: Mode,
        quiet: bool,
        schema: dict[str, Any] | None = None,
        watch: StreamWatch | None = None,
    ) -> AIMessage:
        """Send a request through the middleware and return the reply. Arguments are those of `ModelClient.ask`.

        An answer that middleware may rewrite is not streamed, unless `stream_before_guards` is set. A reply that no
        longer contains the streamed text gets a new id.

        Raises:
            Exception: The errors of `ModelMiddleware.ask`.
        """
        stream = watch or StreamWatch()
        # A reply that is rewritten after its last token cannot be taken back from readers.
        silent = quiet or (phase == "answer" and self._quiet and not settings.stream_before_guards)

        async def send(wrapped: ModelRequest[Any], messages: list[AnyMessage]) -> AIMessage:
            client = self._client_for(wrapped, mode)
            sent = self._middleware.update_prompt(messages, wrapped.tools, self.schemas, mode)
            reply = await ModelClient.ask(
                client, phase, sent, settings, mode=mode, quiet=silent, schema=schema, watch=stream
            )
            if settings.stream_before_guards and not silent:
                await stream.receive_whole(reply.text, reply.id)
            return reply

        return stream.settle(await self._middleware.ask(self.model, request, self.schemas, send, stream))

    async def guarded(self, request: Sequence[AnyMessage], answer: AIMessage) -> AIMessage:
        """Pass an answer that needed no model call through the middleware that rewrites replies, and return the result
        without calls.

        Args:
            request: The messages of the request that middleware receives.
            answer: The answer.
        """
        return without_calls(await self._middleware.guard(self.model, request, self.schemas, answer))

    def answering(self, request: Sequence[AnyMessage], settings: LoopConfig, *, mode: Mode) -> ModelCall:
        """Return a `ModelCall` whose stream yields the answer as one chunk, after the middleware has processed it.

        No retries.
        """
        # Without retries: the caller retries according to the same settings.
        once = settings.with_values({"model_retries": 0})
        return ModelCall(cast("Any", _WholeAnswer(self, request, once, mode)), {}, list(request), bounded=True)

    def _client_for(self, wrapped: ModelRequest[Any], mode: Mode) -> ModelClient:
        """Return the client for a request after the middleware: one with its model, tools, tool choice and options.

        `self` if middleware changed none of these. Tools of a structured plan are not changed here, because its prompt
        describes them. A client of another model keeps this client's options, which those of the middleware override.
        """
        options = {**wrapped.model_settings}
        if wrapped.tool_choice is not None:
            options["tool_choice"] = wrapped.tool_choice
        schemas = self._middleware.schemas(wrapped.tools, self.schemas) if mode != "wave" else self.schemas
        if wrapped.model is self.model and schemas is self.schemas and not options:
            return self
        if wrapped.model is self.model:
            return self.with_overrides(schemas, options)
        other = ModelClient(adapted_copy(without_client_retries(wrapped.model), wrapped.model), self.schemas)
        return other.with_overrides(schemas, {**self.options, **options}, tool_choice=self._tool_choice)


class _WrappedPlanner(StructuredPlanner):
    """A `StructuredPlanner` whose requests pass through the middleware, which receives the answer in a plan as plain
    text."""

    def __init__(self, planner: StructuredPlanner, middleware: ModelMiddleware) -> None:
        super().__init__(planner.model, planner.schema, planner.tool, planner.endpoint)
        self._middleware = middleware

    async def plan(
        self, request: Sequence[AnyMessage], settings: LoopConfig, *, offered: Sequence[dict[str, Any]] = ()
    ) -> AIMessage:
        """Request a structured plan through the middleware, and return the reply. Arguments are those of
        `StructuredPlanner.plan`.

        If a plan has only an answer, the middleware receives the answer as text. If it returns the reply unchanged, the
        original plan is returned; a rewritten answer becomes a plan again. A rewritten plan with calls, and a reply
        that middleware made up without a request, are returned as they are.

        Raises:
            Exception: The errors of `ModelMiddleware.ask`.
        """

        async def send(wrapped: ModelRequest[Any], messages: list[AnyMessage]) -> AIMessage:
            planner: StructuredPlanner = self
            if wrapped.model is not self.model:
                planner = StructuredPlanner(
                    adapted_copy(without_client_retries(wrapped.model), wrapped.model), self.schema, self.tool
                )
            if wrapped.model_settings:
                planner = planner.with_overrides(wrapped.model_settings)
            sent = self._middleware.update_prompt(messages, wrapped.tools, offered, "wave")
            remaining = self._middleware.schemas(wrapped.tools, offered)
            reply = await StructuredPlanner.plan(planner, sent, settings, offered=remaining)
            shown = _answer_of_plan(reply)
            sent_replies.append((shown or reply, reply))
            return shown or reply

        sent_replies: list[tuple[AIMessage, AIMessage]] = []
        returned = await self._middleware.ask(self.model, request, offered, send, StreamWatch())
        for shown, reply in sent_replies:
            if returned is shown:
                return reply
        was_answer = bool(sent_replies) and sent_replies[-1][0] is not sent_replies[-1][1]
        return _plan_of_answer(returned) if was_answer else returned


class _WholeAnswer(Runnable[Any, AIMessage]):
    """A runnable whose stream yields the answer as one chunk, after the middleware has processed it.

    Used for the answer that follows a sentence about a limit.
    """

    sends_requests = True
    """Whether the client measures its requests itself (see `TimedRequest`), so that this call is not measured as
    well."""

    def __init__(self, client: ModelClient, request: Sequence[AnyMessage], settings: LoopConfig, mode: Mode) -> None:
        self._client = client
        self._request = request
        self._settings = settings
        self._mode: Mode = mode

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        """Raise `TypeError`: the call runs asynchronously only."""
        raise TypeError("This runs asynchronously only.")

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        """Return the answer; the arguments of `Runnable` are not used."""
        return await self._client.ask("answer", self._request, self._settings, mode=self._mode, quiet=True)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any | None
    ) -> AsyncIterator[AIMessage]:
        """Yield the answer as one chunk; the arguments of `Runnable` are not used."""
        reply = await self.ainvoke(input, config)
        yield AIMessageChunk(
            content=reply.content,
            usage_metadata=reply.usage_metadata,
            response_metadata=reply.response_metadata,
            additional_kwargs=reply.additional_kwargs,
        )


def _answer_of_plan(reply: AIMessage) -> AIMessage | None:
    """Return the answer in a plan as a model message without calls; None if the plan has calls, has no answer, or
    cannot be parsed.
    """
    try:
        plan = read_plan(reply, PlanningResult)
    except PlanError:
        return None
    if plan.tools or not plan.answer:
        return None
    return reply.model_copy(update={"content": plan.answer, "tool_calls": []})


def _plan_of_answer(answer: AIMessage) -> AIMessage:
    """Return a rewritten answer as the JSON of a plan without calls, so that no text in it is parsed as a call."""
    plan = {"status": "done", "tools": [], "answer": answer.text}
    return answer.model_copy(update={"content": json.dumps(plan, ensure_ascii=False)})


def _is_same(own: AIMessage, returned: AIMessage) -> bool:
    """Whether a reply from the middleware has the text and the calls of the model's own reply.

    Other differences are ignored.
    """
    calls = [[(call["name"], call["args"]) for call in reply.tool_calls] for reply in (own, returned)]
    return own.text == returned.text and calls[0] == calls[1]


def _record_other_replies(replies: Sequence[AIMessage], reply: Any) -> None:
    """Record the usage of all replies but the returned one, which the caller counts; and whether no model was asked for
    that one.

    Args:
        replies: Replies of all model calls, also those that a middleware made itself.
        reply: The returned reply; None if an exception was raised.
    """
    used = reply.usage_metadata if isinstance(reply, AIMessage) else None
    # A rewritten reply is another object with the same usage.
    returned = next((one for one in replies if one is reply or (used is not None and one.usage_metadata == used)), None)
    # Middleware may answer without asking a model.
    made_up = isinstance(reply, AIMessage) and returned is None and used is None
    record_replies([one for one in replies if one is not returned], uncalled=int(made_up))


def _schema(tool: Any, offered: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a tool's OpenAI schema: the one in `offered` with its name, else one converted from the tool.

    Raises:
        ValueError: The object is no tool.
    """
    if not isinstance(tool, BaseTool):
        return tool_schema(tool)
    own = [schema for schema in offered if schema["function"]["name"] == tool.name]
    return own[0] if own else tool_schema(tool)


def _split(request: Sequence[AnyMessage]) -> tuple[SystemMessage | None, list[AnyMessage]]:
    """Split a request into its system message, None if it has none, and the other messages."""
    first = request[0] if request else None
    # Copied: middleware may change it, and later requests send it again.
    return (first.model_copy(), list(request[1:])) if isinstance(first, SystemMessage) else (None, list(request))


def _runtime() -> Runtime[Any] | None:
    """Return LangGraph's runtime of the running node, with the user's own context; None outside a graph."""
    try:
        runtime = get_runtime()
    except (RuntimeError, KeyError):
        return None
    return runtime.override(context=user_context(runtime.context))
