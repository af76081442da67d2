"""Holds settings, types, errors and helpers that every other room uses."""
