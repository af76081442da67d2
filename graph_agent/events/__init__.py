"""The session's history: event types, events of calls, and queries over them."""
