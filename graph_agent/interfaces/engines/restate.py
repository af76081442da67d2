"""Serves an agent as a Restate virtual object per session: Restate delivers inputs, checkpoints hold the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot
from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python
from restate import InvocationRetryPolicy, ObjectContext, ObjectSharedContext, TerminalError, VirtualObject

from graph_agent.base.errors import RunFailedError, SessionBusyError, UserError
from graph_agent.base.settings.config import AgentContext
from graph_agent.session.built_agent import custom_state_of
from graph_agent.session.control import SessionControl
from graph_agent.session.results import run_result
from graph_agent.session.session import Session

ContextOf = Callable[[str], Awaitable[AgentContext | Mapping[str, Any]]]
"""Returns the context of a run, such as credentials, for the id of its session."""
RUNS: set[asyncio.Task[Any]] = set()
"""Tasks of the runs in this process.

A run outlives a lost connection to Restate, and the next delivery waits for its end.
"""
_RETRY = InvocationRetryPolicy(initial_interval=timedelta(milliseconds=50))
_json = partial(to_jsonable_python, serialize_unknown=True, bytes_mode="base64", inf_nan_mode="null")
"""Converts a value to JSON types. Bytes become base64, and infinite numbers null."""


class RunRequest(BaseModel, extra="forbid"):
    """The request body of the handler `run`."""

    input: str | list[Any] = Field(description="The user's input: text, or messages with role and content.")
    state: dict[str, Any] | None = Field(None, description="Values of own state fields; null to set none.")


class ResumeRequest(BaseModel, extra="forbid"):
    """The request body of the handler `resume`."""

    answer: Any = Field(description="The answer to the open interrupt, or a mapping of interrupt id to answer.")
    decided_by: str | None = Field(None, description="Name of the person who decided; null for `user`.")


@asynccontextmanager
async def _terminal_errors() -> AsyncIterator[None]:
    """Convert errors that a retry cannot fix to `TerminalError`: status 400 for a `UserError`, 500 for a run that
    failed.

    Other exceptions pass unchanged, so that Restate retries.
    """
    try:
        yield
    except (UserError, RunFailedError) as error:
        raise TerminalError(str(error), 400 if isinstance(error, UserError) else 500) from error


def agent_object(
    graph: CompiledStateGraph[Any, Any, Any, Any], *, name: str = "", context: ContextOf | None = None
) -> VirtualObject:
    """Return a Restate virtual object whose keys are session ids, with the handlers `run`, `resume`, `status`, `steer`
    and `abort`.

    Results are `RunResult`s as JSON. The id of an input is the idempotency key of its invocation, or else the
    invocation's id, so that Restate may deliver the input repeatedly and it runs once. A cancelled invocation aborts
    its run. Errors that a retry cannot fix are terminal; any other error is retried, first after 50 ms
    (`invocation_retry_policy`). A run may last a day (`inactivity_timeout`).

    Args:
        graph: A compiled agent, with a checkpointer and a Store that all workers share.
        name: Name of the object; empty for the graph's name.
        context: Async function that receives the session id and returns the context of the run, such as credentials,
            which Restate then does not store. It is called for each attempt. None for no context.
    """
    agent = VirtualObject(
        name or graph.name,
        inactivity_timeout=timedelta(days=1),
        invocation_retry_policy=_RETRY,
        invocation_context_managers=[_terminal_errors],
    )

    async def state_of(session: Session) -> StateSnapshot:
        """Return a snapshot of a session's newest checkpoint."""
        return await graph.aget_state({"configurable": {"thread_id": session.id}})

    async def deliver(ctx: ObjectContext, session: Session, input_id: str, start: Callable[..., Any]) -> Any:
        """Run an input, which runs only once even if Restate delivers it again, and return the result as JSON.

        The run continues if the connection to Restate is lost. If the invocation is cancelled, its run is aborted, or
        the wait for the run of another input is ended; then `TerminalError` is raised. It is also raised for an error
        that a retry cannot fix.

        Args:
            ctx: The context of the invocation.
            session: The session.
            input_id: Id of the input.
            start: Runs the input, or resumes with it; receives `context`.
        """
        started: list[asyncio.Task[Any]] = []

        async def run_to_end() -> Any:
            """Run the input, with a context that is made anew, and return its result as JSON.

            While the session runs another input, try again every 0.1 s. Raises `TerminalError` for an error that a
            retry cannot fix.
            """
            while True:
                async with _terminal_errors():
                    with suppress(SessionBusyError):
                        return _json(await start(context=await context(session.id) if context else None))
                # The session runs another input; a busy session is no failure of this one.
                await asyncio.sleep(0.1)

        async def attempt() -> Any:
            """Start the run in a task that outlives this invocation, and wait for its result or its error."""
            started.append(task := asyncio.create_task(run_to_end()))
            RUNS.add(task)
            task.add_done_callback(RUNS.discard)
            return await asyncio.shield(task)

        try:
            return await ctx.run_typed("run", attempt)
        except TerminalError as error:
            if error.message == "cancelled":
                if await SessionControl(graph, session.id).has_input(input_id):
                    await session.abort()
                else:
                    for task in started:
                        task.cancel()  # it waits for the end of another input
                await asyncio.gather(*started, return_exceptions=True)
            raise

    @agent.handler()
    async def run(ctx: ObjectContext, request: RunRequest) -> dict[str, Any]:
        """Run one input until it has ended or waits for an answer, and return its result.

        The idempotency key of the invocation, or else its id, is the id of the input, which runs only once. Raises
        `TerminalError` if the invocation is cancelled, or for an error that a retry cannot fix.
        """
        session, input_id = Session(graph, ctx.key()), ctx.request().idempotency_key or ctx.request().id
        start = partial(session.run, request.input, state=request.state, input_id=input_id)
        return dict(await deliver(ctx, session, input_id, start))

    @agent.handler()
    async def resume(ctx: ObjectContext, request: ResumeRequest) -> dict[str, Any]:
        """Answer open interrupts, run the waiting input until it has ended or waits again, and return its result.

        The answer is used once for the idempotency key, or else the id, of the invocation. Raises `TerminalError` if
        the invocation is cancelled, or for an error that a retry cannot fix, e.g. an answer that does not fit.
        """
        # An idempotency key belongs to a handler: that of `run` may be used for `resume`, too.
        session, input_id = Session(graph, ctx.key()), f"resume {ctx.request().idempotency_key or ctx.request().id}"
        start = partial(session.resume, request.answer, decided_by=request.decided_by, input_id=input_id)
        return dict(await deliver(ctx, session, input_id, start))

    @agent.handler(kind="shared")
    async def status(ctx: ObjectSharedContext) -> dict[str, Any]:
        """Return the result of the newest input so far, and the state of each of its `calls`."""
        session = Session(graph, ctx.key())
        newest = run_result(await state_of(session), custom_state_of(graph).outputs)
        return {**_json(newest), "calls": _json(await session.calls())}

    @agent.handler(kind="shared")
    async def steer(ctx: ObjectSharedContext, text: str) -> None:
        """Send a message that the model reads before its next plan. Returns before the message is read."""
        await Session(graph, ctx.key()).steer(text)

    @agent.handler(kind="shared")
    async def abort(ctx: ObjectSharedContext) -> bool:
        """Stop the session's run, whose invocation returns the result; false if there was nothing to stop."""
        return await Session(graph, ctx.key()).abort()

    return agent
