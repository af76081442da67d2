"""The replies of the scripted models and the tool, for every framework; needs no package."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

REPLY = "Looking the next key up, as the question needs its value before an answer is possible. ".ljust(200, ".")
"""The text of every reply."""
RESULT_CHARS = 1_000
"""Length of a tool result."""


@dataclass
class Script:
    """The replies of one session."""

    turns: int
    calls: int = 0
    stamps: list[float] = field(default_factory=list)
    """CPU time of the process at each model call, in seconds."""


script: ContextVar[Script] = ContextVar("script")
"""The script of the current session."""


def next_key() -> str | None:
    """Return the argument of the session's next tool call; None if its model answers now."""
    own = script.get()
    own.calls += 1
    own.stamps.append(time.process_time())
    return f"k{own.calls}" if own.calls <= own.turns else None


async def lookup(key: str) -> str:
    """Look a key up.

    Args:
        key: The key.
    """
    return f"the value of {key}".ljust(RESULT_CHARS, ".")
