"""Follows the run of another request, for a client that connects to its thread again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from ag_ui.core import BaseEvent

from graph_agent.runs.registry import is_idle
from graph_agent.server.agui.projection import Projection
from graph_agent.server.agui.requests import AgentInput, ResolvedRun
from graph_agent.server.hosting.feeds import LOOK_S
from graph_agent.server.hosting.host import Host
from graph_agent.server.problems import ProblemError, stopping

_PROPERTY = "onDisconnect"
_CONTINUE = "continue"


def survives_disconnect(body: AgentInput) -> bool:
    """Whether a run continues after its client has closed the request, as the client's `forwardedProps` choose."""
    given = body.forwarded_props
    return isinstance(given, dict) and given.get(_PROPERTY) == _CONTINUE


async def follow(host: Host, resolved: ResolvedRun, projection: Projection) -> AsyncGenerator[list[BaseEvent], None]:
    """Yield the AG-UI events of a session's run until it ends; an empty list after a pause without any.

    Raises:
        ProblemError: If the server stops, or the session is deleted.
    """
    thread, after = resolved.spec.thread, len(resolved.before.values.get("events", [])) - 1
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
                if await is_idle(host.saver, thread):
                    # The feed reads at intervals, so it may lack the newest events.
                    state = await host.kept.aget_state(resolved.spec.config)
                    yield list(projection.follow(take_live(), state.values.get("events", [])[after + 1 :]))
                    return
                # A run of another process wakes nobody here when it ends.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await change.wait()
            if feed.ended == "deleted":
                raise ProblemError("not_found", "This thread was deleted.")
            raise stopping(resolved.spec.session_id)
