"""Exports metrics and checks readiness."""
