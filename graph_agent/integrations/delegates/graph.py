"""Runs a compiled graph that answers delegations, during the call or in a session that outlives it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.ai import add_usage as add_figures
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import get_runtime
from langgraph.types import Command, StateSnapshot, StreamMode

from graph_agent.base import _compat
from graph_agent.base._internal import telemetry
from graph_agent.base._internal.failure_log import get_logger, log_failure
from graph_agent.base._internal.polling import POLL_S
from graph_agent.base._internal.saver_loops import serve_any_loop
from graph_agent.base._internal.sync_bridge import in_blocking_run
from graph_agent.base._internal.text import as_text, to_json_safe
from graph_agent.base.approvals.decisions import split_decisions
from graph_agent.base.approvals.requests import asks_again, is_approval_request, joined_request
from graph_agent.base.approvals.text import question_text
from graph_agent.base.delegate_tasks import BackgroundTask, RemoteTask
from graph_agent.base.errors import DecisionError, RunFailedError
from graph_agent.base.finish import answer_cut_off, cause_of
from graph_agent.base.history.call_events import as_value
from graph_agent.base.history.events import StoredEvent, is_approval
from graph_agent.base.settings.config import Price, user_context
from graph_agent.base.settings.inherited_context import delegated_context
from graph_agent.base.types import NO_USAGE, SessionStatus, Usage
from graph_agent.base.usage import BUDGET_LEFT, add_usage, cost_of, cut_off_reply, estimated_usage, less_usage, usage_of
from graph_agent.core.extensions.delegation import (
    DEPTH_LEFT,
    HANDED_PARTS,
    Delegation,
    DelegationResult,
    started_in_background,
)
from graph_agent.session.activity import running_check
from graph_agent.session.compiled import CompiledAgentGraph
from graph_agent.session.results import DelegatePart, RunPart, open_interrupts, since_last_input
from graph_agent.session.session import Session
from graph_agent.session.stream_parts import MODES, StreamParts, is_event

_ANSWERED_ELSEWHERE = (
    "The delegate {name!r} was resumed in another branch of this session, so that its question cannot be answered "
    "again. Delegate the task again."
)
logger = get_logger("graph_agent.delegates.graph")

_UNFINISHED = frozenset({None, SessionStatus.CREATED.value, SessionStatus.RUNNING.value})
"""Statuses of a session whose input has not ended."""
_MOST_FAILURES = 3
"""Number of exceptions of a task's runs in this process after which the task is given up."""
_ODD = re.compile(r"[^A-Za-z0-9._:-]")
"""A character that the id of a session must not have over HTTP."""
_failures: dict[str, int] = {}
"""Session id → number of its runs in this process that raised, since the last that did not."""
_running: dict[str, asyncio.Task[None]] = {}
"""Session id → its run in this process; kept here because asyncio keeps no strong reference to tasks."""


@dataclass(slots=True)
class _OpenCall:
    """A model call that has not ended: its request, its model, and what it has streamed."""

    request: Sequence[BaseMessage]
    model: str
    text: str = ""
    reported: UsageMetadata | None = None


class UsageCounter(AsyncCallbackHandler):
    """Callback handler that adds up the usage of all model calls of a run.

    Args:
        prices: Model name → price; empty if prices are unknown.
        estimates: Whether to estimate usage that a provider does not report.
    """

    def __init__(self, prices: Mapping[str, Price], *, estimates: bool) -> None:
        self.usage: Usage = NO_USAGE
        """Usage of the calls that have ended."""
        self._prices = prices
        self._estimates = estimates
        self._open: dict[UUID, _OpenCall] = {}

    @property
    def under_way(self) -> Usage:
        """Estimated usage of the calls that have begun and not ended."""
        usage = NO_USAGE
        for call in list(self._open.values()):
            partial = cut_off_reply(call.request, call.text, call.reported, model=call.model)
            usage = add_usage(usage, usage_of(partial, self._prices))
        return usage

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Record that a call has begun, with its messages and the model's name in `metadata`, if there is one."""
        self._open[run_id] = _OpenCall(messages[0], str((metadata or {}).get("ls_model_name") or ""))

    async def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        **_: Any,
    ) -> None:
        """Add the text and the usage in the `chunk` of a token to its call.

        Ignored without a chunk of a chat model, and for a call whose begin was not recorded.
        """
        call = self._open.get(run_id)
        if call is None or not isinstance(chunk, ChatGenerationChunk):
            return
        call.text += chunk.message.text
        if isinstance(chunk.message, AIMessageChunk) and chunk.message.usage_metadata:
            call.reported = add_figures(call.reported, chunk.message.usage_metadata)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Forget a call that failed; one that was cancelled stays in `under_way`, as the provider may have counted
        it.
        """
        if isinstance(error, Exception):
            self._open.pop(run_id, None)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Add the usage of a call that has ended, estimated if the provider reported none and `estimates` is set.

        A reported total of 0 counts as none. A call whose begin was not recorded is not estimated.
        """
        call = self._open.pop(run_id, None)
        for generation in response.generations[0] if response.generations else []:
            if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
                reply = generation.message
                # Some servers report zeros.
                is_reported = reply.usage_metadata is not None and reply.usage_metadata.get("total_tokens") != 0
                if self._estimates and call is not None and not is_reported:
                    reply = reply.model_copy(update={"usage_metadata": estimated_usage(call.request, reply)})
                self.usage = add_usage(self.usage, usage_of(reply, self._prices))


class DelegatedGraph:
    """Runs a compiled graph for the delegations of a `GraphDelegate`, in the call itself.

    Call the methods inside a node of the delegating agent. Its saver stores the run, unless the graph has one of its
    own.
    """

    def __init__(self, name: str, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
        self.name = name
        self.graph = graph
        if isinstance(graph.checkpointer, BaseCheckpointSaver):
            serve_any_loop(graph.checkpointer)

    @property
    def resumes(self) -> bool:
        """Whether a run of the graph is stored, so that it continues where it stopped."""
        return self.graph.checkpointer is not False

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Run the graph on the task, and return its answer, or the approval request for which it waits.

        Raises what the graph raises, except `RunFailedError`, which becomes an error result.
        """
        given = {"messages": [*delegation.context, HumanMessage(delegation.task)]}
        return await self._run(delegation, given, None)

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        """Continue a run that waits for approval with the reviewer's answer; it may wait again.

        A run that has received its answer already, e.g. before a crash, is continued without it. Invalid decisions
        return the same request with an error. If the run has a newer checkpoint than that of the question, because it
        was resumed elsewhere, the result is an error.

        Args:
            delegation: The delegation.
            task: The waiting run, as the session has stored it.
            answer: The decisions, on the calls of all requests if there are several.
        """
        given: Command[Any] | None = None
        if not await self.has_continued(task):
            state = await self._state(task)
            # The question was asked at this checkpoint; a newer one means that it has been answered.
            if state.config["configurable"].get("checkpoint_id") != task.get("checkpoint_id"):
                return DelegationResult(_ANSWERED_ELSEWHERE.format(name=self.name), "error")
            requests = _requests(state)
            try:
                is_joint = len(requests) > 1
                answers = split_decisions(requests, answer) if is_joint else dict.fromkeys(requests, answer)
            except DecisionError as error:
                refused: RemoteTask = {**task, "request": {**task["request"], "error": str(error)}}
                return DelegationResult(question_text(refused["request"]), waiting=refused)
            given = Command(resume=answers)
        return await self._run(delegation, given, task)

    async def has_continued(self, task: RemoteTask) -> bool:
        """Whether an earlier attempt of the running call, before a crash, has resumed the delegate's run already."""
        namespace, checkpoint_id = _compat.parent_checkpoint(ensure_config()["configurable"])
        parents = ((await self._state(task)).metadata or {}).get("parents", {})
        return checkpoint_id is not None and parents.get(namespace) == checkpoint_id

    async def _run(self, delegation: Delegation, given: Any, task: RemoteTask | None) -> DelegationResult:
        """Run or resume the graph, and return its result with usage, events and approvals.

        A run that waits for approvals returns a waiting result; any other interrupt is raised. A failed run of an agent
        is an error result. After a cancellation or another error, the usage so far is recorded, and the exception
        raised.

        Args:
            delegation: The delegation.
            given: The graph's input; None to continue.
            task: The run that is resumed; None for a new one.
        """
        budget, is_agent = delegation.budget, isinstance(self.graph, CompiledAgentGraph)
        counter = UsageCounter(delegation.prices, estimates=(budget.tokens, budget.cost) != (None, None))
        output = _RunOutput(delegation, self.name, is_agent=is_agent)
        configurable = {DEPTH_LEFT: delegation.depth_left, BUDGET_LEFT: budget.as_json()}
        if delegation.untrusted:
            configurable[HANDED_PARTS] = [*delegation.untrusted]
        if not self.resumes:
            configurable |= _compat.NO_PERSISTENCE
        if task is not None:
            configurable |= _compat.in_namespace(ensure_config(), task["context_id"])
        # A watched run streams its tokens to its own message stream, which leaves out models tagged `nostream`.
        tags = ["nostream"] if delegation.watch is None else []
        config: RunnableConfig = merge_configs(
            ensure_config(), {"tags": tags, "callbacks": [counter], "configurable": configurable}
        )
        options: dict[str, Any] = {}
        if is_agent:
            options["context"] = delegated_context(get_runtime().context)
        else:
            config = _compat.with_context(config, user_context)
        # A run that an earlier attempt began has more events than this attempt adds.
        continues = self.resumes and _compat.is_resuming(config) and _compat.checkpointer_of(config) is not None
        before = await self._used_before(config, delegation.prices) if continues else NO_USAGE
        try:
            await self._stream(given, config, options, output)
        except GraphInterrupt as raised:
            # The usage is in the delegate's state, and is added when it resumes.
            if (waiting := await self._waiting(raised, config, task)) is None:
                raise
            return waiting
        except GraphBubbleUp:
            raise
        except RunFailedError:
            # Its state holds the failure, and its events the work done.
            pass
        except BaseException:
            used = add_usage(before, _larger(output.usage, counter.usage))
            delegation.record_usage(add_usage(used, counter.under_way))
            raise
        usage = add_usage(before, _larger(output.usage, counter.usage))
        state, history = output.state, output.events
        if continues and is_agent:
            history = _events_of(await self._snapshot(config))
        approvals = _approvals(history[task.get("copied", 0) if task else 0 :])
        result = agent_result(self.name, state, usage, is_agent=is_agent)
        return replace(result, history=history, approvals=approvals)

    async def _waiting(
        self, raised: GraphInterrupt, config: RunnableConfig, task: RemoteTask | None
    ) -> DelegationResult | None:
        """Return the result for a run that waits for approvals; None if it waits for anything else or is not stored.

        `raised` is the interrupt of the run; `task` is the approval that was answered before, None for the first.
        """
        asked = next((each for each in raised.args[0] if is_approval_request(each.value)), None)
        if asked is None or not self.resumes or _compat.checkpointer_of(config) is None:
            return None
        snapshot = await self._snapshot(config)
        events = _events_of(snapshot)
        request: dict[str, Any] = to_json_safe(dict(joined_request([*_requests(snapshot).values()] or [asked.value])))
        added = _approvals(events[task.get("copied", 0) if task else 0 :])
        waiting: RemoteTask = {
            "delegate": self.name,
            "task_id": asked.id,
            "context_id": config["configurable"].get("checkpoint_ns", ""),
            "question": "",
            "request": request,
            "copied": len(events),
        }
        if (checkpoint_id := snapshot.config["configurable"].get("checkpoint_id")) is not None:
            waiting["checkpoint_id"] = checkpoint_id
        if asks_again(_approvals(events), request):
            waiting["recorded_here"] = True
        return DelegationResult(question_text(request), waiting=waiting, approvals=added)

    async def _state(self, task: RemoteTask) -> StateSnapshot:
        """Return the state of a waiting run."""
        config = ensure_config()
        return await self._snapshot(
            merge_configs(config, {"configurable": _compat.in_namespace(config, task["context_id"])})
        )

    async def _snapshot(self, config: RunnableConfig) -> StateSnapshot:
        """Return the state of the graph at a config."""
        return await self.graph.aget_state(config)

    async def _stream(
        self, given: dict[str, Any], config: RunnableConfig, options: dict[str, Any], output: _RunOutput
    ) -> None:
        """Run the graph, and pass the chunks of its stream to `output`."""
        modes: list[StreamMode] = ["updates", "values"] if output.watch is None else [*MODES, "values"]
        async for mode, payload in self.graph.astream(given, config, stream_mode=modes, **options):
            output.add_chunk(str(mode), payload)

    async def _used_before(self, config: RunnableConfig, prices: Mapping[str, Price]) -> Usage:
        """Return the usage of earlier attempts of the same delegation, which were interrupted or killed; zero for the
        first.

        It is read from the delegate's newest checkpoint: the `usage` of an agent of this package, otherwise the sum
        over the messages of the model that report theirs. A usage without a cost gets one by `prices`.
        """
        snapshot = await self._snapshot(config)
        if isinstance(self.graph, CompiledAgentGraph):
            return _priced(add_usage(snapshot.values.get("usage"), None), prices)
        messages = snapshot.values.get("messages", []) if isinstance(snapshot.values, dict) else []
        replies = [message for message in messages if isinstance(message, AIMessage) and message.usage_metadata]
        usage = NO_USAGE
        for reply in replies:
            usage = add_usage(usage, usage_of(reply, prices))
        return usage


class _RunOutput:
    """Collects the state, the events and the usage of a delegate's run from the chunks of its stream.

    Args:
        delegation: The delegation; its `watch` receives the parts of the stream.
        target: Name of the delegate.
        is_agent: Whether the graph is an agent of this package, whose state has its usage.
    """

    def __init__(self, delegation: Delegation, target: str, *, is_agent: bool) -> None:
        self._id = delegation.id
        self._target = target
        self._is_agent = is_agent
        self._parts = StreamParts(delegation.session_id, is_agent=is_agent)
        self.watch = delegation.watch
        """Called with each part of the run's stream; None if the parts are not streamed."""
        self.state: dict[str, Any] = {}
        """The newest state; empty before the first."""
        self.events: list[StoredEvent] = []
        """The events that the run has added."""
        self.usage: Usage = NO_USAGE
        """The usage that the run has reported in its state."""

    def add_chunk(self, mode: str, payload: Any) -> None:
        """Process one chunk of the graph's stream: keep its state, its events and its usage, and pass its parts to the
        watcher.

        The state is the payload of the mode `values`. Events, and an agent's usage, are in the mode `updates`. Parts
        are made only if the delegation has a watcher.
        """
        if self.watch is not None:
            for part in self._parts.take(mode, payload):
                self.watch(DelegatePart(self._id, self._target, cast(RunPart, part)))
        if mode == "values":
            self.state = payload
        if mode != "updates":
            return
        for change in _compat.changes_in(payload):
            self.events += [each for each in change.get("events") or () if is_event(each)]
            if self._is_agent and "usage" in change:
                self.usage = add_usage(self.usage, change["usage"])


def _requests(snapshot: StateSnapshot) -> dict[str, Mapping[str, Any]]:
    """Return interrupt id → approval request, for the open ones of a graph."""
    return {each.id: each.value for each in open_interrupts(snapshot) if is_approval_request(each.value)}


def _events_of(snapshot: StateSnapshot) -> list[StoredEvent]:
    """Return the events of a graph's newest input; empty if the graph is not an agent of this package."""
    events = snapshot.values.get("events", []) if isinstance(snapshot.values, dict) else []
    return since_last_input([each for each in events if is_event(each)])


def _approvals(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Return the approval events, without those for middleware, which the delegating session records itself."""
    return [entry for entry in events if is_approval(entry) and "middleware" not in entry]


def _structured(response: Any) -> Any:
    """Return a graph's `structured_response` as plain JSON; None without one, or if it cannot be converted."""
    try:
        return to_json_safe(as_value(response))
    except ValueError:
        return None


def _larger(reported: Usage, observed: Usage) -> Usage:
    """Return the field-wise maximum of reported and observed usage, because either may be incomplete.

    Tools may call models themselves, and nested delegates may continue work that an earlier run began.
    """
    return add_usage(observed, less_usage(reported, observed))


def _priced(usage: Usage, prices: Mapping[str, Price]) -> Usage:
    """Return usage with a cost, by the highest price, unless the graph has reported one or there are no prices."""
    if not prices or "cost" in usage:
        return usage
    read, written = usage["input_tokens"], usage["output_tokens"]
    figures: UsageMetadata = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    return {**usage, "cost": cost_of(AIMessage("", usage_metadata=figures), prices)}


def agent_result(name: str, state: Mapping[str, Any], usage: Usage, *, is_agent: bool = True) -> DelegationResult:
    """Return the answer in the final state of a delegate's graph.

    The answer is the text of the newest message of the model, or else its structured response as text. If the answer
    was cut off, e.g. by a limit of tokens, a note at its end states so. An error result if the agent failed, with the
    text of its report, or if there is no answer.

    Args:
        name: Name of the delegate.
        state: The graph's final state.
        usage: Usage of the run.
        is_agent: Whether the graph is an agent of this package, whose state has a status.
    """
    answer = next((message for message in reversed(state["messages"]) if isinstance(message, AIMessage)), None)
    value = _structured(state.get("structured_response"))
    if is_agent and state.get("status") == SessionStatus.FAILED:
        failed = f"The delegate {name!r} failed. {answer.text if answer else ''}".rstrip()
        return DelegationResult(failed, "error", usage)
    text = (answer.text if answer is not None else "") or (as_text(value) if value is not None else "")
    if not text:
        return DelegationResult(f"The delegate {name!r} gave no answer.", "error", usage)
    if answer is not None and answer.text and (cut := answer_cut_off(answer)) is not None:
        text = f"{text}\n\n[This answer was cut off {cause_of(cut, answer)}.]"
    return DelegationResult(text, usage=usage, value=value)


@dataclass(frozen=True, slots=True)
class BackgroundRuns:
    """Starts, continues and reads the background tasks of one delegate, each in a session of its own.

    Call the methods inside a node of the delegating agent, whose saver, Store and credentials are used.
    """

    name: str
    graph: CompiledStateGraph[Any, Any, Any, Any]
    """An agent of this package."""

    async def start(self, delegation: Delegation) -> DelegationResult | None:
        """Start a task, and return the result that announces it; None if the task must run in the foreground.

        The foreground is required without a saver or a session, and in a blocking run, because the program may end
        after it. It is also required if the delegating agent is a delegate itself, because its session ends with its
        answer.
        """
        config = ensure_config()
        configurable = config["configurable"]
        # A session of its own is the only place from which the result can be read later.
        if self._saver() is None or not delegation.session_id or DEPTH_LEFT in configurable or in_blocking_run.get():
            return None
        # The namespace of the node's task is the same after a crash, so that its repetition finds the session.
        node = configurable.get("checkpoint_ns", "").rpartition(":")[2]
        session_id = f"{delegation.session_id}:{_ODD.sub('.', delegation.id)}:{node[:8]}"
        result = started_in_background(delegation, self.name, session_id, delegation.context)
        assert result.background is not None
        self._begin(delegation.id, result.background)
        return result

    async def collect(self, id_: str, task: BackgroundTask) -> DelegationResult | None:
        """Return the result of a task, or a new question; None while it has neither.

        A task whose run was lost, e.g. with its process, is started again, and None is returned. A question is returned
        once: `task["asked"]` names the one that was returned before. The result has the status `unknown` if the agent
        has no checkpointer any more, and after `_MOST_FAILURES` exceptions in this process, or `error` if the task has
        stored nothing before these.

        Args:
            id_: Id of the call that started the task.
            task: The stored task.
        """
        saver, session_id = self._saver(), task["session_id"]
        if saver is None:
            return DelegationResult("The agent has no checkpointer any more, so the task is lost.", "unknown")
        if _run_of(session_id) is not None or await running_check(saver)(session_id):
            return None
        state = await self._stored().aget_state({"configurable": {"thread_id": session_id}})
        if interrupts := open_interrupts(state):
            ids = sorted(each.id for each in interrupts)
            question = _question([each.value for each in interrupts])
            return None if ids == task.get("asked") else DelegationResult(question, background={**task, "asked": ids})
        if state.values.get("status") in _UNFINISHED or state.next:
            if _failures.get(session_id, 0) >= _MOST_FAILURES:
                del _failures[session_id]
                text = f"The task could not be run: it raised an exception {_MOST_FAILURES} times."
                return DelegationResult(text, "unknown" if state.values else "error")
            self._begin(id_, task)
            return None
        return agent_result(self.name, state.values, add_usage(state.values.get("usage"), None))

    async def wait(self, task: BackgroundTask) -> None:
        """Wait until a task's session has no running input; without a saver, return at once.

        A run of this event loop is awaited. Otherwise the saver is asked every `POLL_S` seconds, and a task whose
        question was returned is waited for without end.
        """
        saver, session_id = self._saver(), task["session_id"]
        run = _run_of(session_id)
        if run is not None and run.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([run])
            return
        while saver is not None and ("asked" in task or await running_check(saver)(session_id)):  # noqa: ASYNC110 - another process runs it
            await asyncio.sleep(POLL_S)

    def _begin(self, id_: str, task: BackgroundTask) -> None:
        """Start the task, or continue it after a crash, in a session of its own; returns before the run ends.

        The run is an asyncio task of this process. The call's id `id_` is the id of the input, so that a task that was
        started before is not repeated. An exception is logged and counted, and not raised; the session shows the
        outcome.
        """
        session_id = task["session_id"]
        context = delegated_context(get_runtime().context)
        given_on: dict[str, Any] = {DEPTH_LEFT: task["depth_left"], BUDGET_LEFT: task["budget"]}
        if untrusted := task.get("untrusted"):
            given_on[HANDED_PARTS] = untrusted
        session: Session[Any, Any] = Session(self._stored(), session_id, configurable=given_on)
        given = [*task["context"], HumanMessage(task["task"])]

        observer, trace = telemetry.observer, dict[str, Any]()
        if observer is not None:
            observer.inject(trace)

        async def run() -> None:
            """Run the task's input to its end, and reset the count of its exceptions.

            An exception is logged and counted, and not raised.
            """
            try:
                with nullcontext() if observer is None else observer.extract(trace):
                    # With the call's id as input id, so that a repeated start runs the task only once.
                    await session.run(given, context=context, input_id=id_)
                _failures.pop(session_id, None)
            except Exception as error:  # noqa: BLE001 - the delegating session reads the state, and continues the task
                _failures[session_id] = _failures.get(session_id, 0) + 1
                log_failure(logger, f"The background task {session_id!r}", error)

        # An empty context: the run belongs to no node of the delegating agent.
        _running[session_id] = asyncio.get_running_loop().create_task(
            run(), name=f"background {session_id}", context=Context()
        )
        _running[session_id].add_done_callback(lambda done: _running.pop(session_id, None))

    def _saver(self) -> BaseCheckpointSaver[Any] | None:
        """Return the graph's own saver, or that of the delegating agent; None if neither has one."""
        own = self.graph.checkpointer
        return own if isinstance(own, BaseCheckpointSaver) else _compat.checkpointer_of(ensure_config())

    def _stored(self) -> CompiledStateGraph[Any, Any, Any, Any]:
        """Return the graph with a saver and a Store: its own, or those of the delegating agent."""
        if isinstance(self.graph.checkpointer, BaseCheckpointSaver):
            return self.graph
        store = self.graph.store or get_runtime().store
        return self.graph.builder.compile(
            checkpointer=self._saver(), store=store, cache=self.graph.cache, name=self.graph.name
        )


def _run_of(session_id: str) -> asyncio.Task[None] | None:
    """Return the session's run in this process; None if there is none, or its event loop was closed before the end."""
    run = _running.get(session_id)
    return None if run is None or run.done() or run.get_loop().is_closed() else run


def _question(values: list[Any]) -> str:
    """Return the question of interrupts as text: of their approval requests, or else their values, one a line."""
    requests = [value for value in values if is_approval_request(value)]
    return question_text(joined_request(requests)) if requests else "\n".join(map(str, values))
