"""Exports the events of a session: `graph_agent.state.events`."""
