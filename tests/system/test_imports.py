"""Modules loaded on import: only those that the used names need."""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from pydantic import TypeAdapter

import graph_agent.approvals
import graph_agent.session.results
from graph_agent import AgentContext, LoopConfig, SessionStatus

EVERY_NAME = "import graph_agent\nfor name in graph_agent.__all__: name == 'GraphAgent' or getattr(graph_agent, name)"
"""Loads each public name but the class of a built agent, which needs what the agent needs."""
COLLECTIONS = """
import gc, json, sys
import graph_agent
began, before = [], len(sys.modules)
gc.callbacks.append(lambda phase, info: began.append(info["generation"]) if phase == "start" else None)
graph_agent.create_graph_agent
print(json.dumps([len(began), len(sys.modules) - before]))
"""
BUILT_ON = {"langgraph", "langchain_core"}
NEVER = {
    *("a2a", "aiosqlite", "fastapi", "google", "grpc", "jinja2", "json_repair", "jsonschema", "langchain"),
    *("langchain_openai", "mcp", "openai", "psycopg", "referencing", "regex", "sqlalchemy", "sqlite3"),
    *("starlette", "typer", "uvicorn", "yaml"),
}
"""Distributions that no public name needs before it is called."""
OPTIONAL = {
    *("acp", "ag_ui", "mcp.client.session", "mcp.server.lowlevel", "mcp.types", "opentelemetry.exporter", "restate"),
    *(
        "graph_agent.interfaces.engines",
        "graph_agent.integrations.mcp.manager",
        "graph_agent.integrations.otel.observer",
    ),
    *(
        "graph_agent.interfaces.server.agui",
        "graph_agent.core.extensions.skill_folder",
        "graph_agent.core.extensions.skills",
        "graph_agent.devtools",
        "graph_agent.web.page",
    ),
    *("graph_agent.integrations.workspace.folder", "graph_agent.integrations.workspace.tools"),
}
"""Modules of features that are off by default, and of their extras; each is loaded when its feature is used."""
NEVER_AT_SERVE = OPTIONAL | {
    *("a2a", "google", "grpc", "jsonschema", "langchain", "langchain_mcp_adapters", "langchain_openai", "numpy"),
    *("openai", "psycopg", "referencing", "sqlalchemy"),
    *("langgraph_sdk.client", "langsmith.types.run", "mcp.server.session", "mcp.types"),
    *(
        f"graph_agent.interfaces.server.{name}"
        for name in ("anthropic_messages", "openai_chat", "responses.routes", "sessions")
    ),
    *(
        "graph_agent.interfaces.server.a2a.app",
        "graph_agent.integrations.mcp.manager",
        "graph_agent.interfaces.server.a2a.mount",
    ),
}
"""Modules that `graph-agent serve` does not load before its first request but for `/ready`, without MCP servers."""
AT_FIRST_USE = {
    *("base.approvals.decisions", "base.approvals.text", "session.assembly", "session.compiled"),
    *(
        "integrations.delegates.graph",
        "core.extensions.delegation",
        "core.execution.ledger",
        "session.deduplicator",
        "models.stream_watch",
        "models.wire.parsing.calls",
        "models.prompts",
        "session.interrupts",
    ),
    *("session.stream_parts", "core.state.custom_state", "core.state.schema", "base.usage"),
}
"""Modules of the package that no public name needs before an agent is built or run."""


def loaded_by(code: str) -> set[str]:
    """The modules that a new process has loaded once it has run some code."""
    (loaded,) = loaded_after(code)
    return loaded


def loaded_after(*pieces: str) -> list[set[str]]:
    """The modules that a new process has loaded after each piece of code."""
    code = "\n".join(f"{piece}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))" for piece in pieces)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return [set(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "code",
    [
        "import graph_agent",
        "from graph_agent import LoopConfig; LoopConfig(max_steps=3)",
        "from graph_agent import AgentContext; AgentContext(max_steps=3)",
        "from graph_agent import SessionStatus",
    ],
)
def test_modules_without_langgraph_do_not_import_it(code: str) -> None:
    assert {name.partition(".")[0] for name in loaded_by(code)} & (BUILT_ON | NEVER) == set()


def test_public_names_and_an_agent_that_is_built_load_no_more_than_they_need() -> None:
    built = "graph_agent.create_graph_agent(graph_agent.ScriptedChatModel([]))"
    loaded, with_agent = loaded_after(EVERY_NAME, built)

    heavy = {"langgraph.prebuilt", *(f"graph_agent.{name}" for name in AT_FIRST_USE)}
    distributions = {name.partition(".")[0] for name in loaded}
    assert (distributions & NEVER, loaded & heavy, (loaded | with_agent) & OPTIONAL) == (set(), set(), set())


def test_importing_a_public_name_collects_no_garbage_before_its_end() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTIONS], capture_output=True, text=True, check=True, timeout=120)

    began, imported = json.loads(done.stdout)
    # Without the pause, there are about 200 collections, one of which traverses all objects.
    assert (began <= 1, imported > 500) == (True, True)


def test_a_server_that_is_ready_has_loaded_no_more_than_its_start_needs(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("name: a\nmodel: 'model:make'\n")
    (tmp_path / "model.py").write_text("import graph_agent\nmake = lambda: graph_agent.ScriptedChatModel([])\n")
    code = (
        "import json, signal, sys\n"
        "from graph_agent.interfaces.cli.app import main\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print(json.dumps(sorted(sys.modules)), flush=True))\n"
        f"sys.argv = ['', 'serve', '--config', r'{tmp_path / 'agent.yaml'}', '--port', '0', '--db', 'memory:']\n"
        "main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        [url] = next(filter(None, (re.findall(r"running on (http://\S+)", line) for line in process.stderr)))
        ready = urllib.request.urlopen(f"{url}/ready", timeout=60).status
        process.send_signal(signal.SIGUSR1)
        loaded = set(json.loads(process.stdout.readline()))
        process.terminate()
        process.communicate(timeout=60)

    assert (ready, NEVER_AT_SERVE & loaded) == (200, set())


def test_a_deferred_package_has_its_names_at_their_first_access() -> None:
    loaded = loaded_by(
        "from graph_agent.base._internal.extras import PACKAGES, defer_packages; defer_packages()\n"
        "import langgraph_sdk, langsmith.types, mcp, mcp.types, sqlite_vec\n"
        "import sys; assert 'mcp.server.session' not in sys.modules and 'numpy' not in sys.modules\n"
        "from langgraph_sdk import get_client\n"
        "from langsmith.types import Run\n"
        "from mcp.server.fastmcp import FastMCP\n"
        "assert mcp.ClientSession and sqlite_vec.load and mcp.server.fastmcp.FastMCP is FastMCP\n"
    )

    assert {"langgraph_sdk.client", "langsmith.types.run", "mcp.client.session"} <= loaded


@pytest.mark.parametrize(
    "module",
    sorted({f"graph_agent.{name}" for name in AT_FIRST_USE} | {name for name in OPTIONAL if "graph_agent" in name}),
)
def test_modules_loaded_at_first_use_exist(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def test_public_names_of_approvals_are_imported_on_access() -> None:
    loaded = loaded_by("import graph_agent.approvals")

    classes = [name for name in graph_agent.approvals.__all__ if name != "Decision"]  # a union has no module
    names = {name: getattr(graph_agent.approvals, name).__module__ for name in classes}
    assert ("graph_agent.base.approvals.decisions" in loaded, names) == (
        False,
        {
            "ApprovalRequest": "graph_agent.base.approvals.requests",
            "HeldCall": "graph_agent.base.approvals.requests",
            "Review": "graph_agent.base.approvals.policy",
            **dict.fromkeys(["approve", "edit", "reject", "respond"], "graph_agent.base.approvals.decisions"),
        },
    )


def test_an_unknown_name_of_approvals_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'graph_agent\.approvals' has no attribute 'approved'"):
        _ = graph_agent.approvals.approved


def test_results_are_one_class_under_each_public_path() -> None:
    assert graph_agent.RunResult is graph_agent.session.results.RunResult


def test_a_star_import_brings_every_public_name() -> None:
    names: dict[str, object] = {}

    exec("from graph_agent import *", names)

    assert set(graph_agent.__all__) <= names.keys()


@pytest.mark.parametrize("module", ["graph_agent", "graph_agent.approvals"])
def test_a_package_lists_its_public_names_before_their_first_use(module: str) -> None:
    code = f"import {module} as package; assert set(package.__all__) <= set(dir(package)), dir(package)"

    assert module in loaded_by(code)


def test_results_have_a_schema() -> None:
    schema = TypeAdapter(graph_agent.RunResult).json_schema()

    assert schema["properties"]["truncated"]["anyOf"] == [
        {"enum": ["length", "content_filter", "interrupted"], "type": "string"},
        {"type": "null"},
    ]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'graph_agent' has no attribute 'create_agent'"):
        _ = graph_agent.create_agent


@pytest.mark.parametrize(
    "value", [LoopConfig(max_steps=3), AgentContext(max_steps=3), SessionStatus.COMPLETED], ids=repr
)
def test_values_are_pickled(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


def test_fields_of_the_configuration_have_their_docstrings_as_descriptions() -> None:
    properties = LoopConfig.model_json_schema()["properties"]

    assert [name for name, schema in properties.items() if not schema.get("description")] == []
    assert properties["tool_timeout_s"]["description"] == (
        "Seconds that one attempt of a call may run, counted from its start; None for no limit."
    )
