"""Stored and background responses of two workers on PostgreSQL: read, cancelled and continued through the other one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.interfaces.server.process import Served, eventually, serving
from tests.support.chat_client import slow_tool_orders, wait_for_slow_tool
from tests.support.postgres_server import on_postgres

pytestmark = [pytest.mark.attack, on_postgres]
_CONNECTIONS = 200
"""More than are needed to reach each worker."""


@contextmanager
def client_of_worker(server: Served, but_not: int) -> Iterator[openai.OpenAI]:
    """A client whose one connection leads to a worker with another process id."""
    for _ in range(_CONNECTIONS):
        # Requests one after the other share a connection. Which kind of HTTP client it is depends on openai's version.
        http = openai.DefaultHttpxClient(trust_env=False, verify=False, timeout=60)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=http) as client:
            try:
                pid = int(client.responses.create(model="parrot", input="!pid", store=False).output_text)
            except openai.APIConnectionError:
                continue  # the connection of a worker that was killed
            if pid != but_not:
                yield client
                return
    raise AssertionError(f"no connection of {_CONNECTIONS} leads to another worker")


def begin(server: Served, folder: Path) -> tuple[str, int]:
    """Start a background response that waits; its id, and the process id of its worker."""
    folder.mkdir()
    body = {"model": "parrot", "input": slow_tool_orders(folder), "background": True}
    with server.http() as http:
        id_ = http.post("/v1/responses", json=body).json()["id"]
    wait_for_slow_tool(folder)
    return id_, int((folder / "go.pid").read_text())


def ended(client: openai.OpenAI, id_: str) -> Any:
    found: list[Any] = []

    def is_over() -> bool:
        found[:] = [client.responses.retrieve(id_)]
        return found[0].status not in ("queued", "in_progress")

    eventually(is_over)
    return found[0]


def test_each_worker_reads_cancels_and_continues_the_responses_of_the_other(postgres_url: str, tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--db", postgres_url) as server:
        waiting, owner = begin(server, tmp_path / "finished")
        with client_of_worker(server, owner) as other:
            running = other.responses.retrieve(waiting).status
            (tmp_path / "finished" / "go").touch()
            *_, last = other.responses.retrieve(waiting, stream=True, starting_after=1)
            answered = other.responses.create(model="parrot", input="on", previous_response_id=waiting).output_text

        cancelled, owner = begin(server, tmp_path / "cancelled")
        with client_of_worker(server, owner) as other:
            statuses = [other.responses.cancel(cancelled).status, other.responses.retrieve(cancelled).status]

        killed, owner = begin(server, tmp_path / "killed")
        with client_of_worker(server, owner) as other:
            os.kill(owner, signal.SIGKILL)
            failed = ended(other, killed)
            continued = other.responses.create(model="parrot", input="and now?", previous_response_id=killed)
        with client_of_worker(server, owner) as third:
            again = third.responses.create(model="parrot", input="on", previous_response_id=continued.id)

    assert (running in ("queued", "in_progress"), last.type, answered.endswith(" / on")) == (
        True,
        "response.completed",
        True,
    )
    assert statuses == ["cancelled", "cancelled"]
    assert (failed.status, f"POST /sessions/{killed}/resume" in failed.error.message) == ("failed", True)
    assert (continued.status, again.output_text.endswith(" / and now? / on")) == ("completed", True)
