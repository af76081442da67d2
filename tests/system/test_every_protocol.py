"""One conversation through every protocol of a server, whose views agree with the session's event log."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from a2a.types import Message, Part, Role, SendMessageRequest
from anthropic import Anthropic
from langgraph_sdk import get_client
from openai import OpenAI

from tests.interfaces.server.process import PARROT, Served, eventually, serving
from tests.support.a2a_client import a2a_client
from tests.support.agui import interrupts, post, resume
from tests.support.dev_server import dev_process
from tests.support.event_times import without_times

# Another `langgraph dev` of this group has ended before.
pytestmark = pytest.mark.xdist_group("langgraph_dev")

AGENT = {**PARROT, "config": {"model_retries": 0, "approve": ["look_up"]}}
STEERING = "urn:graph-agent:steering:1"
SERVED = """
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from graph_agent.persistence import open_saver
from graph_agent.spec.served import served

make_graph = served({agent!r})
app = Starlette(lifespan=make_graph.lifespan)


@asynccontextmanager
async def saver():
    async with open_saver({db!r}) as opened:
        yield opened
"""


async def steer(server: Served, session: str, text: str) -> list[str | None]:
    """Steer a session over A2A; return the kinds of the replies."""
    message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)], context_id=session)
    message.extensions.append(STEERING)
    async with a2a_client(server.url) as client:
        return [reply.WhichOneof("payload") async for reply in client.send_message(SendMessageRequest(message=message))]


def followed(http: httpx.Client, session: str, answers: int) -> list[dict[str, Any]]:
    """The events of a session by SSE, until it has as many answers."""
    found: list[dict[str, Any]] = []
    with http.stream("GET", f"/memory/sessions/{session}/events", params={"follow": "true"}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                answers -= found[-1]["type"] == "agent_response"
                if not answers and found[-1]["type"] == "status":
                    break
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, agent=AGENT) as served:
        yield served


async def langgraph_values(folder: Path, session: str) -> dict[str, Any]:
    """The state of a session's thread, read with the LangGraph SDK."""
    db = f"sqlite:///{folder / 'sessions.db'}"
    file = folder / "dev.yaml"
    file.write_text(yaml.safe_dump({**AGENT, "db": db}))
    (folder / "served_parrot.py").write_text(SERVED.format(agent=str(file), db=db))
    graph = {"path": "./served_parrot.py:make_graph"}
    config = {
        "dependencies": ["."],
        "graphs": {"parrot": graph},
        "http": {"app": "./served_parrot.py:app"},
        "checkpointer": {"path": "./served_parrot.py:saver"},
    }
    (folder / "langgraph.json").write_text(json.dumps(config))
    with dev_process(folder, folder / "langgraph.json", {}) as (_, url):
        async with get_client(url=url, api_key=None) as client:
            await client.threads.create(thread_id=session, graph_id="parrot", if_exists="do_nothing")
            values: Any = (await client.threads.get_state(session))["values"]
            return dict(values)


def conversation(messages: list[dict[str, Any]], kind: str) -> list[tuple[str, str]]:
    """The roles and texts of messages, without those of calls."""
    roles = {"human": "user", "ai": "assistant"}
    pairs = [(roles.get(each[kind], str(each[kind])), str(each.get("content") or "")) for each in messages]
    return [(role, text) for role, text in pairs if text not in ("", "I call.")]


async def test_one_conversation_through_every_protocol_is_one_event_log(server: Served, tmp_path: Path) -> None:
    session, go = str(uuid.uuid4()), tmp_path / "go"
    order = f'!call wait_for {{"file": "{go}"}}\n!then look_up {{"key": "k"}}'
    named: Any = {"extra_headers": {"X-Session-Id": session}}
    openai = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    claude = Anthropic(base_url=server.url, api_key="none")
    with openai, claude, server.http() as http, ThreadPoolExecutor() as pool:
        begun = openai.responses.create(model="parrot", input=order, background=True, **named)
        eventually(Path(f"{go}.pid").exists)
        following = pool.submit(followed, http, session, answers=2)
        steered = await steer(server, session, "Please be brief.")
        go.touch()
        eventually(lambda: openai.responses.retrieve(begun.id).status == "completed")
        first = openai.responses.retrieve(begun.id)
        asked = post(http, session, [])
        answered = post(http, session, [], resume=resume(interrupts(asked), {"approved": True}))
        reply: Any = claude.messages.create(
            model="parrot", max_tokens=500, messages=[{"role": "user", "content": "And now?"}], **named
        )
        log = http.get(f"/memory/sessions/{session}/events").json()["events"]
        streamed = following.result(60)
        shown = post(http, session, [])
    values = await langgraph_values(tmp_path, session)

    roles = {"user_message": "user", "steering": "user", "tool_result": "tool", "agent_response": "assistant"}
    logged = [(roles[each["type"]], each["content"]) for each in log if each["type"] in roles]
    texts = [each["content"] for each in log if each["type"] == "agent_response"]
    decisions = [(each["id"], each["decision"]) for each in log if each["type"] == "approval_decision"]
    assert (
        steered,
        [item.type for item in first.output if item.type == "mcp_approval_request"],
        [role for role, _ in logged],
        logged[2],
        decisions,
        without_times(streamed),
        [each["type"] for each in values["events"]],
        conversation(shown[-2]["messages"], "role"),
        conversation(values["messages"], "type"),
        answered[-1]["outcome"],
        reply.content[-1].text,
    ) == (
        ["message"],
        ["mcp_approval_request"],
        ["user", "tool", "user", "tool", "assistant", "user", "assistant"],
        ("user", "Please be brief."),
        [("then1-0", "approve")],
        without_times(log),
        [each["type"] for each in log],
        logged,
        logged,
        {"type": "success"},
        texts[-1],
    )
