"""Agents on a cluster of Aegra instances that are killed and paused. `make cluster` runs these tests."""
