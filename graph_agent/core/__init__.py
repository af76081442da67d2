"""Runs the loop: planning, execution of calls, extensions such as tools and hooks, and the state of sessions."""
