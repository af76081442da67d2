"""The paths from which programs import: they stay, and an inner path of an earlier version names the public one."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "a2a.server": ("A2AServer", "a2a_app", "agent_card"),
    "approvals": ("approve", "edit", "reject", "respond"),
    "calls": ("Call", "canonical_arguments", "parse_tool_calls"),
    "cli.__main__": ("main",),
    "compiled": ("CompiledAgentGraph", "GraphAgent"),
    "delegation": ("Delegate", "Delegation", "DelegationResult"),
    "engines.restate": ("agent_object",),
    "engines.restate_worker": ("serve",),
    "errors": ("ConfigError", "DamagedSessionError", "InputError"),
    "evaluation": ("Case", "read_cases"),
    "hooks": ("HookRequest", "LoopHook"),
    "hooks.history_compression": ("HistoryCompression",),
    "hooks.web_search": ("WebSearchInterception",),
    "marks": ("marked",),
    "mcp": ("McpTools", "open_mcp_tools"),
    "otel": ("instrument", "uninstrument"),
    "persistence": ("open_saver", "prune"),
    "server": ("ApiKey", "ServerSettings", "create_app"),
    "server.serve": ("serve",),
    "session.results": ("RunResult",),
    "skills": ("open_skills", "read_skill"),
    "spec": ("load_spec", "open_agent"),
    "spec.served": ("served",),
    "state.events": ("Event",),
    "testing": ("assert_calls", "export_test", "replay"),
    "testing.plugin": ("pytest_addoption",),
    "waves": ("PlanningResult", "check_wave"),
    "workspace": ("Shell", "workspace_tools"),
}
"""Path below `graph_agent` → names that it has at least."""
INNER = {
    "planning.requests": "graph_agent",
    "checkpoints.open": "graph_agent.persistence",
    "server.app": "graph_agent.server",
    "state.schema": "graph_agent.state",
    "_internal.text": "graph_agent",
    "parsing.calls": "graph_agent.calls",
    "approvals.policy": "graph_agent.approvals",
    "core.approvals.requests": "graph_agent.approvals",
    "core.hooks.protocol": "graph_agent.hooks",
    "core.runs.run": "graph_agent",
    "core.tools.invoke": "graph_agent",
    "core.state.events": "graph_agent.state.events",
    "core.waves.schema": "graph_agent.waves",
    "devtools.testing.script": "graph_agent.testing",
    "devtools.evaluation.cases": "graph_agent.evaluation",
    "models.parsing.calls": "graph_agent.calls",
}
"""Path of an earlier version → the public path that the error names."""


@pytest.mark.parametrize("path", PUBLIC)
def test_public_paths_have_their_names(path: str) -> None:
    module = importlib.import_module(f"graph_agent.{path}")

    assert [name for name in PUBLIC[path] if not hasattr(module, name)] == []


@pytest.mark.parametrize("path", INNER)
def test_an_inner_path_of_an_earlier_version_names_the_public_one(path: str) -> None:
    with pytest.raises(ImportError) as raised:
        importlib.import_module(f"graph_agent.{path}")

    assert f"'{INNER[path]}'" in str(raised.value)
