"""Defines errors of requests, with kinds and HTTP statuses, and the error responses of each API."""
