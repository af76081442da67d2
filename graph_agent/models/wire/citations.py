"""Defines the sources that an answer cites."""

from __future__ import annotations

from typing_extensions import TypedDict


class Citation(TypedDict, total=False):
    """A source that a part of the answer names."""

    url: str
    title: str
    start: int
    """Index of the first character of the answer that the source supports; absent if the provider reports none."""
    end: int
    """Index behind the last character."""
    cited_text: str
    """The text of the source."""
