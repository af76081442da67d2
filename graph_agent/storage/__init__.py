"""Stores checkpoints, prunes them, locks sessions, and admits each input once."""
