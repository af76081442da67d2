"""Server start: accepted settings, and errors."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.interfaces.server.settings import describe_settings, settings_from
from graph_agent.server import ServerSettings, create_app, of_agent
from graph_agent.server.serve import STARTUP_FAILURE
from tests.interfaces.server.process import PARROT, refused


def test_an_occupied_port_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        outcome = refused(tmp_path, ["--port", str(port)])

    assert outcome == (
        2,
        f"error: --host 127.0.0.1 --port {port}: Address already in use; take another port.",
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_unbuildable_agent_is_reported(tmp_path: Path, workers: str) -> None:
    agent = {**PARROT, "tools": ["tests.interfaces.server.parrot:lok_up"]}
    options = ["--db", f"sqlite:///{tmp_path}/sessions.db", "--workers", workers]

    status, log = refused(tmp_path, options, agent=agent)

    error = "'tests.interfaces.server.parrot' has no 'lok_up'; did you mean 'look_up'? Known: "
    assert (status, error in log, "Traceback" in log) == (STARTUP_FAILURE, True, False)


def test_the_listed_settings_are_the_accepted_ones() -> None:
    lines = [line for line in describe_settings().splitlines() if not line.startswith(" ")]

    assert settings_from(lines) == ServerSettings()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("max_body_bytes", "--set max_body_bytes: write a setting as 'field=value', e.g. 'max_body_bytes=1000000'."),
        ("keys=x", "--set keys: keys are given in GRAPH_AGENT_API_KEYS or with --keys-file."),
        ("drain_s=[", "--set drain_s=[: the value is no YAML; write e.g. 'cors_origins=[\"https://my.page\"]'."),
        ("drain_s=-1", "ServerSettings: drain_s=-1: Input should be greater than or equal to 0."),
    ],
    ids=["no value", "keys", "no YAML", "out of range"],
)
def test_an_invalid_setting_is_refused(entry: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from([entry])

    assert str(caught.value) == message


async def test_a_program_serves_an_agent_that_its_own_handlers_run_too() -> None:
    agent = create_graph_agent(ScriptedChatModel(["Served.", "Asked."]), name="rooms")
    server = create_app(of_agent(agent, "Books rooms.", db="memory:"))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with server.router.lifespan_context(server):
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/ask")
    async def ask() -> str:
        return (await agent.run("hi")).answer

    app.mount("/agent", server)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
    async with app.router.lifespan_context(app), client as http:
        body = {"model": "rooms", "messages": [{"role": "user", "content": "hi"}]}
        served = (await http.post("/agent/v1/chat/completions", json=body)).json()
        asked = (await http.get("/ask")).json()

    assert (served["model"], served["choices"][0]["message"]["content"], asked) == ("rooms", "Served.", "Asked.")


def test_an_agent_with_a_checkpointer_is_not_served_with_another() -> None:
    agent = create_graph_agent(ScriptedChatModel(["x"]), checkpointer=InMemorySaver())

    with pytest.raises(ConfigError, match="build the agent without checkpointer="):
        of_agent(agent, db="memory:")
