"""The generated files, by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from graph_agent.agent_file.editor_schema import schema_text
from scripts.reference import agent_file, cli, config, environment, events, http, metrics, model_rules, stability
from scripts.reference.source import ROOT as ROOT

FILES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "graph_agent/spec/agent.schema.json": schema_text,
        "docs/reference/agent-file.md": agent_file.page,
        "docs/reference/cli.md": cli.page,
        "docs/reference/config.md": config.page,
        "docs/reference/environment.md": environment.page,
        "docs/reference/events.md": events.page,
        "docs/reference/http.md": http.page,
        "docs/reference/metrics.md": metrics.page,
        "docs/reference/model-rules.md": model_rules.page,
        stability.PATH: stability.page,
    }
)
"""Path from the root of the checkout → function that returns the file's text."""
