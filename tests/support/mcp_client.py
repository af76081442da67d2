"""Clients of the agents that this package serves over MCP: the SDK's for a handshake, plain HTTP without one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from langchain_core.tools import tool
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client

VERSION = "2026-07-28"
FORMS: dict[str, Any] = {"elicitation": {}}
KEY = "graph-agent/idempotency-key"


class Person:
    """Answers elicitations with the given answers in order, and keeps the questions.

    Args:
        answers: The content of a form to accept, `decline` or `cancel`.
    """

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        self._answers = [*answers]
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        return types.ElicitResult.model_validate(as_response(self._answers.pop(0)))


def as_response(answer: dict[str, Any] | str) -> dict[str, Any]:
    """The response to a form."""
    return {"action": answer} if isinstance(answer, str) else {"action": "accept", "content": answer}


@asynccontextmanager
async def connected(url: str, person: Any = None, *, key: str = "") -> AsyncIterator[ClientSession]:
    """A client with a handshake; it has elicitation if there is a person."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60, headers=headers) as http,
        streamable_http_client(f"{url}/mcp", http_client=http) as (read, write, _),
        ClientSession(read, write, elicitation_callback=person) as session,
    ):
        await session.initialize()
        yield session


ACCEPT = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": FORMS,
        "clientInfo": {"name": "plain", "version": "1"},
    },
}


def begun(http: httpx.Client, **headers: str) -> dict[str, str]:
    """Begin a session over plain HTTP; the headers of its further requests."""
    sent = {**ACCEPT, **headers}
    answered = http.post("/mcp", json=INITIALIZE, headers=sent)
    session = {**sent, "mcp-session-id": answered.headers["mcp-session-id"]}
    http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    return session


def calling(text: str, session: str) -> dict[str, Any]:
    """A call in a session over plain HTTP."""
    params = {"name": "parrot", "arguments": {"input": text, "session": session}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def cancel(session: ClientSession, request_id: int) -> None:
    """Cancel a request."""
    params = types.CancelledNotificationParams(requestId=request_id)
    await session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition, half a minute at most."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def request(method: str, capabilities: Mapping[str, Any] = FORMS, **params: Any) -> dict[str, Any]:
    """A request without a handshake."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": dict(capabilities),
        **params.pop("meta", {}),
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


def headers_of(message: Mapping[str, Any]) -> dict[str, str]:
    """The headers that repeat a request's version, method and name."""
    params = message["params"]
    name = params.get("name") or params.get("uri")
    return {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": message["method"],
        **({"mcp-name": name} if name else {}),
    }


def messages_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The messages of a response."""
    if response.headers["content-type"] == "application/json":
        return [response.json()]
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def post(http: httpx.Client, method: str, *, key: str = "", **params: Any) -> list[dict[str, Any]]:
    """The messages of the response to a request without a handshake; the last one has the result."""
    message = request(method, **params)
    keys = {"x-api-key": key} if key else {}
    return messages_of(http.post("/mcp", json=message, headers={**headers_of(message), **keys}))


def call(http: httpx.Client, text: str, session: str | None = None, **params: Any) -> dict[str, Any]:
    """The result of a call without a handshake, or its error."""
    arguments = {"input": text, **({"session": session} if session else {})}
    answered = post(http, "tools/call", name="parrot", arguments=arguments, **params)[-1]
    found: dict[str, Any] = answered.get("result") or answered["error"]
    return found


def questions(result: Mapping[str, Any]) -> Sequence[str]:
    """The keys of the forms that a call needs."""
    return [*result["inputRequests"]]


@tool
def shout(text: str) -> str:
    """Print a text, and read standard input, as a careless tool does."""
    print(text, flush=True)  # noqa: T201 - that is the point
    os.system(f"echo {text}")
    return f"read {sys.stdin.read()!r}"
