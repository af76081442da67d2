"""An agent as a Restate virtual object: its key is the session, and each invocation of `run` is one input.

Restate's server queues the inputs of a session, selects a worker, and delivers an input again when its worker dies. The
session's checkpoints hold the finished work, so the next delivery continues the input and repeats no finished call.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import restate
from hypercorn.asyncio import serve as serve_asgi
from hypercorn.config import Config
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python
from restate.server import install_shutdown_hook

from graph_agent.context import AgentContext
from graph_agent.errors import InputConflictError, InputSupersededError, RunFailedError, SessionBusyError, UserError
from graph_agent.runs.input_marks import INPUT_ID
from graph_agent.session import Session
from graph_agent.session.interrupts import answers_by_id
from graph_agent.session.results import RunResult, run_result

RETRY = restate.InvocationRetryPolicy(initial_interval=timedelta(milliseconds=50))
"""Retries first after 50 ms, and then by the server's settings."""
_BUSY_POLL_S = 0.1
_json = partial(to_jsonable_python, serialize_unknown=True, bytes_mode="base64", inf_nan_mode="null")


class RunRequest(BaseModel):
    """The request of `run`."""

    model_config = ConfigDict(extra="forbid")
    input: str | list[dict[str, Any]] = Field(description="The user's input: text, or messages with role and content.")
    state: dict[str, Any] | None = Field(None, description="Values of own state fields; null to set none.")


class ResumeRequest(BaseModel):
    """The request of `resume`."""

    model_config = ConfigDict(extra="forbid")
    answer: Any = Field(description="The answer to the open interrupt, or a mapping of interrupt id to answer.")
    decided_by: str | None = Field(None, description="Name of the person who decided; null for `user`.")


def agent_object(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    *,
    name: str = "",
    context: Callable[[str], Awaitable[AgentContext | Mapping[str, Any]]] | None = None,
    retry: restate.InvocationRetryPolicy = RETRY,
    longest_run: timedelta = timedelta(days=1),
) -> restate.VirtualObject:
    """Return a virtual object with the handlers `run`, `resume`, `status`, `steer` and `abort`.

    Results are `RunResult`s as JSON. The id of an input is the idempotency key of its invocation, else the invocation's
    id. A cancelled invocation aborts its run. Errors that a retry cannot fix are terminal; any other is retried.

    Args:
        graph: A compiled agent, with a checkpointer and a Store that all workers share.
        name: Name of the object; empty for the graph's name.
        context: Returns the context of a session's runs, such as credentials, which Restate then does not store.
        retry: When Restate retries; a field without a value has the server's setting.
        longest_run: Duration after which Restate takes a run for lost.
    """
    agent = restate.VirtualObject(name or graph.name, inactivity_timeout=longest_run, invocation_retry_policy=retry)
    running: dict[str, asyncio.Task[Any]] = {}

    async def state_of(session: Session) -> Any:
        return await graph.aget_state({"configurable": {"thread_id": session.id}})

    async def deliver(ctx: restate.ObjectContext, session: Session, input_id: str | None, start: Any) -> Any:
        """Run an input to its end. The run outlives a delivery that is lost, and the next one joins it."""
        id_ = ctx.request().id

        async def attempt() -> Any:
            if id_ not in running:
                task = running[id_] = asyncio.create_task(_when_idle(start, context and partial(context, session.id)))
                task.add_done_callback(lambda done: running.pop(id_).cancelled() or done.exception())
            return await asyncio.shield(running[id_])

        async def is_newest() -> bool:
            return bool(((await state_of(session)).metadata or {}).get(INPUT_ID) == input_id)

        try:
            return await ctx.run_typed("run", attempt)
        except restate.TerminalError as error:
            task = running.get(id_)
            if error.message == "cancelled" and task is not None and not await is_newest():
                task.cancel()  # it waits for another run of the session
                await asyncio.wait([task])
            if error.message == "cancelled" and await is_newest():
                await session.abort()
                if task is not None:
                    await asyncio.wait([task])
            raise

    @agent.handler()
    async def run(ctx: restate.ObjectContext, request: RunRequest) -> dict[str, Any]:
        """Run one input, until it ends or waits for a person."""
        session, input_id = Session(graph, ctx.key()), ctx.request().idempotency_key or ctx.request().id
        start = partial(session.run, request.input, state=request.state, input_id=input_id)
        return dict(await deliver(ctx, session, input_id, start))

    @agent.handler()
    async def resume(ctx: restate.ObjectContext, request: ResumeRequest) -> dict[str, Any]:
        """Answer the open interrupts, and continue the input that waits."""
        session = Session(graph, ctx.key())

        async def begin() -> dict[str, Any]:
            with _terminal_errors():
                asked = await session.interrupts()
                answers = answers_by_id(request.answer, asked)
            values = {each.id: _json(each.value) for each in asked if each.id in answers}
            return {"input": (await state_of(session)).metadata.get(INPUT_ID), "answers": answers, "asked": values}

        async def start(**options: Any) -> RunResult:
            # An earlier delivery may have used some answers, and reached the next question.
            open_ = [each.id for each in await session.interrupts() if each.id in asked and _json(each.value) == asked[each.id]]
            ...
        first = await ctx.run_typed("begin", begin)
        return dict(await deliver(ctx, session, first["input"], start))

    return agent
