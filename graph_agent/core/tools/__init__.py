"""Handles tools: schemas, invocation, retries, and truncation of the output shown to the model."""
