"""Inputs with an id: each runs once, and its repetition returns the stored answer."""
