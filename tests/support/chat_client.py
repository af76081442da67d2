"""A client of the chat completions and session routes of a server under test."""

from __future__ import annotations

import concurrent.futures
import json
import time
from pathlib import Path
from typing import Any

import httpx

from tests.interfaces.server.process import eventually

CHAT = "/v1/chat/completions"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG image of one pixel, base64."""
ODD = """It's "x" é None\n\t{not: json} 🙂"""
"""A text that is hard to quote, encode and parse."""


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    """A chat request; texts become user messages."""
    listed = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    return {"model": "parrot", "messages": listed, **fields}


def chat(http: httpx.Client, session: str, *messages: Any, **fields: Any) -> httpx.Response:
    """Send a chat request in a session."""
    return http.post(CHAT, json=body(*messages, **fields), headers={"X-Session-Id": session})


def answer(response: httpx.Response) -> str:
    """The text of a chat response."""
    return str(response.json()["choices"][0]["message"]["content"])


def events(http: httpx.Client, session: str, **params: Any) -> list[dict[str, Any]]:
    """The events of a session."""
    found: list[dict[str, Any]] = http.get(f"/memory/sessions/{session}/events", params=params).json()["events"]
    return found


def wait_for_event(http: httpx.Client, session: str, event_type: str, count: int = 1) -> None:
    """Wait until a session's history has an event of a type."""

    def is_there() -> bool:
        found = http.get(f"/memory/sessions/{session}/events", params={"type": event_type})
        return found.is_success and len(found.json()["events"]) >= count

    eventually(is_there)


def slow_tool_orders(folder: Path) -> str:
    """A message that makes the parrot call a tool that waits for the file `go`, and then another."""
    return f'!call wait_for {{"file": "{folder / "go"}"}}\n!then look_up {{"key": "k"}}'


def is_up(url: str) -> bool:
    """Whether a server accepts connections."""
    try:
        httpx.get(f"{url}/health", trust_env=False, verify=False)
    except httpx.HTTPError:
        return False
    return True


def wait_for_slow_tool(folder: Path) -> None:
    """Wait until the tool of `slow_tool_orders` runs; its `tool_call` event is recorded before it starts."""
    pid = folder / "go.pid"
    eventually(lambda: pid.exists() and pid.read_text())


def send_until_accepted(url: str, text: str) -> None:
    """Send one message to the session `shared`, and retry on a new connection while it is busy."""
    while True:
        with httpx.Client(base_url=url, trust_env=False, verify=False, timeout=60) as http:
            response = chat(http, "shared", text)
        if response.status_code == 200:
            return
        assert response.status_code == 429
        time.sleep(0.02)


def abort_through_other_process(url: str, folder: Path, pool: concurrent.futures.Executor) -> str:
    """Abort a run over 20 connections, so that some reach another process; return the session's status."""
    running = pool.submit(
        httpx.post,
        f"{url}{CHAT}",
        json=body(slow_tool_orders(folder)),
        headers={"X-Session-Id": "far"},
        timeout=60,
        trust_env=False,
        verify=False,
    )
    with httpx.Client(base_url=url, trust_env=False, verify=False, timeout=60) as http:
        wait_for_event(http, "far", "tool_call")
    seen: list[str] = []
    for _ in range(20):
        with httpx.Client(base_url=url, trust_env=False, verify=False, timeout=60) as http:
            seen.append(http.get("/sessions/far").json()["status"])
            http.post("/sessions/far/abort")
    assert seen, json.dumps(seen)
    running.result()
    with httpx.Client(base_url=url, trust_env=False, verify=False, timeout=60) as http:
        return str(http.get("/sessions/far").json()["status"])
