"""Defines the agent's state graph and compiled graph, which locks the session and sets the run's durability.

A session is one LangGraph thread, a run one execution of the graph for it, an input one message of a user with all up
to its answer. A fence refuses the writes of a run whose session another run has continued. A handle is this package's
object in `configurable` that joins a run to what surrounds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphBubbleUp
from langgraph.graph import StateGraph
from langgraph.prebuilt import ToolCallTransformer
from langgraph.stream import StreamTransformer
from langgraph.types import Command, StateSnapshot
from pydantic import SecretStr
from typing_extensions import Unpack, is_typeddict

from graph_agent.base import _compat
from graph_agent.base._internal.closing_stream import ClosingIterator, ClosingStream, ConsumerTracker
from graph_agent.base._internal.saver_loops import serve_any_loop
from graph_agent.base._internal.sync_bridge import background_loop, blocking, blocking_parts, refuse_running_loop
from graph_agent.base._internal.telemetry import observed
from graph_agent.base._internal.text import check_session_id, html_table
from graph_agent.base.approvals.requests import is_approval_request
from graph_agent.base.errors import InputError
from graph_agent.base.input_ids import InputStoredError
from graph_agent.base.settings.config import RunContext, run_context
from graph_agent.base.settings.inherited_context import with_credentials
from graph_agent.base.types import ContextT, ResponseT
from graph_agent.base.usage import name_of_model
from graph_agent.core.state.fence import DeferredWrites, defers_writes
from graph_agent.core.state.messages import PushedText, begins, check_input, unusable_input
from graph_agent.core.state.own_checkpoint import load
from graph_agent.core.state.reads import ReadAgainGraph
from graph_agent.core.state.registry import is_dispatched, refuse_within, running
from graph_agent.core.state.run import AnsweringControl, Run, RunHandle, handle_of, merge_handles, with_handle
from graph_agent.session.deduplicator import admit_input, stored_chunks
from graph_agent.storage.checkpoints.format import guard_reads
from graph_agent.storage.checkpoints.metadata import check_start, patch_metadata

if TYPE_CHECKING:
    from graph_agent.base.settings.context_fields import ContextFields
    from graph_agent.core.execution.deps import AgentDeps
    from graph_agent.session.compile_options import CompileOptions

_UNNAMED = (None, "agent", "LangGraph")
"""Names of agents that were given no `name`. Messages of such agents do not carry the name."""
_WHEN = ("before", "after")
"""Suffixes of LangGraph's breakpoint arguments `interrupt_before` and `interrupt_after`."""
_PREPARED = "_is_prepared_for_agents"
"""Attribute that marks a checkpointer as prepared by `_prepare`."""


class CompiledAgentGraph(ReadAgainGraph, Generic[ResponseT, ContextT]):
    """A compiled LangGraph graph with six differences.

    1. A session has one run at a time. A second run is refused, in this process and, with an SQLite or PostgreSQL
       database, in others. `update_state` counts as a run. A run that loses its session to another process ends with
       `SessionLostError`.
    2. A new checkpoint is always the newest of its thread, even if the clocks of two processes differ.
    3. If a tool may write, each plan is stored before its calls run (`durability="sync"`, unless the run sets another;
       also as a subgraph, in its parent's checkpoints), so that no crash hides a call that was made. An agent whose
       tools only read keeps LangGraph's default on other savers. Unless the run sets a durability, the package's
       SQLite saver waits only for supersteps whose calls may write, and commits others soon (see `DeferredWrites`).
    4. A blocking entry point runs the asynchronous one on an event loop in the background, and raises
       `SyncInLoopError` in the thread of a running event loop. A checkpointer need not have the methods for it: where
       its asynchronous ones cannot be awaited, its blocking ones are called in a thread.
    5. Of a run's `configurable`, checkpoints store only LangGraph's own ids.
    6. `graph_agent_input` in a run's `configurable` is the id of its input, as `input_id` of `Session.run`: an input
       that has its result is not run, and its values and interrupts are the output. An answer to an interrupt that a
       server delivers again, under the same `run_id`, is used once.
    """

    builder: AgentStateGraph  # pyright: ignore[reportIncompatibleVariableOverride]  # only its `compile` makes this

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._shown()['name']!r}>"

    def _shown(self) -> dict[str, Any]:
        """Return what a notebook displays about the agent, heading → text."""
        saver, model = self.checkpointer, self.builder.model
        return {
            "name": self.name or "agent",
            "model": f"{type(model).__name__} {name_of_model(model)}".rstrip(),
            "tools": ", ".join(self.builder.deps.toolbox.names) or "none",
            "checkpointer": type(saver).__name__ if isinstance(saver, BaseCheckpointSaver) else "none",
        }

    @property
    def input_warnings(self) -> Sequence[str]:
        """Texts about present problems of the agent, e.g. a server that is down; each input reports them as
        warnings.
        """
        return self.builder.deps.warnings()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the table and the drawing of the agent for a notebook, by MIME type. No network is used."""
        # LangGraph's own has an image of the graph, made by a server on the internet.
        from graph_agent.base._internal.svg import image_html

        svg = self.draw_svg()
        return {
            "text/plain": repr(self),
            "text/html": self._repr_html_() + image_html(svg, "graph"),
            "image/svg+xml": svg,
        }

    def draw_svg(self) -> str:
        """Return a drawing of the graph as SVG text. No network is used."""
        from graph_agent.base._internal.svg import Edge, graph_svg

        drawn = self.get_graph()
        nodes = {name: node.name.strip("_") for name, node in drawn.nodes.items()}
        edges = [Edge(each.source, each.target, str(each.data or ""), each.conditional) for each in drawn.edges]
        return graph_svg(nodes, edges, f"Graph of the agent {self.name or 'agent'}")

    def _repr_html_(self) -> str:
        """Return the table that describes the agent, as HTML."""
        return html_table("Agent", self._shown().items())

    # LangGraph's own signatures lack type arguments, which strict checkers report at each call.
    def invoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: ContextT | ContextFields | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the graph and return its output, with LangGraph's arguments; blocks. Raises what `stream` raises."""
        _refuse_running_loop()
        return blocking(self.ainvoke)(input, config, context=context, **kwargs)

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: ContextT | ContextFields | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the graph and return its output, with LangGraph's arguments. Raises what `astream` raises."""
        # LangGraph gives only the result to the caller, and reads the whole stream.
        hides_nodes = {"hides_nodes": True} if kwargs.get("stream_mode", "values") == "values" else {}
        config = _with_fields(config, readership=ConsumerTracker(), **hides_nodes)
        return await super().ainvoke(input, config, context=context, **kwargs)

    def stream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: ContextT | ContextFields | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Run the graph and yield the parts of its stream, with LangGraph's arguments; blocks.

        Raises:
            RunFailedError: After the last part, if an input failed and `on_failure="raise"` is set.
            SyncInLoopError: Called in the thread of a running event loop.
            InputError, ConfigError: For the reasons of `astream`.
            SessionBusyError: A run of the session is in progress.
            SessionLostError: Another process has taken the session over during the run.
        """
        _refuse_running_loop()
        readership = ConsumerTracker()
        chunks = self._astream(input, _with_fields(config, readership=readership), {**kwargs, "context": context})
        return ClosingIterator(blocking_parts(chunks), readership)

    def astream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: ContextT | ContextFields | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Run the graph and yield the parts of its stream, with LangGraph's arguments.

        If it is left early, which is noticed without closing it, the session's next input ends the run.

        Raises:
            RunFailedError: After the last part, if an input failed and `on_failure="raise"` is set.
            InputError: There is a checkpointer and no `thread_id`; the input is invalid, or empty with nothing to
                continue; its id belongs to a different or a superseded input; or an approval request of an older
                checkpoint is decided again.
            ConfigError: The context is invalid.
            SessionBusyError: A run of the session is in progress.
            SessionLostError: Another process has taken the session over during the run.
        """
        kwargs = {**kwargs, "context": context}
        if config is not None and handle_of(config.get("configurable", {})).readership is not None:
            return self._astream(input, config, kwargs)
        readership = ConsumerTracker()
        return ClosingStream(self._astream(input, _with_fields(config, readership=readership), kwargs), readership)

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the graph and yield LangGraph's events of it.

        If the stream is left before its end, the session's next input ends the run. With `version="v3"`, what
        LangGraph's method returns is returned unchanged.
        """
        if kwargs.get("version") == "v3":
            return super().astream_events(input, config, **kwargs)
        readership = ConsumerTracker()
        events = super().astream_events(input, _with_fields(config, readership=readership), **kwargs)
        return ClosingStream(cast("AsyncGenerator[Any]", events), readership)

    async def _astream(
        self, input: Any, config: RunnableConfig | None, kwargs: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """Lock the session, run the graph, and yield its chunks, or those of the stored result of the input's id.

        Raises the errors of `astream`; and `InputStoredError` in place of stored chunks, if the run has a `RunHandle`
        with the input's mark, whose owner reads the result itself.
        """
        configurable = self._checked_configurable(config)
        saver = self._saver_of(configurable)
        check_input(input, self.builder.input_schema.__annotations__, stored=saver is not None)
        if self.builder.own.names:
            self._check_custom_state(input)
        if saver is not None and config is not None and self._answers_a_checkpoint(input, config):
            _refuse_answered(await self.aget_state(config))
        kwargs = self._with_credentials(config, kwargs)
        async with running(configurable, self.checkpointer, self.store) as run, observed(run, self.name):
            run.is_unobserved = saver is None and self._is_unobserved(configurable, kwargs)
            run.identity.agent_name = self.name if self.name not in _UNNAMED else None
            try:
                if saver is not None:
                    input = await self._admit(input, configurable, run)
            except InputStoredError as stored:
                if isinstance(run.parent, RunHandle) and run.parent.mark is not None:
                    raise  # the surrounding program reads the result
                for stored_chunk in stored_chunks(stored.state, self.output_channels, kwargs):
                    yield stored_chunk
                return
            await self._check_session(input, configurable, saver)
            if saver is not None:
                # LangGraph resumes a dispatched run whose id the newest checkpoint has.
                run.fence.claims = _resumes(input, configurable) or is_dispatched(configurable)
                run.identity.resumes = input is None
                await check_start(saver, configurable)
                if not _sets_durability(kwargs) and not _compat.inherits_durability(configurable):
                    namespace = configurable.get("checkpoint_ns", "")
                    run.deferred = DeferredWrites(namespace, loop=asyncio.get_running_loop())
                kwargs = self._durable(kwargs, configurable, saver)
            if kwargs.get("control") is not None:
                kwargs["control"] = AnsweringControl(kwargs["control"], run)
            chunks = super().astream(input, self._with_run(config, configurable, run), **kwargs)
            flushed = contextlib.nullcontext() if run.deferred is None else run.deferred.flushed()
            held: GraphBubbleUp | None = None
            try:
                async with flushed, contextlib.aclosing(cast("AsyncGenerator[Any]", chunks)):
                    async for chunk in chunks:
                        run.stop.at_consumer = True
                        try:
                            yield chunk
                        finally:
                            run.stop.at_consumer = False
            # The run was drained, or as part of a parent graph stopped at a breakpoint or an interrupt.
            except GraphBubbleUp as stopped:
                held = stopped
            if run.calls.planned - run.calls.started_tasks:
                from graph_agent.core.execution.ledger import note_unstarted  # rarely needed

                await note_unstarted(run, {"configurable": configurable}, self.checkpointer)
            if held is not None:
                raise held
            if run.failure is not None:
                raise run.failure

    def bulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        """Change the state with LangGraph's arguments; blocks. `update_state` calls it.

        Raises:
            InputError: When there is a checkpointer and no `thread_id`, or a value of an own state field is not plain.
            SessionBusyError: When a run of the session is in progress.
            SyncInLoopError: In the thread of the event loop that the checkpointer belongs to, and in an asynchronous
                tool or hook of a blocking run.
        """
        # The update awaits these two; any other loop of the thread may wait for it.
        needed = (background_loop(), getattr(self.checkpointer, "loop", None))
        refuse_running_loop("update_state", "graph.aupdate_state", among=needed)
        return blocking(self.abulk_update_state)(config, supersteps)

    async def abulk_update_state(self, config: RunnableConfig, supersteps: Any) -> RunnableConfig:
        """Change the state with LangGraph's arguments, while the session is locked.

        Raises the errors of `bulk_update_state`.
        """
        configurable = self._checked_configurable(config)
        for update in [update for superstep in supersteps for update in superstep]:
            self._check_custom_state(update[0])
        refuse_within(str(configurable.get("thread_id", "")))
        async with running(configurable, self.checkpointer, None) as run:
            run.updates_only = True
            await self._admit(None, configurable, run)
            if (saver := self._saver_of(configurable)) is not None:
                await check_start(saver, configurable)
            return await super().abulk_update_state(self._with_run(config, configurable, run), supersteps)

    def _answers_a_checkpoint(self, given: Any, config: RunnableConfig) -> bool:
        """Return whether an input answers a question of the checkpoint that the config names by `checkpoint_id`."""
        return (
            isinstance(given, Command)
            and given.resume is not None
            and bool(config.get("configurable", {}).get("checkpoint_id"))
            and isinstance(self.checkpointer, BaseCheckpointSaver)
        )

    def _check_custom_state(self, given: Any) -> None:
        """Raise `InputError` if an input or an update has values of own state fields that are not plain data."""
        update = given.update if isinstance(given, Command) else given
        if self.builder.own.names and isinstance(update, Mapping):
            self.builder.own.check(update)

    async def _admit(self, given: Any, configurable: dict[str, Any], run: Run) -> Any:
        """Return the input to run, from `admit_input`; `given` itself without an own checkpointer, or as a subgraph."""
        if not isinstance(self.checkpointer, BaseCheckpointSaver) or configurable.get("checkpoint_ns"):
            return given
        return await admit_input(
            self, self.checkpointer, given, configurable, run, resumes=_resumes(given, configurable)
        )

    async def _check_session(
        self, given: Any, configurable: dict[str, Any], saver: BaseCheckpointSaver[Any] | None
    ) -> None:
        """Raise `InputError` if an input has no message and there is nothing to continue, or if the reducer of a field
        of `state_schema` does not accept its value after the stored one.

        `saver` is the checkpointer of the run; None if nothing is stored.
        """
        own = self.builder.own
        update = given.update if isinstance(given, Command) else given
        fields = self.builder.input_schema.__annotations__
        is_new = begins(given, fields, hooked=bool(self.builder.deps.hook_set))
        reduced = isinstance(update, Mapping) and not own.reduced.keys().isdisjoint(update)
        if is_new and not (reduced and saver):
            return
        address = ("thread_id", "checkpoint_ns", "checkpoint_id")
        at: RunnableConfig = {"configurable": {name: configurable[name] for name in address if configurable.get(name)}}
        found = await load(saver, at) if saver is not None else None
        if found is None and not is_new:
            raise unusable_input(given, "has no message, and there is no stored run or conversation to continue")
        if saver is not None and isinstance(update, Mapping):
            own.check(update, found.checkpoint["channel_values"] if found is not None else {})

    def _saver_of(self, configurable: dict[str, Any]) -> BaseCheckpointSaver[Any] | None:
        """Return the checkpointer of a run; None if the run stores nothing.

        Inside another graph, it is that graph's checkpointer, patched for use from any event loop.
        """
        if self.checkpointer is False:
            return None
        if (inherited := _compat.checkpointer_of({"configurable": configurable})) is not None:
            serve_any_loop(inherited)
            return inherited
        return self.checkpointer if isinstance(self.checkpointer, BaseCheckpointSaver) else None

    def _is_unobserved(self, configurable: dict[str, Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a run that stores nothing may skip nodes, because its caller cannot see which node wrote what:
        no outer run, breakpoints or debug output, and only the streams `values`, `custom`, and `updates` without nodes.
        """
        asked = kwargs.get("stream_mode") or self.stream_mode
        modes = {asked} if isinstance(asked, str) else set(asked)
        hidden = {"values", "custom", "updates"} if handle_of(configurable).hides_nodes else {"values", "custom"}
        breakpoints = [kwargs.get(f"interrupt_{when}") or getattr(self, f"interrupt_{when}_nodes") for when in _WHEN]
        return (
            modes <= hidden
            and not _compat.is_nested(configurable)
            and not any(breakpoints)
            and not (kwargs.get("debug") or self.debug or kwargs.get("print_mode"))
        )

    def _with_credentials(self, config: RunnableConfig | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return a run's keyword arguments with the credentials and the caller of the agent added to its `context`.

        For an agent with a context class of the user's own, `run_context` converts the context first, and raises
        `ConfigError` for an invalid one; without a context, an object of the class in the surrounding run is taken.
        """
        builder = self.builder
        context, user = kwargs.get("context"), builder.user_context
        if user is not None:
            inherited = _compat.surrounding_context(config) if context is None else None
            if isinstance(user, type) and not is_typeddict(user) and isinstance(inherited, user):
                context = inherited
            if context is not None:
                context = run_context(context, user)
                kwargs = {**kwargs, "context": context}
        if not builder.credentials and builder.caller is None:
            return kwargs
        schema = builder.deps.context_schema
        context = with_credentials(context, builder.credentials, config, schema, caller=builder.caller)
        return {**kwargs, "context": context}

    def _checked_configurable(self, config: RunnableConfig | None) -> dict[str, Any]:
        """Merge the `configurable` of graph, surrounding run and own config; prepare the checkpointer.

        Raises `InputError` if the agent has a checkpointer, and there is no `thread_id` or it is no Unicode text.
        """
        # The graph's own values count as given, as in LangGraph: `with_config` may name a thread.
        bound, given = (self.config or {}).get("configurable", {}), (config or {}).get("configurable", {})
        surrounding, configurable = ensure_config()["configurable"], {**bound, **given}
        if surrounding:
            configurable = merge_handles(surrounding, configurable)
        if _compat.lacks_thread(self.checkpointer, configurable):
            raise InputError(
                "This agent has a checkpointer, and the config has no thread_id, which names the session. Pass e.g. "
                'config={"configurable": {"thread_id": "s1"}}, or use Session(graph, "s1").'
            )
        check_session_id(str(configurable.get("thread_id", "")))
        if isinstance(self.checkpointer, BaseCheckpointSaver):
            _prepare(self.checkpointer)
        return configurable

    def _with_run(self, config: RunnableConfig | None, configurable: dict[str, Any], run: Run) -> RunnableConfig:
        """Return a config for a run, with the handle of `configurable`, in which the run is set, and without
        persistence if the checkpointer is False."""
        nothing = _compat.NO_PERSISTENCE if self.checkpointer is False else {}
        own = {**(config or {}).get("configurable", {}), **nothing}
        return {**(config or {}), "configurable": with_handle(own, handle_of(configurable), run=run)}

    def _durable(
        self, kwargs: dict[str, Any], configurable: dict[str, Any], saver: BaseCheckpointSaver[Any]
    ) -> dict[str, Any]:
        """Return a run's keyword arguments, with `durability="sync"` if plans must be stored before their calls run.

        That is so if the run is stored, the caller has set no durability, and a tool may write or the saver defers its
        writes.
        """
        if _sets_durability(kwargs):
            return kwargs
        if not self.checkpointer and not self._keeps_with_its_parent(configurable):
            return kwargs
        # Such a saver waits only where it must; otherwise a waiting call could start before its plan is stored.
        if not self.builder.deps.toolbox.may_write and not defers_writes(saver):
            return kwargs
        return {**kwargs, "durability": "sync"}

    def _keeps_with_its_parent(self, configurable: dict[str, Any]) -> bool:
        """Return whether the run uses the checkpointer of a surrounding run without taking over its durability."""
        if self.checkpointer is False or _compat.inherits_durability(configurable):
            return False
        return _compat.checkpointer_of({"configurable": configurable}) is not None


def _prepare(saver: BaseCheckpointSaver[Any]) -> None:
    """Patch a checkpointer in place, once: fenced writes, metadata, checked reads, and use from every event loop."""
    if getattr(saver, _PREPARED, False):
        return
    # A saver in PostgreSQL exists only if its module was loaded; the package does not load it for others.
    if "langgraph.checkpoint.postgres.aio" in sys.modules:
        from graph_agent.storage.checkpoints.postgres_fence import fence_writes

        fence_writes(saver)
    # First: the next patches apply to both kinds of methods, and this one replaces one kind by the other.
    serve_any_loop(saver)
    patch_metadata(saver)
    guard_reads(saver)
    setattr(saver, _PREPARED, True)


def _with_fields(config: RunnableConfig | None, **fields: Any) -> RunnableConfig:
    """Return a copy of a config, with the given fields of its handle replaced."""
    config = config or {}
    return {**config, "configurable": with_handle(config.get("configurable", {}), **fields)}


def _sets_durability(kwargs: Mapping[str, Any]) -> bool:
    """Return whether the caller of a run sets the durability itself."""
    return kwargs.get("durability") is not None or "checkpoint_during" in kwargs


def _resumes(given: Any, configurable: dict[str, Any]) -> bool:
    """Return whether a run continues the checkpoint that it loads: without an input, with a `Command`, or nested in a
    run that resumes.
    """
    return given is None or isinstance(given, Command) or _compat.is_resuming({"configurable": configurable})


def _refuse_answered(state: StateSnapshot) -> None:
    """Raise `InputError` if a checkpoint has approval requests, all of which are answered."""
    # LangGraph would use the stored answer again, so that a rejected call runs if it was approved before.
    asked = [task for task in state.tasks if any(is_approval_request(each.value) for each in task.interrupts)]
    if asked and all(task.result is not None for task in asked):
        checkpoint = state.config["configurable"].get("checkpoint_id")
        raise InputError(
            f"The approval request of the checkpoint {checkpoint!r} has been answered, and its answer would be used "
            "again. To ask again from there, run `ainvoke(None, config)` with this checkpoint, and resume without a "
            "checkpoint_id."
        )


def _refuse_running_loop() -> None:
    """Raise `SyncInLoopError` in the thread of a running event loop."""
    refuse_running_loop("A blocking entry point (invoke, stream, batch)", "graph.ainvoke")


class PushedMessages(StreamTransformer):
    """Shows text that nodes stream in LangGraph's `run.messages`, as whole messages, because it ignores chunks."""

    before_builtins = True
    required_stream_modes = ("messages",)

    def __init__(self, scope: tuple[str, ...] = ()) -> None:
        super().__init__(scope)
        self._whole: set[str | None] = set()
        """Ids of messages that LangGraph has reported, by models that do not stream."""

    def init(self) -> dict[str, Any]:
        """Return an empty projection, because the transformer only changes events."""
        return {}

    def process(self, event: Any) -> bool:
        """Replace a chunk that a node has pushed by the whole message, in place.

        Returns False, so that LangGraph drops the chunk, if the message was streamed already; otherwise True.
        """
        if event["method"] != "messages":
            return True
        data = event["params"]["data"]
        if type(data[0]) is AIMessage:
            self._whole.add(data[0].id)
        elif isinstance(data[0], PushedText):
            if data[0].id in self._whole:
                return False
            whole = AIMessage(data[0].content, id=data[0].id, response_metadata=data[0].response_metadata)
            event["params"]["data"] = (whole, *data[1:])
        return True


class AgentStateGraph(StateGraph[Any, Any, Any, Any]):
    """A `StateGraph` that compiles to a `CompiledAgentGraph` or a subclass of it.

    `asks` is whether calls of the agent, or of a delegate in this process, may wait for an approval; `transformers` are
    the stream transformers that middleware adds.
    """

    mcp_states: Callable[[], Awaitable[dict[str, bool]]] | None = None
    """Returns whether each MCP server of the tools can be called now; None if there is no such server."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """Arguments of `build_graph` except the model, to build the same agent for another model."""
    credentials: Mapping[str, SecretStr] = MappingProxyType({})
    """Credentials of every run. Credentials of the same names in a run's context replace them."""
    compiled_class: type[CompiledAgentGraph] = CompiledAgentGraph
    """Class of the compiled graph. A subclass may only add methods."""
    caller: str | None = None
    """The caller of every run whose context names none, such as the user at a terminal; None for no caller."""

    def __init__(self, deps: AgentDeps, context_schema: type[Any], transformers: Sequence[Any], *, asks: bool) -> None:
        own = self.own = deps.toolbox.own
        super().__init__(
            own.state_schema,
            context_schema=context_schema,
            input_schema=own.input_schema,
            output_schema=own.output_schema,
        )
        self.deps = deps
        self.config, self.response, self.writes = deps.config, deps.response, deps.toolbox.writes
        # A class of the user; None for `AgentContext` and its subclasses.
        self.user_context = context_schema if deps.context_schema is RunContext else None
        self.transformers = transformers
        self.asks = asks
        self.edit_fault: Callable[[str, dict[str, Any]], str | None] | None = None
        """Returns why a person cannot put a call (name, arguments) in the place of another; None without approvals."""

    @property
    def model(self) -> BaseChatModel:
        """The chat model of a run whose context does not name another one."""
        return self.deps.models.first.client.model

    def compile(
        self, checkpointer: BaseCheckpointSaver[Any] | bool | None = None, **options: Unpack[CompileOptions]
    ) -> CompiledAgentGraph:
        """Compile the graph with LangGraph's arguments. The checkpointer is patched in place by `_prepare`, and stream
        transformers of this package and of middleware precede the given ones, each once."""
        transformers = [ToolCallTransformer, PushedMessages, *self.transformers, *(options.get("transformers") or ())]
        # By identity: factories may be unhashable.
        options["transformers"] = list({id(each): each for each in transformers}.values())
        compiled = super().compile(checkpointer, **options)
        _compat.skip_unused_callbacks(compiled)
        # LangGraph fixes the class of the compiled graph; a subclass adds methods only, so the object fits it.
        compiled.__class__ = self.compiled_class
        assert isinstance(compiled, CompiledAgentGraph)
        if isinstance(compiled.checkpointer, BaseCheckpointSaver):
            _prepare(compiled.checkpointer)
        return compiled
