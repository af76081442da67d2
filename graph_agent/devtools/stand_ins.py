"""Defines a model, tools and delegates that return what a session has recorded.

They take it from a `Playback`, which finds the next reply and the result of a call.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langgraph.runtime import Runtime
from pydantic import PrivateAttr

from graph_agent.base._compat import InjectedArguments
from graph_agent.base._internal.text import text_of
from graph_agent.base.calls import delegation_name
from graph_agent.base.errors import CallError, ConfigError, McpServerError
from graph_agent.base.history.events import SUCCESSES
from graph_agent.base.types import NO_USAGE
from graph_agent.core.extensions.delegation import Delegate, Delegation, DelegationResult
from graph_agent.core.extensions.memory import RecalledFact
from graph_agent.core.extensions.read_result import READ_RESULT
from graph_agent.models.scripted import MockChatModel
from graph_agent.session.built_agent import builder_of

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

    from graph_agent.devtools.playback import Playback
    from graph_agent.session.compiled import CompiledAgentGraph


class UnreadMemory:
    """Stands in for a memory: it has the same tools, recalls nothing, and extracts nothing.

    Facts may have changed since the recording, and belong to a user whom a replay does not know.

    Args:
        tools: The tools of the real memory.
    """

    extracts = False

    def __init__(self, tools: Sequence[BaseTool]) -> None:
        self.tools = tools

    def caller_of(self, runtime: Runtime[Any]) -> str:
        """Return an empty name: nothing is read for anybody."""
        return ""

    async def recall(self, caller: str, text: str, *, most: int | None = None) -> list[RecalledFact]:
        """Return no facts."""
        return []

    async def get(self, caller: str, ids: Iterable[str]) -> dict[str, RecalledFact]:
        """Return no facts."""
        return {}

    async def keep(self, caller: str, content: object, id_: str | None = None) -> str:
        """Keep nothing, and return an empty id."""
        return ""

    async def erase(self, caller: str) -> None:
        """Do nothing: no facts are kept."""


class RecordedModel(MockChatModel):
    """A chat model that returns the replies of a playback; asynchronous requests only."""

    _playback: Playback = PrivateAttr()
    _taken: list[AIMessage] = PrivateAttr(default_factory=list)

    def __init__(self, playback: Playback) -> None:
        super().__init__(responses=[], model="recorded")
        self._playback = playback

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        """Return the next reply of the playback."""
        # Taken here, as `_reply`, which the mock model calls for its answer, is synchronous and cannot wait.
        self._taken.append(await self._playback.reply())
        return await super()._agenerate(messages, stop, run_manager, **kwargs)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        """Yield the next reply of the playback in chunks, in the form of `MockChatModel`."""
        self._taken.append(await self._playback.reply())
        async for chunk in super()._astream(messages, stop, run_manager, **kwargs):
            yield chunk

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        """Return the reply that the playback has given; raise `ConfigError` for a request without `await`."""
        if not self._taken:
            raise ConfigError("A replay needs asynchronous hooks; one called the model with `invoke`: use `ainvoke`.")
        return self._taken.pop()


_numbers = itertools.count()


def recorded_copy(model: BaseChatModel, playback: Playback) -> BaseChatModel:
    """Return a copy of a model that returns the replies of a playback, and sends nothing.

    Its blocking methods raise `ConfigError`. Its class is a subclass of the model's with the same name, and its address
    and options, on which the form of a request depends, are the same. The cache, the rate limiter and the callbacks are
    not copied.
    """
    replies = RecordedModel(playback)

    class Recorded(type(model)):  # type: ignore[misc]  # the class of the model is not known before
        """The class of the copy."""

        model_config = {"defer_build": True}  # noqa: RUF012 - Pydantic's; instances are never validated

        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            """Raise `ConfigError`, as the playback is asynchronous."""
            return replies._generate(*args, **kwargs)

        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            """Return the next reply of the playback."""
            return await replies._agenerate(*args, **kwargs)

        def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
            """Raise `ConfigError`, as the playback is asynchronous."""
            return replies._stream(*args, **kwargs)

        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
            """Yield the next reply of the playback in chunks."""
            async for chunk in replies._astream(*args, **kwargs):
                yield chunk

    Recorded.__module__, Recorded.__name__ = type(model).__module__, type(model).__name__
    # What this process has learned of an endpoint, whose key has this name, is not what the recording process knew.
    Recorded.__qualname__ = f"{type(model).__qualname__}.recorded{next(_numbers)}"
    # A cache would answer in place of the recording; a limiter and callbacks would count requests that are not sent.
    copy = model.model_copy(update={"cache": False, "rate_limiter": None, "callbacks": None})
    copy.__class__ = Recorded
    return copy


_requested: ContextVar[tuple[str, Mapping[str, Any]]] = ContextVar("graph_agent_replayed_call")
"""Id and arguments of the current call, as the model sent them."""


class _UnknownOutcomeError(McpServerError, CallError):
    """Raised by a stand-in for a call whose recorded outcome is unknown; the text is that of the recorded result."""

    may_have_run = True  # so that the call of a tool that may write gets the status `unknown` again


class _RecordedTool(StructuredTool):
    """A tool with the schema and the metadata of another, whose results come from a playback."""

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Check the arguments, and return the recorded result; `input` is the tool call."""
        token = _requested.set((str(input["id"]), input["args"]))
        try:
            return await super().ainvoke(input, config, **kwargs)
        finally:
            _requested.reset(token)


def recorded_tool(tool: BaseTool, playback: Playback) -> BaseTool:
    """Return a tool that checks its arguments as `tool` does, and takes its results from a playback.

    The copy has no timeout and no retries. If the playback permits it, `tool` itself runs for a call without a result.
    A recorded outcome `unknown` is raised as an error, so that the call has this outcome again.
    """

    hidden = InjectedArguments(tool).hidden

    async def run(**_: Any) -> Any:
        """Return the recorded result of the current call: the value if it is JSON, else a `ToolMessage`.

        Without a recorded result, the tool itself runs if the playback permits it. Raises `_UnknownOutcomeError` for a
        call that was recorded with an unknown outcome.
        """
        id_, arguments = _requested.get()
        shown = {name: value for name, value in arguments.items() if name not in hidden}
        found = await playback.result(id_, tool.name, shown, tool)
        if found is None:
            return await tool.ainvoke({"type": "tool_call", "id": id_, "name": tool.name, "args": dict(arguments)})
        if found.artifact is None and found.event.get("encoding") == "json" and found.status in SUCCESSES:
            return json.loads(text_of(found.content))  # a message would not show that its text is JSON
        if found.status == "unknown":
            raise _UnknownOutcomeError(text_of(found.content))
        status = "success" if found.status in SUCCESSES else "error"
        return ToolMessage(found.content, tool_call_id=id_, name=tool.name, status=status, artifact=found.artifact)

    # A recorded result needs no second attempt, and the wait for it is not the tool's time.
    marks = {name: value for name, value in (tool.metadata or {}).items() if name not in ("retry", "timeout_s")}
    return _RecordedTool(
        name=tool.name,
        description=tool.description,
        args_schema=_arguments_of(tool),
        coroutine=run,
        metadata=marks,
        return_direct=tool.return_direct,
        handle_validation_error=tool.handle_validation_error,
        handle_tool_error=tool.handle_tool_error,
    )


def _arguments_of(tool: BaseTool) -> Any:
    """Return the schema that checks a tool's arguments; a schema that accepts all for a tool of a single text."""
    if tool.args_schema is not None:
        return tool.args_schema
    return {"type": "object", "properties": tool.args} if isinstance(tool, Tool) else tool.get_input_schema()


class RecordedDelegate:
    """A delegate with the name of another, whose answers come from a playback."""

    def __init__(self, delegate: Delegate, playback: Playback) -> None:
        self.name, self.description = delegate.name, delegate.description
        self._playback = playback

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Return the recorded answer to a task; nothing is contacted."""
        name = delegation_name(self.name)
        found = await self._playback.result(delegation.id, name, {"task": delegation.task}, None)
        assert found is not None, "only tools run in a replay"
        return DelegationResult(
            found.content,
            found.status,
            usage=found.usage or NO_USAGE,
            value=found.event.get("value"),
            untrusted=bool(found.event.get("untrusted")),
        )


def rebuild(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    *,
    model: BaseChatModel | None = None,
    playback: Playback,
    real: Mapping[str, BaseTool],
    checkpointer: BaseCheckpointSaver[Any],
    model_rules: Mapping[str, Mapping[str, Any]] | None = None,
) -> CompiledAgentGraph:
    """Build an agent again, with recorded results in place of its tools and delegates.

    The plan cache is off, requests are recorded in events, and the Store is in memory. Facts about users are not read,
    and no call begins before its plan. A model that cannot be built is replaced, too. A tool in `real` and the tool
    that reads cut results run as they are.

    Args:
        graph: The agent, which is unchanged.
        model: Replies in place of the agent's models; None for their recorded replies.
        playback: Gives the recorded replies and results.
        real: Name of a tool → the tool that runs in its place.
        checkpointer: The saver of the new agent.
        model_rules: Model name → fields of its rules that were learned when the replies were recorded; the agent's own
            win.

    Raises:
        ConfigError: If the graph is no agent of this package.
    """
    from langgraph.store.memory import InMemoryStore

    from graph_agent.base.settings.config import LoopConfig
    from graph_agent.core.extensions.argument_checks import checked_delegates, checked_tools
    from graph_agent.session.assembly import assemble

    builder = builder_of(graph)
    if builder is None or not builder.arguments:
        raise ConfigError(f"Only an agent of create_graph_agent() can be replayed, not {graph!r}.")
    arguments = dict(builder.arguments)
    config: LoopConfig = arguments.get("config") or LoopConfig()
    rules = {name: {**fields, **config.rules_of(name)} for name, fields in (model_rules or {}).items()}
    arguments["config"] = config.with_values(
        {
            "plan_cache_ttl_s": None,
            "dispatch": "whole",
            "predict": False,
            "candidates": 1,
            "record_requests": config.record_requests or True,
            "model_rules": {**config.model_rules, **rules},
        }
    )
    # A cached plan would hide a request that the recording has.
    arguments["cache"] = None
    if arguments.get("memory") is not None:
        arguments["memory"] = UnreadMemory(arguments["memory"].tools)
    arguments["tools"] = [real.get(tool.name, tool) for tool in checked_tools(arguments.get("tools"))]
    arguments["delegates"] = [
        RecordedDelegate(each, playback) for each in checked_delegates(arguments.get("delegates"))
    ]
    models = builder.deps.models

    def resolve(given: Any) -> BaseChatModel:
        """Return what stands in for one of the agent's models: the given model, or a copy of it with recorded replies.

        A model that cannot be built, e.g. without a key, is replaced by a plain model with recorded replies.
        """
        if model is not None:
            return model
        try:
            return recorded_copy(models.resolve(given), playback)
        except ConfigError:
            return RecordedModel(playback)  # without a provider's key or package, no model of its class can be made

    arguments["resolve"] = resolve
    rebuilt = assemble(model or recorded_copy(models.own, playback), **arguments)
    runs = {*real, READ_RESULT}
    rebuilt.deps.toolbox.replace_tools(lambda tool: tool if tool.name in runs else recorded_tool(tool, playback))
    rebuilt.credentials, rebuilt.caller = builder.credentials, builder.caller
    # A store of its own: what a replay writes must not reach the memory of the real agent.
    built = rebuilt.compile(checkpointer=checkpointer, store=InMemoryStore(), name=graph.name)
    limit = (graph.config or {}).get("recursion_limit")
    return built if limit is None else built.with_config({"recursion_limit": limit})
