"""A2A on the server: mounted beside the chat APIs, or alone."""
