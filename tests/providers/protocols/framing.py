"""How texts are cut into the pieces of a stream."""

from __future__ import annotations

_MOST = 20


def pieces(text: str) -> list[str]:
    """Return a text in two pieces, or in more of at most 20 characters; fewer if it is shorter."""
    size = min(_MOST, max(1, len(text) // 2))
    return [text[at : at + size] for at in range(0, len(text), size)]
