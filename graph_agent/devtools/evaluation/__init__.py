"""Exports the cases of an evaluation, and the functions that read and write their files."""
