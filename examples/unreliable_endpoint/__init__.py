"""An endpoint of a model that fails on purpose, for the guide on model endpoints."""
