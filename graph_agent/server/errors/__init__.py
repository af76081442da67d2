"""Errors of requests: their kinds and HTTP statuses, and the error responses of each API."""
