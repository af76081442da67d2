"""Runs one input once: its mark, the wait for its run elsewhere, and its stored result."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import UnknownInterruptError
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from graph_agent._compat import STRICT_RESUME
from graph_agent.checkpoints.reading import load
from graph_agent.errors import InputError
from graph_agent.runs.input_ids import InputId, check_input_id, digest_of, input_id_in
from graph_agent.runs.registry import POLL_S, find_run, is_idle
from graph_agent.runs.run import RUN, Run, RunHandle
from graph_agent.session.built_agent import builder_of, custom_state_of
from graph_agent.session.run_result import RunResult, run_result, typed_result
from graph_agent.settings.config import AgentContext, effective_config
from graph_agent.types import SessionStatus

_BEGINNING_S = 1.0
"""Seconds in which the run of another process may commit its input, so that it is recognized."""


_INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")


class InputRun:
    """The run of one input, which reads its result before the session's lock is released.

    If the lock was lost, another run may have continued the session, so the result is read from a checkpoint of the
    input's own run.

    Args:
        read: Reads the result of a run; for None, the session's newest result.
        before: Checks, once the session is locked, that the run may begin; None for no check.
        mark: The input's id; None for an input without an id.
    """

    def __init__(
        self,
        read: Callable[[Run | None], Awaitable[RunResult]],
        before: Callable[[], Awaitable[None]] | None = None,
        mark: InputId | None = None,
    ) -> None:
        self._read = read
        self._before = before
        self._mark = mark
        self._result: RunResult | None = None
        self._run: Run | None = None
        self.aborted = False
        """Whether the run was aborted, also if its answer was complete before."""

    @contextmanager
    def opened(self, configurable: Mapping[str, Any]) -> Iterator[RunnableConfig]:
        """Yield the run's config; meanwhile an abort of the surrounding run also aborts this one.

        Args:
            configurable: The `configurable` of the run.

        Raises:
            InputError: If the answer names an interrupt that another run has answered, or that never existed.
        """
        surrounding = configurable.get(RUN) or ensure_config().get("configurable", {}).get(RUN)
        scope = RunHandle(parent=surrounding, before=self._before, after=self._set_result, mark=self._mark)
        with scope.attached():
            try:
                yield {"configurable": {**configurable, RUN: scope, STRICT_RESUME: True}}
            except UnknownInterruptError as error:
                raise InputError(not_open(error.interrupt_ids, error.pending_ids)) from error

    async def result(self) -> RunResult:
        """Return the result of the input. A graph of another package does not report its end: it is read now."""
        return self._result or await self._read(None)

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return self._run is not None and self._run.left_s == 0

    @property
    def is_store_silent(self) -> bool:
        """Whether it ended while its Store did not answer."""
        return self._run is not None and self._run.inbox.is_silent

    def set_stored(self, result: RunResult) -> None:
        """Set the result of an input that was run before."""
        self._result = result

    async def _set_result(self, run: Run) -> None:
        self._run = run
        self._result, self.aborted = await self._read(run), run.aborted


def input_id_of(given: Any, input_id: str | None, graph: CompiledStateGraph[Any, Any, Any, Any]) -> InputId | None:
    """Return the mark of an input; None without an id.

    Args:
        given: The graph's input, or a person's answer.
        input_id: The id; None if there is none.
        graph: The compiled graph.

    Raises:
        InputError: When the id is not valid, or the graph does not store ids.
    """
    if input_id is None:
        return None
    if builder_of(graph) is None:
        raise InputError(f"input_id={input_id!r}: only graphs of create_graph_agent() store input ids.")
    return InputId(check_input_id(input_id), digest_of(given))


def answer_content(answer: Any) -> Any:
    """Return what identifies an answer: its value, without interrupt ids, and text as in an input of that text.

    A client that repeats an answer after a crash may not know any more which question it belongs to.
    """
    values = list(answer.values()) if is_by_id(answer) else [answer]
    if len(values) == 1 and isinstance(values[0], str):
        return {"messages": [HumanMessage(values[0])]}
    return values


def is_by_id(answer: Any) -> bool:
    """Whether LangGraph interprets an answer as a mapping by interrupt id."""
    return (
        isinstance(answer, Mapping)
        and bool(answer)
        and all(isinstance(key, str) and _INTERRUPT_ID.fullmatch(key) for key in answer)
    )


def not_open(unknown: Sequence[str], known: Sequence[str]) -> str:
    """Return the text of the error for an answer to interrupts that are not open; `known` are those that are."""
    return (
        f"The answer is for interrupts that are not open: {', '.join(unknown)}. Open: {', '.join(known) or 'none'}. "
        "Nothing was changed; answer those that are open."
    )


async def wait_for_input(saver: BaseCheckpointSaver[Any], session_id: str, mark: InputId) -> bool:
    """Wait for the end of the run of an input, in this process or another; poll for one in another process.

    Args:
        saver: The session's saver.
        session_id: The session.
        mark: The input's mark.

    Returns:
        False when the session runs another input.

    Raises:
        InputConflictError: When the session runs a different input with the same id.
    """
    begun = time.monotonic()
    while True:
        run = await find_run(saver, session_id)
        if run is not None:
            if not mark.names(run.mark, session_id):
                return False
            await asyncio.wait([asyncio.wrap_future(run.ended)])
            return True
        if await is_idle(saver, session_id):
            return True
        newest = await load(saver, {"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
        is_same = newest is not None and mark.names(input_id_in(newest.metadata), session_id)
        if not is_same and time.monotonic() - begun > _BEGINNING_S:
            return False
        await asyncio.sleep(POLL_S)


def stored_result(
    state: StateSnapshot,
    graph: CompiledStateGraph[Any, Any, Any, Any],
    context: AgentContext | Mapping[str, Any] | None,
) -> RunResult:
    """Return the result of an input from the state at its end.

    Args:
        state: The state.
        graph: The compiled graph.
        context: The run's context.

    Raises:
        RunFailedError: When the input failed, and `on_failure="raise"` is set.
    """
    result = run_result(state, custom_state_of(graph).outputs)
    builder = builder_of(graph)
    built = builder.config if builder is not None else None
    if built is not None and result.status == SessionStatus.FAILED:
        changed = state.values["loop"].get("config_overrides")
        if effective_config(built, context, changed=changed).on_failure == "raise":
            result.raise_for_status()
    return typed_result(result, graph, context)
