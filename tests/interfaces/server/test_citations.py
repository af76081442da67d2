"""The sources that a tool of the provider has found, in the answers of the chat APIs and on a terminal."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from graph_agent.server import create_app, of_file
from tests.support.cli import run_cli

MODEL = """
from langchain_core.messages import AIMessage
from graph_agent import ScriptedChatModel

SOURCE = {"type": "citation", "url": "https://tea.example", "title": "Tea", "start_index": 0, "end_index": 5}
BLOCKS = [
    {"type": "server_tool_call", "id": "s1", "name": "web_search", "args": {"query": "tea"}},
    {"type": "server_tool_result", "tool_call_id": "s1", "status": "success", "output": "Assam"},
    {"type": "text", "text": "Assam grows tea.", "annotations": [SOURCE]},
]

def make():
    return ScriptedChatModel([AIMessage(BLOCKS)], cycle=True)
"""
URL = "https://tea.example"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.yaml").write_text(
        "name: tea\nmodel: my_model:make\ntools: [{type: web_search}]\ndb: 'memory:'\n"
    )
    (tmp_path / "my_model.py").write_text(MODEL)
    return tmp_path


@asynccontextmanager
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(of_file(folder / "agent.yaml"))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield http


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the objects of a stream."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_completion_has_annotations(folder: Path, stream: bool) -> None:
    body = {"model": "tea", "messages": [{"role": "user", "content": "tea?"}], "stream": stream}
    async with client(folder) as http:
        answer = await http.post("/v1/chat/completions", json=body)

    name, given = ("delta", events(answer)) if stream else ("message", [answer.json()])
    found = [
        choice[name]["annotations"] for each in given for choice in each["choices"] if "annotations" in choice[name]
    ]
    cited = {"url": URL, "title": "Tea", "start_index": 0, "end_index": 5}
    assert found == [[{"type": "url_citation", "url_citation": cited}]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_message_of_anthropics_api_has_citations(folder: Path, stream: bool) -> None:
    asked = [{"role": "user", "content": "tea?"}]
    async with client(folder) as http:
        answer = await http.post(
            "/v1/messages", json={"model": "tea", "max_tokens": 9, "messages": asked, "stream": stream}
        )

    found = (
        [each["delta"]["citation"] for each in events(answer) if each.get("delta", {}).get("type") == "citations_delta"]
        if stream
        else answer.json()["content"][-1]["citations"]
    )
    assert [(each["type"], each["url"], each["title"]) for each in found] == [
        ("web_search_result_location", URL, "Tea")
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_has_annotations(folder: Path, stream: bool) -> None:
    async with client(folder) as http:
        answer = await http.post("/v1/responses", json={"model": "tea", "input": "tea?", "stream": stream})

    response = events(answer)[-1]["response"] if stream else answer.json()
    added = [each["annotation"] for each in events(answer) if each["type"].endswith("annotation.added")]
    cited = {"type": "url_citation", "url": URL, "title": "Tea", "start_index": 0, "end_index": 5}
    assert (response["output"][-1]["content"][0]["annotations"], added) == ([cited], [cited] if stream else [])


def test_a_run_prints_the_call_and_the_sources(folder: Path) -> None:
    done = run_cli(folder, "run", "tea?")

    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["", "> tea?", "Assam grows tea.", "  provider: web_search success", "  [1] Tea - https://tea.example"],
    )
