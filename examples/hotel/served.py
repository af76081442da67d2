"""The hotel agent for `langgraph dev`, which is told of it by `langgraph.json`.

Beside LangGraph's own API, the same server then answers OpenAI's and Anthropic's clients (`/v1`).
"""

from __future__ import annotations

from pathlib import Path

from graph_agent.server import create_app, of_served
from graph_agent.serving import served

make_graph = served(Path(__file__).with_name("agent.yaml"))
app = create_app(of_served(make_graph), mounted=True)
