"""Handles chat requests from body to outcome, in types that both chat APIs share."""
