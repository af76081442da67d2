"""Validates and opens the agent file; `graph_agent.spec` has the public names."""
