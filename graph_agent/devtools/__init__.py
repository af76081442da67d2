"""Tests, recordings, replays and evaluations of agents."""
