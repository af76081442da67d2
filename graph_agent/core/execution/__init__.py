"""Executes calls: the effect ledger, delegations, and settlement after a crash or an edit."""
