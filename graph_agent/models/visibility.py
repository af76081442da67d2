"""How much of an incomplete reply may be shown to the reader."""

from __future__ import annotations

from graph_agent.sentinel import visible_begin, visible_end


class WithoutSentinel:
    """Shows a reply as it comes, except the sentinel."""

    def __init__(self) -> None:
        self._begin: int | None = None

    def part(self, text: str) -> tuple[int, int]:
        """See `Visibility`."""
        if self._begin is None:
            self._begin = visible_begin(text)
        if self._begin is None:
            return 0, 0
        return self._begin, max(self._begin, visible_end(text))
