"""Selects the calls that wait for a person, builds the request to the person, and reads the decisions."""
