"""The hotel agent for `langgraph dev`, which is told of it by `langgraph.json`."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette

from graph_agent.serving import served

make_graph = served(Path(__file__).with_name("agent.yaml"))
app = Starlette(lifespan=make_graph.lifespan)
