"""Parses tool calls in model text; `graph_agent.calls` has the public names."""
