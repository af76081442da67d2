"""Serves an agent over AG-UI, the protocol between agents and user interfaces (extra `agui`)."""
