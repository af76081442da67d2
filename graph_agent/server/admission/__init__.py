"""Admission of requests: keys, origins, limits, and the errors for requests that are refused."""
