"""Imports the private names of LangGraph, LangChain and Python that this package uses; `checkpoints` has more.

Each has a test in `tests/base/test_compat*.py` that fails when the name moves. No other module of the package may
import a name that begins with an underscore from another distribution.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import replace
from importlib import import_module
from types import FunctionType, coroutine
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForChainRun, BaseCallbackManager
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph._internal._constants import NULL_TASK_ID
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_stream_writer
from langgraph.graph import StateGraph
from langgraph.graph._branch import BranchSpec
from langgraph.graph.message import _messages_delta_reducer
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._messages import StreamMessagesHandler as StreamMessagesHandler  # other modules name the type
from langgraph.pregel._messages import graph_namespace
from langgraph.pregel._write import ChannelWrite
from langgraph.types import Send
from pydantic import BaseModel

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
"""Key of open interrupts in chunks of LangGraph's stream; also the channel of their writes."""
STRICT_RESUME = "__pregel_strict_resume"
"""Key in `configurable` that makes LangGraph refuse, before any write, an answer to an interrupt that is not open."""
NO_PERSISTENCE: dict[str, Any] = {_DURABILITY: "async"}
"""Added to the `configurable` of a run of a graph compiled with `checkpointer=False`.

Without it LangGraph raises an error if the surrounding run has durability `"sync"`.
"""


def dual_runnable(
    sync: Callable[..., Any] | None, coroutine: Callable[..., Awaitable[Any]] | None, name: str
) -> Runnable[Any, Any]:
    """Return a LangGraph node that calls `coroutine` from asynchronous entry points and `sync` from blocking ones.

    LangGraph injects `config` and `runtime` according to the parameters of `sync`, so both must have the same. The
    runnable is not traced, because LangGraph traces the node itself. If one function is None, that way of calling
    fails.
    """
    return RunnableCallable(sync, coroutine, name=name, trace=False)


def read_state(config: RunnableConfig, keys: Sequence[str], *, fresh: bool = False) -> dict[str, Any]:
    """Return state fields inside a node or a `Send` task, whose own input has only the sent value.

    Fields that were never written are absent.

    Args:
        config: The node's config.
        keys: Names of the fields.
        fresh: Whether the values include what the task itself has written so far.
    """
    read = config["configurable"][_READ]
    values: dict[str, Any] = read(list(keys), fresh)
    return values


def read_running_state(keys: Sequence[str]) -> dict[str, Any]:
    """Return state fields for code that a node calls without a config; empty outside a node. See `read_state`."""
    config = ensure_config()
    return read_state(config, keys) if _READ in config.get("configurable", {}) else {}


def checkpointer_of(config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
    """Return the saver of the running graph, given a node's config; None if it has none."""
    saver = config["configurable"].get(_CHECKPOINTER)
    return saver if isinstance(saver, BaseCheckpointSaver) else None


def lacks_thread(checkpointer: Checkpointer, configurable: Mapping[str, Any]) -> bool:
    """Whether a run would store checkpoints but has no `thread_id`, so that LangGraph would raise an error.

    Args:
        checkpointer: The graph's saver; False if it stores none. The saver of a surrounding run comes before it.
        configurable: The run's complete `configurable`.
    """
    saver = configurable.get(_CHECKPOINTER, checkpointer) if checkpointer is not False else None
    return isinstance(saver, BaseCheckpointSaver) and configurable.get("thread_id") is None


def inherits_durability(configurable: Mapping[str, Any], durability: str | None = None) -> bool:
    """Whether a nested run takes over the durability of the surrounding run, because its own is None or the same."""
    return _DURABILITY in configurable and durability in (None, configurable[_DURABILITY])


def with_context(config: RunnableConfig, change: Callable[[Any], Any]) -> RunnableConfig:
    """Return a copy of a node's config with its runtime context replaced by `change(context)`.

    The config itself is returned if it has no runtime, or if `change` returns the same object.
    """
    configurable = config.get("configurable", {})
    runtime = configurable.get(_RUNTIME)
    if runtime is None or (context := change(runtime.context)) is runtime.context:
        return config
    return {**config, "configurable": {**configurable, _RUNTIME: runtime.override(context=context)}}


def names_checkpoint(configurable: Mapping[str, Any]) -> bool:
    """Whether a run names a thread, a namespace or a checkpoint itself, so that it inherits nothing from a surrounding
    run."""
    return any(configurable.get(name) for name in _COORDINATES)


def surrounding_context(config: RunnableConfig | None) -> Any:
    """Return the runtime context that a nested run inherits from the run around it; None if there is none.

    A config that names its own thread or checkpoint inherits only from its own runtime.
    """
    given = (config or {}).get("configurable", {})
    if _RUNTIME not in given and not names_checkpoint(given):
        given = ensure_config().get("configurable", {})
    return getattr(given.get(_RUNTIME), "context", None)


def is_resuming(config: RunnableConfig) -> bool:
    """Whether a graph that runs inside a node has to continue from its own checkpoint, if it has one."""
    return bool(config["configurable"].get(_RESUMING))


def is_nested(configurable: Mapping[str, Any]) -> bool:
    """Whether a run is part of a task of another graph, in whose stream its nodes may appear."""
    return _TASK_ID in configurable


def count_resume_values(config: RunnableConfig) -> int:
    """Return how many interrupts of a node's task have been answered so far.

    0 when it interrupts for the first time.
    """
    scratchpad = config["configurable"].get(SCRATCHPAD)
    if scratchpad is None:
        return 0
    return len(scratchpad.resume) + (scratchpad.get_null_resume(False) is not None)


def newest_resume_value(config: RunnableConfig) -> Any:
    """Return the newest answer to an interrupt of a node's task; None if none has been answered."""
    scratchpad = config["configurable"].get(SCRATCHPAD)
    return scratchpad.resume[-1] if scratchpad is not None and scratchpad.resume else None


class InjectedArguments:
    """The parameters of a tool that LangGraph fills in and the model does not, by the rules of its `ToolNode`."""

    def __init__(self, tool: BaseTool) -> None:
        # Imported here: it loads LangGraph's prebuilt agents, and only an agent with tools needs it.
        from langchain_core.tools import InjectedToolCallId
        from langgraph.prebuilt.tool_node import _get_all_injected_args

        found = _get_all_injected_args(tool)
        self.state: dict[str, str | None] = found.state
        """Parameter → injected state field; None in place of a field for the whole state."""
        self.optional_state: set[str] = found._optional_state_args
        self.store: str | None = found.store
        self.runtime: str | None = found.runtime
        self.hidden: set[str] = found.all_injected_keys
        """Names of the parameters that the model must not set, a superset of the others."""
        self.is_empty = not (self.state or self.store or self.runtime or self.hidden)
        """Whether the tool has no such parameter."""
        schema = tool.args_schema
        fields = schema.model_fields if isinstance(schema, type) and issubclass(schema, BaseModel) else {}
        self.call_ids = frozenset(name for name, info in fields.items() if InjectedToolCallId in info.metadata)
        """Names of the parameters that LangChain fills in with the call's id."""


def changes_in(update: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the state updates (field → value) in one item of LangGraph's `updates` stream, which is a dict of node →
    update. A node that returned several updates yields each of them; values that are not dicts are skipped."""
    for written in update.values():
        changes = written if isinstance(written, list) else [written]
        yield from (change for change in changes if isinstance(change, dict))


def is_overridden(middleware: Any, base: type, method: str) -> bool:
    """Whether the class of a middleware overrides a method of the class `base`, given by its name."""
    return getattr(type(middleware), method) is not getattr(base, method)


def can_jump_to(middleware: Any, hook: str) -> list[str]:
    """Return the destinations, such as `end`, that a middleware declares for its method `hook`.

    Empty if it declares none.
    """
    from langchain.agents.factory import _get_can_jump_to

    return [*_get_can_jump_to(middleware, hook)]


def trace_policy_of(middleware: Any) -> TracePolicy:
    """Return what tracers record of a middleware's nodes: its own policy, or that set by `configure_trace_policy`."""
    from langchain.agents.middleware._trace_policy import _node_trace_policy

    return _node_trace_policy(middleware.trace_policy)


def chain_model_calls(wraps: Sequence[Callable[..., Awaitable[Any]]]) -> Callable[..., Awaitable[Any]]:
    """Compose LangChain's `awrap_model_call` methods to one, outermost first; `AssertionError` for none.

    The composed method returns an object with `model_response` and `commands`, those of the innermost first.
    """
    from langchain.agents.factory import _chain_async_model_call_handlers

    composed = _chain_async_model_call_handlers(wraps)
    assert composed is not None
    return composed


def chain_tool_calls(wraps: Sequence[Callable[..., Awaitable[Any]]]) -> Callable[..., Awaitable[Any]]:
    """Compose LangChain's `awrap_tool_call` methods to one, outermost first; `AssertionError` for none."""
    from langchain.agents.factory import _chain_async_tool_call_wrappers

    composed = _chain_async_tool_call_wrappers(wraps)
    assert composed is not None
    return composed


def as_tool_output(content: Any, artifact: Any, tool: StructuredTool, call_id: str) -> Any:
    """Convert a tool's return value to a `ToolMessage`, as `tool.ainvoke` does.

    A message or a `Command` is unchanged.
    """
    from langchain_core.tools.base import _format_output

    return _format_output(content, artifact, call_id, tool.name, "success")


def uses_responses_api(model: Any, options: Mapping[str, Any]) -> bool:
    """Whether an OpenAI chat model would send a request with these keyword arguments to `/v1/responses`."""
    return bool(model._use_responses_api(options))


def default_executor_of(loop: asyncio.BaseEventLoop) -> ThreadPoolExecutor | None:
    """Return the executor that a loop uses for blocking code by default; None before its first use."""
    executor: ThreadPoolExecutor | None = loop._default_executor  # type: ignore[attr-defined]  # private, so untyped
    return executor


def config_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter by which a tool's function receives the run's config; None without one."""
    from langchain_core.tools.base import _get_runnable_config_param

    return _get_runnable_config_param(function)


MakeGate = Callable[[Callable[[Any], None], set[int | str]], Callable[[Any], None]]
"""Builds a gate from the function that accepts entries of a message stream, and the set of message ids emitted so
far."""


def gate_message_stream(config: RunnableConfig, gate: MakeGate) -> RunnableConfig:
    """Return a copy of a model call's config in which entries of LangGraph's message stream pass through a gate.

    The config itself is returned if no reader uses `stream_mode="messages"`. `gate` receives the `stream` function of a
    reader's handler and the ids that the handler has seen, and returns the function to use instead.
    """
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
    """Return a manager's handlers if all of them are LangGraph's message streams.

    None if any other handler is there.
    """
    handlers = [handler for handler in manager.handlers if type(handler) is StreamMessagesHandler]
    return handlers if len(handlers) == len(manager.handlers) else None


def emit_message(handler: StreamMessagesHandler, run_meta: Any, message: BaseMessage) -> None:
    """Send one chunk of a reply to the message stream; `run_meta` is the handler's metadata of the model call."""
    handler._emit(run_meta, message)


def queue_of(handler: StreamMessagesHandler, loop: asyncio.AbstractEventLoop) -> Callable[[Any], None] | None:
    """Return the function that puts entries into a message stream's queue directly, for calls in the thread of `loop`
    only. None if the handler does not write to a queue of that loop."""
    stream = handler.stream
    if not isinstance(stream, functools.partial) or stream.func != loop.call_soon_threadsafe:
        return None
    put: Callable[[Any], None] = stream.args[0]
    return put


def custom_writer(loop: asyncio.AbstractEventLoop) -> Callable[[Any], None]:
    """Return the function that writes an object to the custom stream of the root graph's running node.

    It writes in the next pass of `loop`, and must be called in the thread of `loop`. LangGraph's own writer, which also
    wakes the loop through a socket for each entry, is returned if the queue is not found or belongs to another loop.
    Outside a node, LangGraph raises `RuntimeError`.
    """
    write = get_stream_writer()
    names = getattr(getattr(write, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = dict(zip(names, getattr(write, "__closure__", None) or (), strict=False))
    if not {"aioloop", "stream"} <= found.keys() or found["aioloop"].cell_contents is not loop:
        return write
    put = found["stream"].cell_contents.put_nowait

    def write_in_loop(entry: Any) -> None:
        # Not at once: entries of the other writer are put in the next pass of the loop, too.
        loop.call_soon(put, ((), "custom", entry))

    return write_in_loop


def cache_block_types() -> None:
    """Cache langchain-core's list of content block types, for the whole process; a second call does nothing.

    Without the cache, the type hints of five classes are read for each block of each sent message: 0.12 ms each.
    """
    from langchain_core.messages import content

    if not hasattr(content._get_data_content_block_types, "cache_info"):
        content._get_data_content_block_types = functools.cache(content._get_data_content_block_types)


_MOST_REPEATED = 200
"""Number of the newest messages that are compared with a node's output, which may repeat them."""


class _UnobservedNode(RunnableSeq):
    """A node and its writers that run without LangChain's callbacks while no handler would receive them.

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
            # The node's context variables stay its own, as in the task that LangGraph makes, which costs more.
            output = await _await_in_context(node.ainvoke(input, config, **kwargs), context)
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


@coroutine
def _await_in_context(work: Coroutine[Any, Any, Any], context: Context) -> Generator[Any, Any, Any]:
    """Await a coroutine in the current task, but with the variables of another context.

    Changes of them stay in `context`.
    """
    resume: Callable[[Any], Any] = work.send
    given: Any = None
    while True:
        try:
            waited = context.run(resume, given)
        except StopIteration as done:
            return done.value
        finally:
            # The traceback of an exception holds this frame, which would keep it until a collection of cycles.
            given = None
        try:
            resume, given = work.send, (yield waited)
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as error:  # noqa: BLE001 - the node decides, as it would without this function
            resume, given = work.throw, error


def is_observed(config: RunnableConfig) -> bool:
    """Whether a callback handler, or a program that instruments LangGraph, may observe the nodes of a run.

    True also if the config has no asynchronous callback manager, because LangGraph then makes one.
    """
    manager = config.get("callbacks")
    if not isinstance(manager, AsyncCallbackManager) or manager.handlers:
        return True
    # Instrumentation replaces LangGraph's method that runs a node.
    function: Any = RunnableSeq.ainvoke
    return type(function) is not FunctionType or function.__globals__ is not vars(sys.modules[RunnableSeq.__module__])


def stream_messages(config: RunnableConfig, messages: Callable[[], Sequence[BaseMessage]]) -> None:
    """Send messages that a node is about to store to readers of `stream_mode="messages"`, except those already sent.

    LangGraph does the same for an update that is a dict, but not for other updates. A message without an id gets one.
    For a node of a subgraph, readers that asked for no subgraphs are skipped, unless they read that graph itself.

    Args:
        config: The node's config.
        messages: Returns the messages; called only if there is such a reader.
    """
    for handler in getattr(config.get("callbacks"), "handlers", ()):
        if isinstance(handler, StreamMessagesHandler):
            metadata = config["metadata"]
            namespace = graph_namespace(metadata)
            if handler.subgraphs or not namespace or namespace == handler.parent_ns:
                handler._find_and_emit_messages((namespace, metadata), messages())


def skip_unused_callbacks(graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    """Change the nodes of a graph, in place, to run without LangChain's callbacks in runs that no handler observes."""
    for node in graph.nodes.values():
        if type(node.node) is RunnableSeq:
            made = node.node
            node.node = _UnobservedNode(
                *made.steps, name=made.name, trace_inputs=made.trace_inputs, trace_policy=made.trace_policy
            )


UpdateRouter = Callable[[Any, RunnableConfig], Sequence[Send | str] | str | None]
"""Returns the next tasks or nodes for a node's return value and config; None to decide by the state instead."""


class _UpdateBranch(BranchSpec):
    """A conditional edge that decides by the node's return value, and reads the state only if that does not suffice.

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
    """Make a node's conditional edge decide by the node's return value, in place.

    Args:
        graph: The graph, not compiled yet.
        node: Name of the node.
        edge: Name of the conditional edge.
        route: Decides; if it returns None, the edge reads the state as before.
    """
    branch = _UpdateBranch(*graph.branches[node][edge])
    branch.route = route
    graph.branches[node][edge] = branch


SCRATCHPAD = "__pregel_scratchpad"
"""Key in `configurable`: LangGraph's record of a task, with its interrupts, their answers and a count of its
subgraphs."""


def in_namespace(config: RunnableConfig, namespace: str) -> dict[str, Any]:
    """Return values for `configurable` with which a node runs or reads a graph under an earlier run's checkpoint
    namespace."""
    scratchpad = config["configurable"].get(SCRATCHPAD)
    own: dict[str, Any] = {"checkpoint_ns": namespace}
    if scratchpad is not None:
        # LangGraph appends a number to the namespace of each further graph that one task runs.
        own[SCRATCHPAD] = replace(scratchpad, subgraph_counter=lambda: 0)
    return own


def parent_checkpoint(configurable: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the namespace and the id of the checkpoint from which a node's graph runs.

    The id is None without checkpoints.
    """
    namespace = str(configurable.get("checkpoint_ns", "")).rpartition("|")[0]
    return namespace, configurable.get("checkpoint_map", {}).get(namespace)


_PENDING_INDEX = "_graph_agent_pending_index"
"""Attribute of a run's LangGraph loop: its list of pending writes, and the ids of all their tasks and perhaps more."""


def index_pending_writes() -> None:
    """Patch LangGraph, once per process, to store a task's writes without searching all writes of the superstep.

    LangGraph searches once for each task, so that the cost of a parallel batch grows with the square of its calls. With
    the patch, older writes are hidden from it if an index shows that none belongs to the task. Decision 13 in the
    documentation proposes the change upstream.
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
"""Methods of a chat model that are called between `ainvoke` and `_agenerate_with_cache`."""
TRACED_OPTIONS = ("ls_structured_output_format", "structured_output_format")
"""Keyword arguments of a model call that go to traces only, not to the model."""


def traced_parameters(model: BaseChatModel, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata about a chat model and a call's options that LangChain adds to traces."""
    return model._get_ls_params_with_defaults(**{k: v for k, v in options.items() if k not in TRACED_OPTIONS})


def has_own_entry_point(model: BaseChatModel) -> bool:
    """Whether a chat model's class, or a program that instruments LangChain, overrides one of `_ENTRY_POINTS`."""
    own = vars(sys.modules["langchain_core.language_models.chat_models"])
    for name in _ENTRY_POINTS:
        function = getattr(type(model), name)
        if type(function) is not FunctionType or function.__globals__ is not own:
            return True
    return False
