"""What a call came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graph_agent.events import ResultStatus


@dataclass(frozen=True, slots=True)
class Output:
    """What a call came to, before it is cut to what the model sees."""

    content: str | list[Any]
    """Text, or LangChain content blocks."""
    status: ResultStatus = "success"
    artifact: Any = None
    """Plain JSON that the tool returned beside its content."""
