"""Calls: run once each, recorded in the effect ledger, and settled after a crash or an edit."""
