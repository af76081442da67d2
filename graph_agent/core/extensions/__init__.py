"""Holds what the program extends the loop by: tools, skills, hooks, and the protocols of delegates and memories."""
