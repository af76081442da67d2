"""Runs the loop: planning, execution of calls, state, tools, approvals, hooks and runs."""
