"""Serves an agent to editors over the Agent Client Protocol, ACP (extra `acp`)."""
