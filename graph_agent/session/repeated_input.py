"""A repeated input: its mark, the wait for its run in another task or process, and the parts of its stored result."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from graph_agent.context import AgentContext, effective_config
from graph_agent.errors import InputError
from graph_agent.execution.checkpoints import load
from graph_agent.runs.input_marks import InputMark, check_input_id, digest_of, mark_in
from graph_agent.runs.registry import POLL_S, find_run, is_idle
from graph_agent.session.built_agent import builder_of, own_fields_of
from graph_agent.session.run_result import RunResult, run_result
from graph_agent.session.typed_result import typed_result
from graph_agent.state.messages import failure_error, failure_of
from graph_agent.types import SessionStatus

_BEGINNING_S = 1.0
"""Seconds in which the run of another process may commit its input, so that it is recognized."""


_INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")


def mark_of(given: Any, input_id: str | None, graph: CompiledStateGraph[Any, Any, Any, Any]) -> InputMark | None:
    """Return the mark of an input; None without an id.

    Args:
        given: The graph's input, or a person's answer.
        input_id: The id; None for none.
        graph: The compiled graph.

    Raises:
        InputError: When the id is not valid, or the graph does not store ids.
    """
    if input_id is None:
        return None
    if builder_of(graph) is None:
        raise InputError(f"input_id={input_id!r}: only graphs of create_graph_agent() store input ids.")
    return InputMark(check_input_id(input_id), digest_of(given))


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


async def wait_for_input(saver: BaseCheckpointSaver[Any], session_id: str, mark: InputMark) -> bool:
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
        is_same = newest is not None and mark.names(mark_in(newest.metadata), session_id)
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
    result = run_result(state, own_fields_of(graph).outputs)
    builder = builder_of(graph)
    built = builder.config if builder is not None else None
    if built is not None and result.status == SessionStatus.FAILED:
        changed = state.values["loop"].get("changed")
        if effective_config(built, context, changed=changed).on_failure == "raise":
            failed = failure_of(state.values["messages"][-1]) or {}
            raise failure_error(result.error, kind=failed.get("error", ""), answer=result.answer)
    return typed_result(result, graph, context)
