"""The payments agent for servers that read `langgraph.json`."""

from __future__ import annotations

from pathlib import Path

from graph_agent.spec.served import served

make_graph = served(Path(__file__).with_name("agent.yaml"))
