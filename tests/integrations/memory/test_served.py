"""The facts of an agent that a server answers for: each key reaches its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests.interfaces.server.process import refused, serving
from tests.support.agents import asks
from tests.support.chat_client import chat

AGENT: dict[str, Any] = {"name": "butler", "model": "openai:gpt-4o-mini", "memory": True}
KEYS = {name: f"{name}-0123456789abcdef" for name in ("alice", "alice2")}

BREAKING = """
from pathlib import Path


def embed(texts):
    if Path(__file__).with_name("broken").exists():
        raise RuntimeError("no connection")
    return [[1.0, float(len(text))] for text in texts]


def make():
    return embed
"""


def test_each_key_lists_edits_and_forgets_its_own_facts(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    script = [asks(("c1", "manage_memory", {"content": "Has a cat."})), "Kept.", "A cat.", "Nothing."]

    def ask(http: httpx.Client, name: str, text: str, **body: Any) -> str:
        message = {"model": "butler", "messages": [{"role": "user", "content": text}], **body}
        reply = http.post("/v1/chat/completions", json=message, headers={"x-api-key": KEYS[name]})
        return str(reply.json()["choices"][0]["message"]["content"])

    environment = {"DEBUG_MOCK_RESPONSES": json.dumps(script)}
    options = ["--keys-file", str(tmp_path / "keys")]
    with serving(tmp_path, *options, agent=AGENT, environment=environment) as server, server.http() as http:
        mine: Any
        other: Any
        mine, other = ({"headers": {"x-api-key": KEYS[name]}} for name in KEYS)
        answers = [
            ask(http, "alice", "I have a cat."),
            ask(http, "alice", "What do I have?", metadata={"session_id": "s"}),
            # Nothing in a body names the user.
            ask(http, "alice2", "What do I have?", metadata={"session_id": "s", "caller": "alice"}, caller="alice"),
        ]
        recalls = [
            [
                event["facts"]
                for event in http.get("/memory/sessions/s/events", **each).json()["events"]
                if event["type"] == "recall"
            ]
            for each in (mine, other)
        ]
        [fact] = http.get("/memory/facts", **mine).json()["facts"]
        path = f"/memory/facts/{fact['id']}"
        without_key = http.get("/memory/facts").status_code
        others = [
            http.get("/memory/facts", **other).json()["facts"],
            http.get("/memory/facts", params={"id": fact["id"]}, **other).json()["facts"],
            http.patch(path, json={"content": "Has nothing."}, **other).status_code,
            http.delete(path, **other).status_code,
        ]
        edited = http.patch(path, json={"content": "Has a dog."}, **mine).json()
        found = http.get("/memory/facts", params={"search": "dog"}, **mine).json()["facts"]
        wrong = [
            http.patch(path, json=body, **mine).status_code for body in ({"content": " "}, {"content": "x" * 2_001}, {})
        ]
        forgotten = http.delete(path, **mine).status_code
        tombstone = http.get("/memory/facts", params={"id": recalls[0][0]}, **mine).json()["facts"]
        left = http.get("/memory/facts", **mine).json()["facts"]

    assert (answers, recalls) == (["Kept.", "A cat.", "Nothing."], [[[fact["id"]]], []])
    assert (without_key, others) == (401, [[], [], 404, 404])
    assert (edited["content"], [each["content"] for each in found], wrong) == ("Has a dog.", ["Has a dog."], [400] * 3)
    assert (forgotten, left) == (204, [])
    assert [(each["id"], each["content"], each["forgotten"]) for each in tombstone] == [(fact["id"], "", True)]


def test_a_memory_on_a_server_without_keys_is_refused(tmp_path: Path) -> None:
    status, message = refused(tmp_path, ["--db", "memory:"], agent=AGENT)

    assert status != 0
    assert "memory: this server has no API keys" in message


def test_a_failed_embedding_model_is_a_502_and_facts_stay_readable(tmp_path: Path) -> None:
    (tmp_path / "my_embeddings.py").write_text(BREAKING)
    agent = {**AGENT, "memory": {"embedding": "my_embeddings:make", "dims": 2}}
    script = [asks(("c1", "manage_memory", {"content": "Has a cat."})), "Kept."]
    environment = {"DEBUG_MOCK_RESPONSES": json.dumps(script), "GRAPH_AGENT_API_KEYS": f"alice:{KEYS['alice']}"}
    with (
        serving(tmp_path, agent=agent, environment=environment) as server,
        server.http(headers={"x-api-key": KEYS["alice"]}) as http,
    ):
        chat(http, "s", "I have a cat.", model="butler")
        [fact] = http.get("/memory/facts").json()["facts"]
        (tmp_path / "broken").touch()
        search = http.get("/memory/facts", params={"search": "cat"})
        edit = http.patch(f"/memory/facts/{fact['id']}", json={"content": "Has a dog."})
        listed = http.get("/memory/facts").json()["facts"]
        forgotten = http.delete(f"/memory/facts/{fact['id']}").status_code

    assert ([search.status_code, edit.status_code], listed, forgotten) == ([502] * 2, [fact], 204)
    assert search.json()["error"] == "The embedding model of the memory did not answer; try again later."
