"""Stores checkpoints, and prunes them."""
