"""Runs delegates: a compiled graph in the same process, or a remote agent over A2A."""
