"""Sends push notifications independently of the task; only the status code of a receiver's response is read."""

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
_CLOSE_S = 2.0
"""Seconds for sending queued notifications when the server closes."""
_MAX_QUEUED = 100
"""Queued notifications of a task at which chunks of the answer are dropped."""


class PushNotifier(PushNotificationSender):
    """Sends the notifications of each task in order, without making the task wait.

    A receiver may take seconds for each notification, or be unreachable. A receiver that falls far behind misses chunks
    of the answer, which is sent complete at the end; it misses no change of the task's state.

    Args:
        url_check: Whether an address may be notified.
    """

    def __init__(self, configs: PushNotificationConfigStore, url_check: Callable[[str], Awaitable[bool]]) -> None:
        # A custom check may allow more than the public network.
        self._http = open_push_http(public_only=url_check is is_public_url)
        self._sender = BasePushNotificationSender(self._http, configs, push_url_validator=url_check)
        self._waiting: dict[str, deque[PushNotificationEvent]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def send_notification(self, task_id: str, event: PushNotificationEvent) -> None:
        """Queue a notification behind the task's earlier ones."""
        waiting = self._waiting.setdefault(task_id, deque())
        if len(waiting) >= _MAX_QUEUED and isinstance(event, TaskArtifactUpdateEvent) and event.append:
            return
        # Copied: the SDK keeps mutating the event, which may be the task itself.
        copy = type(event)()
        copy.CopyFrom(event)  # type: ignore[arg-type]  # it is of the same type
        waiting.append(copy)
        if task_id not in self._sending:
            self._sending[task_id] = asyncio.create_task(self._send(task_id, waiting))

    async def drained(self) -> None:
        """Wait until the queues are empty."""
        while self._sending:
            await asyncio.wait(self._sending.values())

    async def aclose(self) -> None:
        """Send queued notifications for a limited time, then close."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.drained()
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
    """Return an HTTP client that follows no redirects, ignores proxies of the environment, and reads no response body.

    A receiver's address is untrusted, as it comes from a client of the agent: the receiver must not redirect requests
    or exhaust memory.

    Args:
        public_only: Whether to connect to the public network only.
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
