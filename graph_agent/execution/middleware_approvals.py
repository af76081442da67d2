"""Events of the approvals that LangChain's middleware asks for, made when the person has answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.runtime import Runtime

from graph_agent._compat import checkpointer_of, count_resume_values, newest_resume_value
from graph_agent.approvals.decisions import read_decisions
from graph_agent.approvals.requests import HeldCall, calls_of_request, request_of
from graph_agent.errors import DecisionError
from graph_agent.events.approvals import decision_event, request_event
from graph_agent.events.types import StoredEvent
from graph_agent.execution.checkpoints import load, running_checkpoint


async def answered_approvals(
    config: RunnableConfig, runtime: Runtime[Any], planned: Sequence[ToolCall], step: int, middleware: str
) -> list[StoredEvent]:
    """Return the events of the request that a task has asked, and of the decisions that answered it.

    Call it when the middleware has accepted the answer. Of several requests of one task, only the newest has events.

    Args:
        config: The task's config.
        runtime: The task's runtime.
        planned: The calls that the request may be about, as planned; LangChain's requests have no ids.
        step: The step of the calls.
        middleware: Name of the middleware.
    """
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    if not count_resume_values(config) or saver is None or at is None or runtime.execution_info is None:
        return []
    found, task = await load(saver, at), runtime.execution_info.task_id
    writes = found.pending_writes or [] if found is not None else []
    asked = [one for id_, channel, value in writes if (id_, channel) == (task, INTERRUPT) for one in value]
    request = request_of(asked[-1]) if asked else None
    if request is None:
        return []
    calls = _with_ids(calls_of_request(request), planned)
    answer = newest_resume_value(config)
    try:
        decided = read_decisions(calls, answer)
    except DecisionError:
        return []  # another middleware, whose answers have another form
    return [
        request_event(calls, step, middleware=middleware),
        *(decision_event(each, step, middleware=middleware) for each in decided),
    ]


def _with_ids(calls: Sequence[HeldCall], planned: Sequence[ToolCall]) -> list[HeldCall]:
    """Return the calls with the ids of the planned calls of equal name and arguments, in order."""
    left = [*planned]
    found: list[HeldCall] = []
    for call in calls:
        same = next((one for one in left if (one["name"], one["args"]) == (call["name"], call["arguments"])), None)
        if same is not None:
            left.remove(same)
        found.append({**call, "id": same["id"]} if same is not None and same["id"] else call)
    return found
