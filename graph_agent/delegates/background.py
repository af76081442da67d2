"""Runs delegations in sessions of their own, which outlive the run that delegated them."""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables.config import ensure_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import get_runtime

from graph_agent._compat import checkpointer_of
from graph_agent._internal.failure_log import get_logger, log_failure
from graph_agent._internal.sync_bridge import in_blocking_run
from graph_agent.approvals.requests import is_approval_request, joined_request
from graph_agent.approvals.text import question_text
from graph_agent.delegates.graph import agent_result
from graph_agent.delegation import DEPTH_LEFT, Delegation, DelegationResult, started_in_background
from graph_agent.runs.registry import POLL_S, is_idle
from graph_agent.session.results import open_interrupts
from graph_agent.session.session import Session
from graph_agent.settings.config import AgentContext, coerce_context
from graph_agent.state.channels import BackgroundTask
from graph_agent.types import SessionStatus
from graph_agent.usage import BUDGET_LEFT, add_usage

logger = get_logger(__name__)

_UNFINISHED = frozenset({None, SessionStatus.CREATED.value, SessionStatus.RUNNING.value})
_MOST_FAILURES = 3
"""Exceptions of a task's runs in one process after which it is given up."""
_failures: dict[str, int] = {}
"""Session → how many of its runs in this process have raised, since the last that did not."""
_running: dict[str, asyncio.Task[None]] = {}
"""Session → its run in this process; asyncio itself keeps no reference to a task."""


@dataclass(frozen=True, slots=True)
class BackgroundRuns:
    """Starts, continues and reads the background tasks of one delegate.

    Call its methods in a node of the delegating agent: its saver, Store and credentials are used.
    """

    name: str
    graph: CompiledStateGraph[Any, Any, Any, Any]
    """An agent of this package."""

    async def start(self, delegation: Delegation) -> DelegationResult | None:
        """Start a task; None if it must run in the foreground.

        This holds without a saver or a session, in a blocking run, whose event loop ends with it, and for the task of
        another delegate, whose own session ends with its answer.
        """
        config = ensure_config()
        configurable = config["configurable"]
        if self._saver() is None or not delegation.session_id or DEPTH_LEFT in configurable or in_blocking_run.get():
            return None
        # The namespace of the node's task is the same after a crash, so that its repetition finds the session.
        node = configurable.get("checkpoint_ns", "").rpartition(":")[2]
        session_id = f"{delegation.session_id}:{delegation.id}:{node[:8]}"
        result = started_in_background(delegation, self.name, session_id, delegation.context)
        assert result.background is not None
        self._begin(delegation.id, result.background)
        return result

    async def collect(self, id_: str, task: BackgroundTask) -> DelegationResult | None:
        """Behaves like `BackgroundDelegate.collect`."""
        saver, session_id = self._saver(), task["session_id"]
        if saver is None:
            return DelegationResult("The agent has no checkpointer any more, so the task is lost.", "unknown")
        if _run_of(session_id) is not None or not await is_idle(saver, session_id):
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
        """Behaves like `BackgroundDelegate.wait`; never ends for a task whose question has been reported."""
        saver, session_id = self._saver(), task["session_id"]
        run = _run_of(session_id)
        if run is not None and run.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([run])
            return
        while saver is not None and ("asked" in task or not await is_idle(saver, session_id)):  # noqa: ASYNC110 - another process runs it
            await asyncio.sleep(POLL_S)

    def _begin(self, id_: str, task: BackgroundTask) -> None:
        """Run the task, or continue it, in a session of its own."""
        session_id = task["session_id"]
        context = coerce_context(get_runtime().context)
        session: Session[Any, Any] = Session(
            self._stored(), session_id, configurable={DEPTH_LEFT: task["depth_left"], BUDGET_LEFT: task["budget"]}
        )
        given = [*task["context"], HumanMessage(task["task"])]
        credentials = AgentContext(credentials=context.credentials if context else {})

        async def run() -> None:
            try:
                await session.run(given, context=credentials, input_id=id_)
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
        own = self.graph.checkpointer
        return own if isinstance(own, BaseCheckpointSaver) else checkpointer_of(ensure_config())

    def _stored(self) -> CompiledStateGraph[Any, Any, Any, Any]:
        """Return the graph with a saver and a Store: its own, or those of the delegating agent."""
        if isinstance(self.graph.checkpointer, BaseCheckpointSaver):
            return self.graph
        store = self.graph.store or get_runtime().store
        return self.graph.builder.compile(
            checkpointer=self._saver(), store=store, cache=self.graph.cache, name=self.graph.name
        )


def _run_of(session_id: str) -> asyncio.Task[None] | None:
    """Return the run of a session in this process; None if it has none, or its event loop was closed before its end."""
    run = _running.get(session_id)
    return None if run is None or run.done() or run.get_loop().is_closed() else run


def _question(values: list[Any]) -> str:
    requests = [value for value in values if is_approval_request(value)]
    return question_text(joined_request(requests)) if requests else "\n".join(map(str, values))
