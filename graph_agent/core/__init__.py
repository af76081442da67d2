"""Runs the loop: planning, execution of calls, tools, hooks, and the state of sessions."""
