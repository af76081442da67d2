"""Runs the program `graph-agent`: `python -m graph_agent.cli`."""
