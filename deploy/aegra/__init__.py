"""Aegra: several instances of a server for `langgraph.json`, and a cluster of them on this machine."""
