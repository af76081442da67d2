"""Tools: how one is described, called and retried, and which part of its output the model reads."""
