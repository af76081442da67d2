"""Deletion of expired responses by a real server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from graph_agent.interfaces.server.responses.records import delete_expired
from graph_agent.persistence import open_store
from graph_agent.server import ServerSettings
from tests.interfaces.server.process import eventually, serving

DAY_S = 86_400


def test_a_server_deletes_responses_older_than_response_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day's responses are deleted, with their events and keys, when all of them are older than `response_s`."""
    old, kept = (f"{int(time.time()) - days * DAY_S:08x}{'0' * 16}" for days in (12, 8))
    asyncio.run(store_responses(f"sqlite:///{tmp_path / 'sessions.db'}", [old, kept]))
    with (
        serving(tmp_path, "--set", f"response_s={10 * DAY_S}") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        keyed = client.with_options(default_headers={"Idempotency-Key": "one"})
        new = keyed.responses.create(model="parrot", input="one")
        with server.http() as http:
            eventually(lambda: http.get(f"/v1/responses/resp_{old}").status_code == 404)
        with pytest.raises(openai.BadRequestError, match="not found"):
            client.responses.create(model="parrot", input="two", previous_response_id=f"resp_{old}")
        found = [client.responses.retrieve(id_).id for id_ in (f"resp_{kept}", new.id)]
    left = asyncio.run(stored(f"sqlite:///{tmp_path / 'sessions.db'}"))

    assert (found, left) == ([f"resp_{kept}", new.id], ["response_keys", *["responses"] * 4])
    later_s = time.time() + 12 * DAY_S
    monkeypatch.setattr(time, "time", lambda: later_s)
    assert asyncio.run(stored_after_expiry(f"sqlite:///{tmp_path / 'sessions.db'}")) == []


async def store_responses(url: str, tokens: list[str]) -> None:
    """Store responses, each with a batch of events, as a server at their time would have."""
    async with open_store(url) as store:
        for token in tokens:
            day = time.strftime("%Y%m%d", time.gmtime(int(token[:8], 16)))
            response: Any = {"id": f"resp_{token}", "object": "response", "status": "completed", "created_at": 0}
            response |= {"model": "parrot", "background": True, "output": []}
            record = {"response": response, "input": [], "session": "s", "calls": {}, "checkpoint": None}
            await store.aput(("graph_agent", "responses", day), f":{token}", record, index=False)
            events = ("graph_agent", "responses", day, "events")
            await store.aput(events, f":{token}:000000", {"events": []}, index=False)


async def stored(url: str) -> list[str]:
    """The kinds of the stored entries of responses."""
    async with open_store(url) as store:
        found = await store.asearch(("graph_agent",), limit=100)
        return sorted(item.namespace[1] for item in found if item.namespace[1].startswith("response"))


async def stored_after_expiry(url: str) -> list[str]:
    async with open_store(url) as store:
        host: Any = SimpleNamespace(store=store, settings=ServerSettings(response_s=10 * DAY_S))
        await delete_expired(host)
    return await stored(url)
