"""The way to those who asked to be notified: beside the task, and the status of their answer is all that is taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx
from a2a.server.tasks import BasePushNotificationSender, PushNotificationEvent, PushNotificationSender
from a2a.server.tasks.push_notification_config_store import PushNotificationConfigStore
from a2a.types import TaskArtifactUpdateEvent

from graph_agent._internal.public_network import PublicTransport, is_public_url

_TIMEOUT_S = 10
_LAST_S = 2.0
"""Seconds that what waits to be sent has when the server closes."""
_MOST_PIECES = 100
"""Notifications that may wait for a slow receiver before pieces of the answer are left out."""


class Pusher(PushNotificationSender):
    """Sends each task's notifications in their order, and never makes the task wait for it.

    A receiver may take seconds for each, or be gone. One that falls far behind misses pieces of the answer, which is
    told as a whole in the end; it misses no change of the task's state.

    Args:
        configs: Who is to be notified.
        url_check: Whether an address may be notified.
    """

    def __init__(self, configs: PushNotificationConfigStore, url_check: Callable[[str], Awaitable[bool]]) -> None:
        # A check of the user's own may allow more than the public network.
        self._http = open_push_http(public_only=url_check is is_public_url)
        self._sender = BasePushNotificationSender(self._http, configs, push_url_validator=url_check)
        self._waiting: dict[str, deque[PushNotificationEvent]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def send_notification(self, task_id: str, event: PushNotificationEvent) -> None:
        """Have a change of a task sent when those before it are."""
        waiting = self._waiting.setdefault(task_id, deque())
        if len(waiting) >= _MOST_PIECES and isinstance(event, TaskArtifactUpdateEvent) and event.append:
            return
        # The SDK goes on with the event, which may be the task itself.
        copy = type(event)()
        copy.CopyFrom(event)  # type: ignore[arg-type]  # it is of the same type
        waiting.append(copy)
        if task_id not in self._sending:
            self._sending[task_id] = asyncio.create_task(self._send(task_id, waiting))

    async def sent(self) -> None:
        """Wait until nothing waits to be sent."""
        while self._sending:
            await asyncio.wait(self._sending.values())

    async def aclose(self) -> None:
        """Give what waits a moment to be sent, and close."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await self.sent()
        if late := list(self._sending.values()):
            for sending in late:
                sending.cancel()
            await asyncio.wait(late)
        await self._http.aclose()

    async def _send(self, task_id: str, waiting: deque[PushNotificationEvent]) -> None:
        try:
            while waiting:
                await self._sender.send_notification(task_id, waiting.popleft())
        finally:
            del self._waiting[task_id], self._sending[task_id]


def open_push_http(*, public_only: bool = True) -> httpx.AsyncClient:
    """A client that follows no redirect, uses no proxy of the environment, and reads the body of no answer.

    A receiver's address comes from a client of the agent: it must not lead us on, nor fill our memory.

    Args:
        public_only: Whether it connects to the public network only.
    """
    transport = PublicTransport() if public_only else httpx.AsyncHTTPTransport()
    return httpx.AsyncClient(
        transport=_StatusOnly(transport), follow_redirects=False, timeout=_TIMEOUT_S, trust_env=False
    )


class _StatusOnly(httpx.AsyncBaseTransport):
    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._transport.handle_async_request(request)
        await response.aclose()
        return httpx.Response(response.status_code, extensions=response.extensions)

    async def aclose(self) -> None:
        await self._transport.aclose()
