"""Four small tools behind a small model on this machine."""
