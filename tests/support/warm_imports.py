"""The imports of warm processes, see `warm_process`: all modules of the package, and libraries imported on demand.

What a program computes once and keeps is computed here too: schemas of pydantic, the table of commands, patterns, and
what a conversation and a server prepare at their first use.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import pkgutil
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from unittest import mock

import langsmith.utils

import graph_agent
from graph_agent.base._internal import sync_bridge
from graph_agent.base._internal.extras import defer_packages

_LIBRARIES = (
    "aiosqlite",
    "anyio._backends._asyncio",
    "dateutil.parser",
    "fastapi.telemetry._runtime",
    "holidays",
    "httpcore",
    "langchain.agents",
    "langchain_core.messages.block_translators.langchain_v0",
    "langchain_core.tracers.context",
    "langchain_core.tracers.run_collector",
    "langchain_core.tracers.stdout",
    "langchain_openai",
    "langgraph.store.memory",
    "mcp.server.fastmcp",
    "openai.resources.chat.completions",
    "prompt_toolkit.input.vt100",
    "prompt_toolkit.key_binding.bindings.search",
    "psycopg_pool",
    "rich.logging",
    "rich.scope",
    "rich.traceback",
    "sqlalchemy.dialects.sqlite",
    "truststore",
    "typer._adapters",
    "typer._click.decorators",
    "typer.main",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
)

defer_packages()  # sqlite_vec imports numpy, whose threads do not survive a fork
_MODULES = (module.name for module in pkgutil.walk_packages(graph_agent.__path__, "graph_agent."))
for _name in (*_LIBRARIES, *(name for name in _MODULES if not name.endswith("__main__"))):
    with contextlib.suppress(ImportError):  # an extra that is not installed
        import_module(_name)


def _make_schemas() -> None:
    """Make the schemas that pydantic makes when a model is used for the first time."""
    from pydantic import BaseModel

    models = list(BaseModel.__subclasses__())
    while models:
        model = models.pop()
        models += model.__subclasses__()
        if model.__module__.startswith("graph_agent.") and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)


def _make_commands() -> None:
    """Keep the table of commands, which typer makes from the signatures of all functions at each start."""
    from typer import main

    from graph_agent.interfaces.cli.app import app

    main.get_command = functools.cache(main.get_command)
    main.get_command(app)


async def _converse(folder: Path) -> None:
    """Ask agents of each way to call tools, with sessions in a database."""
    from langgraph.checkpoint.memory import InMemorySaver

    from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
    from graph_agent.persistence import open_saver, open_store
    from tests.support.agents import ECHO_SCRIPT, echo

    url = f"sqlite:///{folder / 'sessions.db'}"
    async with open_saver(url) as saver, open_store(url) as store:
        for number, script in enumerate((ECHO_SCRIPT, ["Hello."])):
            model = ScriptedChatModel(script)
            stored = create_graph_agent(model, [echo], checkpointer=saver, store=store)
            await Session(stored, f"s{number}").run("hello")
        model, config = ScriptedChatModel(["Hello."], cycle=True), LoopConfig(tool_calling="wave")
        await Session(create_graph_agent(model, config=config, checkpointer=InMemorySaver()), "s").run("hello")


async def _serve(folder: Path) -> None:
    """Answer a request at each API of an agent file's server."""
    import httpx

    from graph_agent.server import create_app, of_file

    (folder / "agent.yaml").write_text("name: warm\nmodel: openai:gpt-4o-mini\n")
    app = create_app(of_file(folder / "agent.yaml"), db=f"sqlite:///{folder / 'served.db'}")
    asked = {"model": "warm", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http,
    ):
        (await http.get("/ready")).raise_for_status()
        for path in ("/v1/chat/completions", "/v1/messages"):
            for stream in (False, True):
                (await http.post(path, json={**asked, "stream": stream})).raise_for_status()
        (await http.post("/v1/responses", json={"model": "warm", "input": "hello"})).raise_for_status()


def _warm_up() -> None:
    idle_s, sync_bridge._IDLE_S = sync_bridge._IDLE_S, 0.05
    variables = {"DEBUG_MOCK_RESPONSES": json.dumps(["Hello."] * 20), "LANGSMITH_TRACING": "false"}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, variables):
        asyncio.run(_converse(Path(folder)))
        with contextlib.suppress(ImportError):  # an extra that is not installed
            asyncio.run(_serve(Path(folder)))
    deadline = time.monotonic() + 60
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    sync_bridge._IDLE_S = idle_s
    # A process may have other variables than this one.
    tempfile.tempdir = None
    for name in ("get_env_var", "get_tracer_project"):
        getattr(langsmith.utils, name).cache_clear()
    assert threading.active_count() == 1, f"a process with threads cannot be forked safely: {threading.enumerate()}"


_make_schemas()
with contextlib.suppress(ImportError):
    _make_commands()
    from graph_agent.base._internal.secrets import mask_secrets

    mask_secrets("")
_warm_up()
gc.collect()
# Collections would write to the pages that the processes share.
gc.freeze()
