"""Signatures that providers put on reasoning, and refuse if another provider made them."""

from __future__ import annotations

import base64
import hashlib


def signature(text: str, maker: str) -> str:
    """Return the signature of a text by a maker, such as `anthropic`."""
    # Base64 of hexadecimal digits has no character that its two alphabets write differently.
    return base64.b64encode(hashlib.sha256(f"{maker}:{text}".encode()).hexdigest()[:60].encode()).decode()
