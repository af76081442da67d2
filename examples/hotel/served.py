"""The hotel agent for `langgraph dev`, named in `langgraph.json`.

In addition to LangGraph's API, the server answers OpenAI's and Anthropic's clients (`/v1`); these need a key
if `GRAPH_AGENT_API_KEYS` is set.
"""

from __future__ import annotations

from pathlib import Path

from graph_agent.server import ServerSettings, create_app, of_served, read_keys
from graph_agent.spec.served import served

make_graph = served(Path(__file__).with_name("agent.yaml"))
app = create_app(of_served(make_graph), settings=ServerSettings(keys=read_keys()), mounted=True)
