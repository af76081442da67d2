"""Exports the memory of facts across sessions; needs the extra `memory`."""

from __future__ import annotations

from graph_agent.integrations.memory.facts import Fact as Fact
from graph_agent.integrations.memory.facts import Memory as Memory
from graph_agent.integrations.memory.facts import UnknownFactError as UnknownFactError
from graph_agent.integrations.memory.open import open_memory as open_memory

__all__ = ["Fact", "Memory", "UnknownFactError", "open_memory"]
