"""A recipe: a supervisor and two specialists."""
