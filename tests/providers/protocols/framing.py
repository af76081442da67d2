"""How texts are cut into the pieces of a stream."""

from __future__ import annotations


def halves(text: str) -> list[str]:
    """Return a text in two pieces, or in one or none if it is shorter."""
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]
