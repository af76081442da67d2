"""Defines the session's history: its events, and the events of calls, plans and approvals."""
