"""Provides tests, recordings, replays and evaluations of agents."""
