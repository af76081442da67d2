"""A client of the machines, which retries an input until it is answered, and records the acknowledged replies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from tests.attack.machines import LoadBalancer, Machine
from tests.attack.oracle import Record, answer_to

_CHAT = "/v1/chat/completions"
_SILENCE_S = 8.0
"""Seconds without a byte after which a client gives a machine up. A running one sends a comment every second."""
_AGAIN_S = 0.2


class CutOffError(Exception):
    """A request that has no answer: refused, failed or cut off."""


@dataclass
class Recoveries:
    """Seconds from a fault of a machine until the input it worked on is answered by another one."""

    kills: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    """Of the database; recoveries during which it restarted are counted here."""
    restarted_at: float = 0.0
    """Monotonic time at which the database was stopped last."""

    def note(self, machine: Machine, sent_at: float) -> None:
        """Record an answer now to an input that was sent to a machine, and got none from it."""
        now = time.monotonic()
        if self.restarted_at > sent_at:
            self.restarts.append(now - self.restarted_at)
        elif machine.killed_at > sent_at:
            self.kills.append(now - machine.killed_at)
        elif machine.paused_at > sent_at:
            self.pauses.append(now - machine.paused_at)


@dataclass(frozen=True)
class Stored:
    """A session, read through the API."""

    status: str
    waiting: str | None
    """What it waits for; None for nothing."""
    messages: list[BaseMessage]
    """Its events, as messages for the oracle."""


class Customer:
    """The client of one session.

    Args:
        session: The session.
        machines: The load balancer.
        http: The client.
        record: Where it records acknowledged answers.
        recoveries: Where it records how long faults took.
    """

    def __init__(
        self,
        session: str,
        machines: LoadBalancer,
        http: httpx.AsyncClient,
        record: Record,
        recoveries: Recoveries,
    ) -> None:
        self.session = session
        self._machines = machines
        self._http = http
        self._record = record
        self._recoveries = recoveries

    async def take_turn(self, text: str) -> None:
        """Send an input, with its idempotency key, until it is answered, a person's answer included."""
        lost: tuple[Machine, float] | None = None
        answer: str | None = None
        while answer is None:
            machine, sent_at = await self._machines.choose(), time.monotonic()
            try:
                answer = await self._step(machine, text)
            except (CutOffError, httpx.HTTPError) as error:
                self._record.errors[type(error).__name__] += 1
                lost = lost or (machine, sent_at)
                await asyncio.sleep(_AGAIN_S)
        self._record.note(self.session, text, {"answer": answer})
        if lost is not None:
            self._recoveries.note(*lost)

    async def _step(self, machine: Machine, text: str) -> str | None:
        """Send the input; return its answer, None after an answer to its question."""
        answer = await self._chat(machine, text)
        if not text.startswith("ask ") or answer == answer_to(text):
            return answer
        await self._json(machine, "POST", f"/sessions/{self.session}/resume", json={"answer": "yes"})
        return None

    async def _chat(self, machine: Machine, text: str) -> str:
        body = {"model": "cashier", "stream": True, "messages": [{"role": "user", "content": text}]}
        headers = {"X-Session-Id": self.session, "Idempotency-Key": text}
        answer, done = "", False
        async with self._http.stream("POST", f"{machine.url}{_CHAT}", json=body, headers=headers) as response:
            if response.status_code != 200:
                raise CutOffError(f"{response.status_code}: {await response.aread()!r}")
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    done = True
                    break
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise CutOffError(str(chunk["error"]))
                answer += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        if not done:
            raise CutOffError("the stream has no end")
        return answer

    async def read(self) -> Stored:
        """What the session's history holds."""
        while True:
            machine = await self._machines.choose()
            try:
                state = await self._json(machine, "GET", f"/sessions/{self.session}")
                found = await self._json(machine, "GET", f"/memory/sessions/{self.session}/events")
            except (CutOffError, httpx.HTTPError):
                await asyncio.sleep(_AGAIN_S)
            else:
                return Stored(state["status"], state["waiting"], messages_of(found["events"]))

    async def _json(self, machine: Machine, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = await self._http.request(method, f"{machine.url}{path}", **options)
        if not response.is_success:
            raise CutOffError(response.text)
        found: dict[str, Any] = response.json()
        return found


def new_client() -> httpx.AsyncClient:
    """An HTTP client for many sessions."""
    timeout = httpx.Timeout(30, read=_SILENCE_S, connect=_SILENCE_S)
    return httpx.AsyncClient(trust_env=False, verify=False, timeout=timeout, limits=httpx.Limits(max_connections=None))


def messages_of(events: Sequence[dict[str, Any]]) -> list[BaseMessage]:
    """A session's events as messages, for the oracle."""
    found: list[BaseMessage] = []
    for event in events:
        kind = event["type"]
        if kind == "user_message":
            found.append(HumanMessage(event["content"]))
        elif kind == "tool_call":
            call = {"id": event["id"], "name": event["name"], "args": event["arguments"], "type": "tool_call"}
            if found and isinstance(found[-1], AIMessage) and found[-1].tool_calls:
                found[-1].tool_calls.append(call)  # type: ignore[arg-type]  # it is one
            else:
                found.append(AIMessage("", tool_calls=[call]))
        elif kind == "tool_result":
            found.append(ToolMessage(event["content"], tool_call_id=event["id"]))
        elif kind == "agent_response":
            found.append(AIMessage(event["content"]))
    return found
