"""Keeps what is known about the stored messages of a session, so that its next run examines only newer ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from langchain_core.messages import AnyMessage

Facts = dict[str, tuple[list[AnyMessage], Any]]
"""Name of a fact → the oldest messages of a session, and what is known about them. The values are never modified."""


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """The messages that a run has read from its saver, which may be the objects that the session's last run had."""

    count: int
    """Number of messages at the checkpoint from which the run goes on. Later ones are not known to the next run."""
    facts: Facts
    """What is known about them. The session's runs in this process share it, one after the other."""

    def find(self, name: str, history: Sequence[AnyMessage], default: Any = None) -> tuple[int, Any]:
        """Return the number of messages at the begin of a conversation of which a fact is known, and the fact.

        It counts only if the conversation begins with the same objects of which it was recorded; otherwise 0 and the
        default are returned.

        Args:
            name: Name of the fact.
            history: The conversation.
            default: Value for an unknown fact.
        """
        of, fact = self.facts.get(name, ((), default))
        is_known = len(of) <= len(history) and all(map(is_, of, history))
        return (len(of), fact) if is_known else (0, default)
