"""Runs each input with an id once; its repetition returns the stored answer."""
