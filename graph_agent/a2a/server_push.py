"""The way to those who asked to be notified: the status of their answer is all that is taken of it."""

from __future__ import annotations

import httpx

_TIMEOUT_S = 10


def open_push_http() -> httpx.AsyncClient:
    """A client that follows no redirect, uses no proxy of the environment, and reads the body of no answer.

    A receiver's address comes from a client of the agent: it must not lead us on, nor fill our memory.
    """
    return httpx.AsyncClient(transport=_StatusOnly(), follow_redirects=False, timeout=_TIMEOUT_S, trust_env=False)


class _StatusOnly(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        await response.aclose()
        return httpx.Response(response.status_code, extensions=response.extensions)
