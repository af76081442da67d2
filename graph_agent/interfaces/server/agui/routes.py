"""Implements AG-UI's endpoint: one POST runs an input of a thread, or resumes it, and streams the events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, ExitStack, aclosing, suppress

from ag_ui.core import BaseEvent
from fastapi import APIRouter, Request
from starlette.responses import Response

from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base.types import SessionStatus
from graph_agent.interfaces.server.admission.body import BodyRoute
from graph_agent.interfaces.server.agui.projection import Projection, RunIds, refused_run
from graph_agent.interfaces.server.agui.resolve import AguiInput, ResolvedRun, resolve_agui
from graph_agent.interfaces.server.chat.handler import ChatHandler
from graph_agent.interfaces.server.chat.run import RunEnded
from graph_agent.interfaces.server.feeds import LOOK_S
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.parameters import RequestServices, Sender
from graph_agent.interfaces.server.problems import ProblemError, problem_of_failure, stopping
from graph_agent.interfaces.server.response_models import control_errors
from graph_agent.interfaces.server.sse import EventStream, comment, frame
from graph_agent.session.built_agent import custom_state_of
from graph_agent.session.control import SessionControl
from graph_agent.session.history import stored_event_count

_PROPERTY = "onDisconnect"
_CONTINUE = "continue"

logger = logging.getLogger("graph_agent.server.agui.routes")

_ERRORS = control_errors()

router = APIRouter(tags=["AG-UI"], route_class=BodyRoute)


def survives_disconnect(body: AguiInput) -> bool:
    """Return whether a run continues after its client has closed the request.

    The client requests it by `{"onDisconnect": "continue"}` in `forwardedProps`. By default the run is aborted.
    """
    given = body.forwarded_props
    return isinstance(given, dict) and given.get(_PROPERTY) == _CONTINUE


async def follow(host: Host, resolved: ResolvedRun, projection: Projection) -> AsyncGenerator[list[BaseEvent], None]:
    """Yield the AG-UI events of a run that another request or process executes, until the run ends.

    The first item brings the client up to the middle of the run. Each item is a list of events; it is empty after about
    2 seconds without output, so that the caller can keep the connection alive. Raises `ProblemError` if the session is
    deleted, or the server is stopping.

    Args:
        host: The open agent.
        resolved: The session, as it was when the request arrived.
        projection: Converts output to AG-UI events.
    """
    # The results of a wave that still runs have no final position.
    stored = stored_event_count(resolved.before)
    thread, after = resolved.spec.thread, stored - 1
    async with host.feeds.following(thread) as (feed, follower):
        with host.live.reading(thread, feed.wake) as take_live:
            yield list(projection.join(take_live()))
            while feed.ended is None:
                change = feed.change
                events, parts = await feed.take(follower, after), take_live()
                after += len(events)
                yield list(projection.follow(parts, events))
                if events or parts:
                    continue
                if not await SessionControl(host.kept, thread).is_running():
                    # The feed reads at intervals, so it may lack the newest events.
                    state = await host.kept.aget_state(resolved.spec.config)
                    yield list(projection.follow(take_live(), state.values.get("events", [])[after + 1 :]))
                    return
                # A run of another process wakes no reader here when it ends.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await change.wait()
            if feed.ended == "deleted":
                raise ProblemError("not_found", "This thread was deleted.")
            raise stopping(resolved.spec.session_id)


@router.post(
    "/agui",
    response_class=Response,
    responses={**_ERRORS, 200: {"content": {"text/event-stream": {}}, "description": "The run's events"}},
)
async def run_agent(body: AguiInput, request: Request, sender: Sender, server: RequestServices) -> Response:
    """Run an input of a thread, or resume it, and stream the events of the run.

    Errors of the thread and of the run are events of the stream; a body that is invalid or too large, and a request
    above the limits, are answered with an HTTP error.

    A request without a new message follows a run that is under way, or returns the stored state and messages of the
    thread.
    """
    chat, host = server.chat, server.chat.runs.host
    server.check_items(body.messages, body.tools)
    async with AsyncExitStack() as stack:
        resources = stack.enter_context(ExitStack())
        resources.enter_context(chat.limits.slot(sender.name))
        stack.enter_context(chat.runs.metrics.active_requests.track_inprogress())
        credentials = host.credentials_of(request)
        resolved: ResolvedRun | ProblemError
        try:
            resolved = await resolve_agui(host, sender, body, credentials)
        except ProblemError as problem:
            resolved = problem
        # The resources belong to the stream, which outlives this function.
        owned = stack.pop_all()
        return EventStream(
            _frames(chat, body, resolved, owned, resources),
            send_timeout_s=host.settings.send_timeout_s,
            close=owned.aclose,
        )


async def _frames(
    chat: ChatHandler,
    body: AguiInput,
    resolved: ResolvedRun | ProblemError,
    stack: AsyncExitStack,
    resources: ExitStack,
) -> AsyncGenerator[str, None]:
    """Yield the frames of the response: the events of the run, or the reason why there is none, and comments during
    pauses. If the session runs for another request, that run is followed to its end first. An input that has its result
    is not run again.

    Failures, also unexpected ones, which are logged, end the stream with an error event. If the client leaves, the run
    is aborted, unless `survives_disconnect`.

    Args:
        chat: Executes runs.
        body: The body of the request.
        resolved: The run, or why there is none.
        stack: Resources that the caller closes when the response ends.
        resources: Resources that are closed before the last event, so that the client's next request finds a free slot.
    """
    ids = RunIds(body.thread_id, body.run_id, body.protocol_version is None)
    host = chat.runs.host
    if isinstance(resolved, ProblemError):
        yield _text(refused_run(ids, resolved))
        return
    spec, before = resolved.spec, resolved.before
    given = spec.graph_input if isinstance(spec.graph_input, dict) else {}
    projection = Projection(
        ids,
        before,
        body.messages,
        own_fields=custom_state_of(spec.graph).outputs,
        client_state=body.state,
        written=given.keys() - {"messages"},
    )
    yield _text(projection.start(resolved.ignored))
    try:
        if resolved.follows:
            async with aclosing(follow(host, resolved, projection)) as batches:
                async for events in batches:
                    yield _text(events) or comment("still at work")
            before = await host.kept.aget_state(spec.config)
        if not resolved.runs:
            resources.close()
            yield _text(projection.stored(before))
            return
        run = await stack.enter_async_context(chat.runs.run(spec, streams=True, resources=resources))
        # AG-UI has no message to stop a run: a client closes its request.
        # A client that only lost its connection looks like one that left, so it chooses in advance.
        if not survives_disconnect(body):
            stack.callback(lambda: None if run.ended else run.spec.scope.abort())
        if spec.is_resume and (text := _text(projection.resume())):
            yield text
        while True:
            part = await run.part(host.settings.keepalive_s)
            match part:
                case None:
                    yield comment("still at work")
                case RunEnded(outcome):
                    assert run.input.state is not None, "a run that reaches its end reads its state"
                    run.release()
                    if outcome.problem is not None:
                        yield _text(projection.error(outcome.problem, run.input.state))
                    elif run.input.replayed:
                        aborted = outcome.status == SessionStatus.ABORTED
                        yield _text(projection.finish(run.input.state, spec.used_before, is_aborted=aborted))
                    else:
                        yield _text(projection.end(outcome, run.input.state, spec.used_before))
                    return
                case _:
                    if text := _text(projection.part(part)):
                        yield text
    except ProblemError as problem:
        resources.close()
        yield _text(projection.error(problem))
    except Exception as error:  # noqa: BLE001 - a stream without a last event counts as success for clients
        log_failure(logger, "A run over AG-UI", error)
        yield _text(projection.error(problem_of_failure(error)))


def _text(events: Iterable[BaseEvent]) -> str:
    """Return AG-UI events as frames of server-sent events, joined to one text; empty if there are none."""
    return "".join(frame(event.model_dump(mode="json", by_alias=True)) for event in events)
