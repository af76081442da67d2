"""Exports A2A's public names: `graph_agent.a2a.server` serves agents, `graph_agent.A2ADelegate` calls remote ones."""
