"""A recipe: a coding agent whose changes and commands a person approves."""
