"""An agent as a Restate virtual object: its key is the session, and each invocation of `run` is one input.

Restate's server queues the inputs of a session, selects a worker, and delivers an input again when its worker dies. The
session's checkpoints hold the finished work, so the next delivery continues the input and repeats no finished call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import restate
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from graph_agent.context import AgentContext
from graph_agent.errors import RunFailedError, SessionBusyError, UserError
from graph_agent.runs.input_marks import INPUT_ID
from graph_agent.session import Session
from graph_agent.session.interrupts import answers_by_id
from graph_agent.session.results import open_interrupts, run_result
from graph_agent.session.typed_result import own_fields_of

RETRY = restate.InvocationRetryPolicy(initial_interval=timedelta(milliseconds=50))
"""Retries first after 50 ms, and then by the server's settings."""
ContextOf = Callable[[str], Awaitable[AgentContext | Mapping[str, Any]]]
"""Returns the context of a session's run."""
Start = Callable[..., Awaitable[Any]]
_BUSY_POLL_S = 0.1
_json = partial(to_jsonable_python, serialize_unknown=True, bytes_mode="base64", inf_nan_mode="null")


class RunRequest(BaseModel):
    """The request of `run`."""

    model_config = ConfigDict(extra="forbid")
    input: str | list[Any] = Field(description="The user's input: text, or messages with role and content.")
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
    context: ContextOf | None = None,
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
    tasks: set[asyncio.Task[Any]] = set()

    async def state_of(session: Session) -> StateSnapshot:
        return await graph.aget_state({"configurable": {"thread_id": session.id}})

    def newest_result(state: StateSnapshot) -> dict[str, Any]:
        return dict(_json(run_result(state, own_fields_of(graph).outputs)))

    async def deliver(
        ctx: restate.ObjectContext, session: Session, input_id: str | None, start: Start
    ) -> dict[str, Any]:
        """Run an input until it ends or waits, and abort it if the invocation is cancelled."""
        task: asyncio.Task[Any] | None = None

        async def attempt() -> Any:
            nonlocal task
            # The run survives a lost connection to Restate: the next delivery of the input waits for its end.
            task = asyncio.create_task(_run(session.id, start, context))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return await asyncio.shield(task)

        async def is_newest() -> bool:
            return bool(((await state_of(session)).metadata or {}).get(INPUT_ID) == input_id)

        try:
            return dict(await ctx.run_typed("run", attempt))
        except restate.TerminalError as error:
            if error.message != "cancelled":
                raise
            if task is not None and not await is_newest():
                task.cancel()  # the session runs another input, and this one waits
                await asyncio.wait([task])
            if await is_newest():
                await session.abort()
                if task is not None:
                    await asyncio.wait([task])
            raise

    @agent.handler()
    async def run(ctx: restate.ObjectContext, request: RunRequest) -> dict[str, Any]:
        """Run one input, until it ends or waits for a person."""
        session, input_id = Session(graph, ctx.key()), ctx.request().idempotency_key or ctx.request().id
        start = partial(session.run, request.input, state=request.state, input_id=input_id)
        return await deliver(ctx, session, input_id, start)

    @agent.handler()
    async def resume(ctx: restate.ObjectContext, request: ResumeRequest) -> dict[str, Any]:
        """Answer open interrupts, and continue the input that waits for them."""
        session = Session(graph, ctx.key())

        async def read() -> dict[str, Any]:
            state = await state_of(session)
            asked = open_interrupts(state)
            with _terminal_errors():
                answers = answers_by_id(request.answer, asked)
            questions = {each.id: _json(each.value) for each in asked}
            return {"input": (state.metadata or {}).get(INPUT_ID), "answers": answers, "questions": questions}

        first = await ctx.run_typed("read", read)

        async def start(**options: Any) -> Any:
            state = await state_of(session)
            asked = open_interrupts(state)
            # An earlier delivery may have used the answers, and may have reached the next question.
            same = {each.id for each in asked if _json(each.value) == first["questions"].get(each.id)}
            answers = {id_: answer for id_, answer in first["answers"].items() if id_ in same}
            if not answers and (asked or not state.tasks):
                return newest_result(state)
            return await session.resume(answers or None, decided_by=request.decided_by, **options)

        return await deliver(ctx, session, first["input"], start)

    @agent.handler(kind="shared")
    async def status(ctx: restate.ObjectSharedContext) -> dict[str, Any]:
        """Return the result of the newest input so far, and the state of each of its `calls`."""
        session = Session(graph, ctx.key())
        return {**newest_result(await state_of(session)), "calls": _json(await session.calls())}

    @agent.handler(kind="shared")
    async def steer(ctx: restate.ObjectSharedContext, text: str) -> None:
        """Send a message to the model before its next plan."""

        async def send() -> None:
            with _terminal_errors():
                await Session(graph, ctx.key()).steer(text)

        await ctx.run_typed("steer", send)

    @agent.handler(kind="shared")
    async def abort(ctx: restate.ObjectSharedContext) -> bool:
        """Stop the session's run; its invocation returns the result. Returns false if there was nothing to stop."""
        return await Session(graph, ctx.key()).abort()

    return agent


@contextmanager
def _terminal_errors() -> Iterator[None]:
    try:
        yield
    except SessionBusyError:
        raise
    except (UserError, RunFailedError) as error:
        raise restate.TerminalError(str(error), 400 if isinstance(error, UserError) else 500) from error


async def _run(session_id: str, start: Start, context: ContextOf | None) -> Any:
    """Start a run as soon as no other run of the session is under way."""
    while True:
        with _terminal_errors(), suppress(SessionBusyError):
            return _json(await start(context=await context(session_id) if context is not None else None))
        await asyncio.sleep(_BUSY_POLL_S)
