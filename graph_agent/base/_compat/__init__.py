"""Imports every private name of LangGraph, LangChain and Python that this package uses; `checkpoints` has more.

Each has a test in `tests/base/test_compat*.py` that fails when it moves. No other module of the package may import
a name that begins with an underscore from another distribution.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForChainRun,
    BaseCallbackManager,
)
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph._internal._constants import NULL_TASK_ID
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.graph._branch import BranchSpec
from langgraph.graph.message import _messages_delta_reducer
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._messages import StreamMessagesHandler as StreamMessagesHandler  # other modules name the type
from langgraph.pregel._messages import graph_namespace
from langgraph.pregel._write import ChannelWrite
from langgraph.types import Send

if TYPE_CHECKING:
    # Imported in functions where they are called: only an agent with tools, or a request, needs them.
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool, StructuredTool
    from langgraph.types import Checkpointer, TracePolicy

# LangGraph assigns message ids before storing a write only if the channel has exactly this reducer; with any other,
# `("user", "hi")` would get a new id at each read.
messages_delta_reducer = _messages_delta_reducer

# Parses a regular expression without compiling it.
_parser = import_module("re._parser")  # not in all typed stubs
parse_pattern: Callable[[str], Any] = _parser.parse
SubPattern: type[Any] = _parser.SubPattern

_CHECKPOINTER = "__pregel_checkpointer"
_READ = "__pregel_read"
_DURABILITY = "__pregel_durability"
_RESUMING = "__pregel_resuming"
_TASK_ID = "__pregel_task_id"
_RUNTIME = "__pregel_runtime"
_COORDINATES = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")

INTERRUPT = "__interrupt__"
"""Key of the open interrupts in chunks of LangGraph's stream, and the channel of their writes."""
STRICT_RESUME = "__pregel_strict_resume"
"""Key in `configurable`: LangGraph refuses an answer that names an interrupt that is not open, before any write."""
NO_PERSISTENCE: dict[str, Any] = {_DURABILITY: "async"}
"""Added to the `configurable` of a graph compiled with `checkpointer=False`, which fails under a parent's `"sync"`."""


def dual_runnable(
    sync: Callable[..., Any] | None, coroutine: Callable[..., Awaitable[Any]] | None, name: str
) -> Runnable[Any, Any]:
    """Make a runnable that runs `coroutine` from asynchronous entry points and `sync` from blocking ones.

    LangGraph injects `config` and `runtime` by the parameters of `sync`, so both functions must have the same. The
    runnable is not traced: LangGraph traces the node it becomes.
    """
    return RunnableCallable(sync, coroutine, name=name, trace=False)


def read_state(config: RunnableConfig, keys: Sequence[str], *, fresh: bool = False) -> dict[str, Any]:
    """Read state fields, without those never written, inside a `Send` task, whose input is the sent value only.

    With `fresh`, they include the task's own writes.
    """
    read = config["configurable"][_READ]
    values: dict[str, Any] = read(list(keys), fresh)
    return values


def read_running_state(keys: Sequence[str]) -> dict[str, Any]:
    """Behaves like `read_state`, for code that a node calls and that has no config; empty outside a node."""
    config = ensure_config()
    return read_state(config, keys) if _READ in config.get("configurable", {}) else {}


def checkpointer_of(config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
    """Return the saver of the running graph, from inside one of its nodes; None without one."""
    saver = config["configurable"].get(_CHECKPOINTER)
    return saver if isinstance(saver, BaseCheckpointSaver) else None


def lacks_thread(checkpointer: Checkpointer, configurable: Mapping[str, Any]) -> bool:
    """Whether a run, by its complete `configurable`, is to store checkpoints and names no thread.

    A saver of a surrounding run replaces that of the graph.
    """
    saver = configurable.get(_CHECKPOINTER, checkpointer) if checkpointer is not False else None
    return isinstance(saver, BaseCheckpointSaver) and configurable.get("thread_id") is None


def inherits_durability(configurable: Mapping[str, Any], durability: str | None = None) -> bool:
    """Whether a surrounding run sets the durability, or this one, for a nested run with this `configurable`."""
    return _DURABILITY in configurable and durability in (None, configurable[_DURABILITY])


def with_context(config: RunnableConfig, change: Callable[[Any], Any]) -> RunnableConfig:
    """Return a node's config with another context in its runtime; the same config if `change` returns the same one."""
    configurable = config.get("configurable", {})
    runtime = configurable.get(_RUNTIME)
    if runtime is None or (context := change(runtime.context)) is runtime.context:
        return config
    return {**config, "configurable": {**configurable, _RUNTIME: runtime.override(context=context)}}


def names_checkpoint(configurable: Mapping[str, Any]) -> bool:
    """Whether a run names its own thread or checkpoint, so that LangGraph passes nothing of a surrounding run's on."""
    return any(configurable.get(name) for name in _COORDINATES)


def surrounding_context(config: RunnableConfig | None) -> Any:
    """Return the context that a nested run inherits; None without a surrounding run.

    A run that names its own thread or checkpoint inherits nothing from the caller.
    """
    given = (config or {}).get("configurable", {})
    if _RUNTIME not in given and not names_checkpoint(given):
        given = ensure_config().get("configurable", {})
    return getattr(given.get(_RUNTIME), "context", None)


def is_resuming(config: RunnableConfig) -> bool:
    """Whether a graph that runs inside a node resumes from its own checkpoint, if it has one."""
    return bool(config["configurable"].get(_RESUMING))


def is_nested(configurable: Mapping[str, Any]) -> bool:
    """Whether a run belongs to a task of another graph, whose stream may show its nodes."""
    return _TASK_ID in configurable


def count_resume_values(config: RunnableConfig) -> int:
    """Count the interrupts of a task that have an answer in this run; 0 at the task's first interrupt."""
    scratchpad = config["configurable"].get(SCRATCHPAD)
    if scratchpad is None:
        return 0
    return len(scratchpad.resume) + (scratchpad.get_null_resume(False) is not None)


def newest_resume_value(config: RunnableConfig) -> Any:
    """Return the answer that a task's newest interrupt has received in this run; None if there is none."""
    scratchpad = config["configurable"].get(SCRATCHPAD)
    return scratchpad.resume[-1] if scratchpad is not None and scratchpad.resume else None


async def stop_batching(store: Any) -> None:
    """End the background task of one of LangGraph's asynchronous Stores, which has no method for it."""
    if store._task is not None:
        store._task.cancel()
        await asyncio.wait([store._task])


def close_sqlite_cache(cache: Any) -> None:
    """Close the connection of LangGraph's `SqliteCache`, which has no method for it."""
    cache._conn.close()


class InjectedArguments:
    """Parameters of a tool that the framework injects, by `ToolNode`'s rules."""

    def __init__(self, tool: BaseTool) -> None:
        # Imported here: it loads LangGraph's prebuilt agents, and only an agent with tools needs it.
        from langgraph.prebuilt.tool_node import _get_all_injected_args

        found = _get_all_injected_args(tool)
        self.state: dict[str, str | None] = found.state
        """Parameter → the injected state field; None for the whole state."""
        self.optional_state: set[str] = found._optional_state_args
        self.store: str | None = found.store
        self.runtime: str | None = found.runtime
        self.hidden: set[str] = found.all_injected_keys
        """Parameters a model may not set."""

    def __bool__(self) -> bool:
        return bool(self.state or self.store or self.runtime or self.hidden)


def changes_in(update: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what nodes wrote, by state field, from one item of LangGraph's `updates` stream.

    A node that wrote a field twice has one entry for each write.
    """
    for written in update.values():
        changes = written if isinstance(written, list) else [written]
        yield from (change for change in changes if isinstance(change, dict))


def is_overridden(middleware: Any, base: type, method: str) -> bool:
    """Whether a middleware defines a method itself."""
    return getattr(type(middleware), method) is not getattr(base, method)


def can_jump_to(middleware: Any, hook: str) -> list[str]:
    """Return the destinations that a hook of a LangChain middleware declares with `hook_config(can_jump_to=…)`."""
    from langchain.agents.factory import _get_can_jump_to

    return [*_get_can_jump_to(middleware, hook)]


def trace_policy_of(middleware: Any) -> TracePolicy:
    """Return what tracers record of a middleware's nodes: its own policy, or that of `configure_trace_policy`."""
    from langchain.agents.middleware._trace_policy import _node_trace_policy

    return _node_trace_policy(middleware.trace_policy)


def chain_model_calls(wraps: Sequence[Callable[..., Awaitable[Any]]]) -> Callable[..., Awaitable[Any]]:
    """Compose LangChain's `awrap_model_call` methods, outermost first; there is at least one.

    The composed method returns an object with `model_response` and `commands`, the innermost middleware's first.
    """
    from langchain.agents.factory import _chain_async_model_call_handlers

    composed = _chain_async_model_call_handlers(wraps)
    assert composed is not None
    return composed


def chain_tool_calls(wraps: Sequence[Callable[..., Awaitable[Any]]]) -> Callable[..., Awaitable[Any]]:
    """Compose LangChain's `awrap_tool_call` methods, outermost first; there is at least one."""
    from langchain.agents.factory import _chain_async_tool_call_wrappers

    composed = _chain_async_tool_call_wrappers(wraps)
    assert composed is not None
    return composed


def as_tool_output(content: Any, artifact: Any, tool: StructuredTool, call_id: str) -> Any:
    """Convert a tool's return value as `tool.ainvoke` does: to a message, unless it is one already."""
    from langchain_core.tools.base import _format_output

    return _format_output(content, artifact, call_id, tool.name, "success")


def uses_responses_api(model: Any, options: Mapping[str, Any]) -> bool:
    """Whether an OpenAI chat model sends a request with these options to `/v1/responses`."""
    return bool(model._use_responses_api(options))


def without_boto_retries(client: Any, on_response: Callable[[Any], None]) -> Any:
    """Return a copy of a client of boto3 that sends each request once; it shares the connections of the original.

    `on_response` receives each response, in the thread of its request, before the body of a streamed one is read.
    """
    emitter = copy.copy(client._endpoint._event_emitter)
    service = client.meta.service_model.service_id.hyphenize()
    emitter.unregister(f"needs-retry.{service}", unique_id=f"retry-config-{service}")
    emitter.register(f"after-call.{service}", lambda http_response, **_: on_response(http_response))
    once = _changed(client._endpoint, _event_emitter=emitter)
    return _changed(client, _endpoint=once, meta=_changed(client.meta, events=emitter))


def without_watsonx_retries(model: Any) -> Any:
    """Return a `ModelInference` of IBM that sends each request once; it shares the connections of the original."""
    client = model._client
    once: dict[str, Any] = {}
    for name in ("_httpx_client", "_async_httpx_client"):
        http = getattr(client, name, None)
        # Its transport has retries of its own; one that the user gave may have none.
        if hasattr(transport := getattr(http, "_transport", None), "retries"):
            once[name] = _changed(http, _transport=_changed(transport, retries=0))
    return type(model)(
        model_id=model.model_id,
        deployment_id=model.deployment_id,
        params=model.params,
        api_client=_changed(client, **once),
        validate=False,
        max_retries=0,
    )


def _changed(instance: Any, **attributes: Any) -> Any:
    """Return a shallow copy of an object with some attributes replaced."""
    # Not `copy.copy`: a client of boto3 looks up unknown attributes before it has any.
    other = object.__new__(type(instance))
    vars(other).update({**vars(instance), **attributes})
    return other


def default_executor_of(loop: asyncio.BaseEventLoop) -> ThreadPoolExecutor | None:
    """Return the executor that a loop runs blocking code on by default; None before its first use."""
    executor: ThreadPoolExecutor | None = loop._default_executor  # type: ignore[attr-defined]  # private, so untyped
    return executor


def config_parameter(function: Callable[..., Any]) -> str | None:
    """Return the parameter of a tool's function that receives the run's config; None without one."""
    from langchain_core.tools.base import _get_runnable_config_param

    return _get_runnable_config_param(function)


MakeGate = Callable[[Callable[[Any], None], set[int | str]], Callable[[Any], None]]
"""Makes a gate from a message stream's consumer and the set of message ids that the stream has emitted."""


def gate_message_stream(config: RunnableConfig, gate: MakeGate) -> RunnableConfig:
    """Return a model call's config whose entries to LangGraph's message stream pass through a gate."""
    manager = config.get("callbacks")
    if not isinstance(manager, BaseCallbackManager):
        return config
    gated: dict[int, Any] = {}
    for handler in [*manager.handlers, *manager.inheritable_handlers]:
        if isinstance(handler, StreamMessagesHandler) and id(handler) not in gated:
            gated[id(handler)] = other = copy.copy(handler)
            other.stream = gate(handler.stream, handler.seen)
    if not gated:
        return config
    manager = manager.copy()
    manager.handlers = [gated.get(id(handler), handler) for handler in manager.handlers]
    manager.inheritable_handlers = [gated.get(id(handler), handler) for handler in manager.inheritable_handlers]
    return {**config, "callbacks": manager}


def message_handlers(manager: BaseCallbackManager) -> list[StreamMessagesHandler] | None:
    """Return the handlers of a manager if all are LangGraph's own for its message stream; None if one is not."""
    if any(type(handler) is not StreamMessagesHandler for handler in manager.handlers):
        return None
    return [handler for handler in manager.handlers if isinstance(handler, StreamMessagesHandler)]


def emit_message(handler: StreamMessagesHandler, run_meta: Any, message: BaseMessage) -> None:
    """Send one token of a model call to the message stream; `run_meta` is the handler's entry for the call."""
    handler._emit(run_meta, message)


def queue_of(handler: StreamMessagesHandler, loop: asyncio.AbstractEventLoop) -> Callable[[Any], None] | None:
    """Return the function that adds entries to a message stream's queue in the thread of `loop`; None if unknown."""
    stream = handler.stream
    if not isinstance(stream, functools.partial) or stream.func != loop.call_soon_threadsafe:
        return None
    put: Callable[[Any], None] = stream.args[0]
    return put


def cache_block_types() -> None:
    """Cache the types of langchain-core's content blocks.

    Without the cache, the type hints of five classes are read for each block of each sent message: 0.12 ms each.
    """
    from langchain_core.messages import content

    if not hasattr(content._get_data_content_block_types, "cache_info"):
        content._get_data_content_block_types = functools.cache(content._get_data_content_block_types)


_MOST_REPEATED = 200
"""Newest messages of the history that the output of a node may repeat."""


class _UnobservedNode(RunnableSeq):
    """A node and its writers, run without LangChain's callbacks while no handler receives them.

    LangGraph otherwise starts and ends a chain run for each node, with a callback manager for each of its writers.
    """

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if config is None or is_observed(config):
            return await super().ainvoke(input, config, **kwargs)
        # The name and the id belong to the node's run alone.
        config = {**config}
        config.pop("run_name", None)
        config.pop("run_id", None)
        node, *writers = self.steps
        if type(node) is ChannelWrite:
            output = await node.ainvoke(input, config)
        else:
            context = copy_context()
            context.run(var_child_runnable_config.set, config)
            # A task, as LangGraph makes: the node's context variables stay its own.
            output = await asyncio.create_task(node.ainvoke(input, config, **kwargs), context=context)
        for writer in writers:
            output = await writer.ainvoke(output, config)
        return output

    async def _astart(self, input: Any, config: RunnableConfig) -> AsyncCallbackManagerForChainRun:
        manager = config.get("callbacks")
        handlers = manager.handlers if isinstance(manager, AsyncCallbackManager) else [manager]
        # The message stream reads the input for messages that the output may repeat; no node repeats an old one.
        if isinstance(input, dict) and all(isinstance(handler, StreamMessagesHandler) for handler in handlers):
            input = {key: value[-_MOST_REPEATED:] if type(value) is list else value for key, value in input.items()}
        return await super()._astart(input, config)


def is_observed(config: RunnableConfig) -> bool:
    """Whether callback handlers observe the nodes of a run, or a program that instruments LangGraph may."""
    manager = config.get("callbacks")
    return not isinstance(manager, AsyncCallbackManager) or bool(manager.handlers) or _is_instrumented()


def _is_instrumented() -> bool:
    """Whether a program that instruments LangGraph replaces the method that runs a node."""
    function: Any = RunnableSeq.ainvoke
    return type(function) is not FunctionType or function.__globals__ is not vars(sys.modules[RunnableSeq.__module__])


def stream_messages(config: RunnableConfig, messages: Callable[[], Sequence[BaseMessage]]) -> None:
    """Stream a node's messages to readers of `stream_mode="messages"` that have not received them.

    LangGraph itself streams the messages of an update that is a mapping, in the same way. A message without an id gets
    one. `messages` is called only if there are such readers.
    """
    for handler in getattr(config.get("callbacks"), "handlers", ()):
        if isinstance(handler, StreamMessagesHandler):
            metadata = config["metadata"]
            namespace = graph_namespace(metadata)
            if handler.subgraphs or not namespace or namespace == handler.parent_ns:
                handler._find_and_emit_messages((namespace, metadata), messages())


def skip_unused_callbacks(graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    """Run the nodes of a graph without LangChain's callbacks in each run that no callback handler observes."""
    for node in graph.nodes.values():
        if type(node.node) is RunnableSeq:
            made = node.node
            node.node = _UnobservedNode(
                *made.steps, name=made.name, trace_inputs=made.trace_inputs, trace_policy=made.trace_policy
            )


UpdateRouter = Callable[[Any, RunnableConfig], Sequence[Send | str] | str | None]
"""Maps a node's return value and its config to the next tasks or node; None if the state decides."""


class _UpdateBranch(BranchSpec):
    """A conditional edge that routes by the node's return value if that suffices.

    To read the state after a node, LangGraph copies every channel.
    """

    route: UpdateRouter

    def _route(self, input: Any, config: RunnableConfig, *, reader: Any, writer: Any) -> Any:
        if (found := self.route(input, config)) is not None:
            return self._finish(writer, input, found, config)
        return super()._route(input, config, reader=reader, writer=writer)

    async def _aroute(self, input: Any, config: RunnableConfig, *, reader: Any, writer: Any) -> Any:
        if (found := self.route(input, config)) is not None:
            return self._finish(writer, input, found, config)
        return await super()._aroute(input, config, reader=reader, writer=writer)


def route_by_update(graph: StateGraph[Any, Any, Any, Any], node: str, edge: str, route: UpdateRouter) -> None:
    """Let a node's conditional edge route by its return value; if `route` returns None, the edge reads the state."""
    branch = _UpdateBranch(*graph.branches[node][edge])
    branch.route = route
    graph.branches[node][edge] = branch


SCRATCHPAD = "__pregel_scratchpad"
"""Key in `configurable` of what a task knows of its interrupts and of the graphs that it runs."""


def in_namespace(config: RunnableConfig, namespace: str) -> dict[str, Any]:
    """Return the `configurable` to run or read a graph in the namespace of an earlier run in this thread."""
    scratchpad = config["configurable"].get(SCRATCHPAD)
    own: dict[str, Any] = {"checkpoint_ns": namespace}
    if scratchpad is not None:
        # LangGraph appends a number to the namespace of each further graph that one task runs.
        own[SCRATCHPAD] = replace(scratchpad, subgraph_counter=lambda: 0)
    return own


def parent_checkpoint(configurable: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return namespace and id of the checkpoint that the node of a config runs from; no id without checkpoints."""
    namespace = str(configurable.get("checkpoint_ns", "")).rpartition("|")[0]
    return namespace, configurable.get("checkpoint_map", {}).get(namespace)


_PENDING_INDEX = "_graph_agent_pending_index"
"""Attribute of a run's loop: the list of its pending writes, and a superset of the ids of their tasks."""


def index_pending_writes() -> None:
    """Make LangGraph add a task's writes to those of a superstep without searching all of them for older ones.

    LangGraph searches once for each task, so a wave's cost grows with the square of its calls. The older writes are
    hidden from it if an index shows that none is the task's own. Decision 13 in the documentation proposes the change
    upstream.
    """
    loop_class = import_module("langgraph.pregel._loop").AsyncPregelLoop
    original = loop_class.put_writes
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def put_writes(self: Any, task_id: str, writes: Any, *, cached: bool = False) -> None:
        pending: list[Any] = self.checkpoint_pending_writes
        indexed, ids = getattr(self, _PENDING_INDEX, (None, set[str]()))
        if indexed is not pending:
            ids = {write[0] for write in pending}
            setattr(self, _PENDING_INDEX, (pending, ids))
        if task_id == NULL_TASK_ID or task_id in ids:
            original(self, task_id, writes, cached=cached)
            return
        self.checkpoint_pending_writes = []
        try:
            original(self, task_id, writes, cached=cached)
        finally:
            pending.extend(self.checkpoint_pending_writes)
            self.checkpoint_pending_writes = pending
        ids.add(task_id)

    loop_class.put_writes = put_writes


_ENTRY_POINTS = ("ainvoke", "agenerate_prompt", "agenerate", "_convert_input")
"""Methods of a chat model between a caller and `_agenerate_with_cache`."""
TRACED_OPTIONS = ("ls_structured_output_format", "structured_output_format")
"""Keyword arguments of a model that only traces receive."""


def traced_parameters(model: BaseChatModel, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata that LangChain adds to a request of a chat model."""
    return model._get_ls_params_with_defaults(**{k: v for k, v in options.items() if k not in TRACED_OPTIONS})


def has_own_entry_point(model: BaseChatModel) -> bool:
    """Whether a chat model, or a program that instruments LangChain, replaces one of `_ENTRY_POINTS`."""
    own = vars(sys.modules["langchain_core.language_models.chat_models"])
    functions = [getattr(type(model), name) for name in _ENTRY_POINTS]
    return any(type(function) is not FunctionType or function.__globals__ is not own for function in functions)
