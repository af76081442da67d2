"""A2A on the server: mounted with the chat APIs, or standalone."""
