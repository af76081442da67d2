"""Generated files: the reference pages in `docs/reference/`, and the JSON schema of the agent file."""
