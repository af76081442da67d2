"""Savers and stores in SQLite, PostgreSQL and memory."""

from __future__ import annotations

from graph_agent.persistence.open import check_cache, open_cache, open_saver, open_store, strict_serializer

__all__ = ["check_cache", "open_cache", "open_saver", "open_store", "strict_serializer"]
