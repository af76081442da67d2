"""Texts for remote callers: a model provider's own words are removed; the category and the HTTP status remain."""

from __future__ import annotations

import re
from typing import Any

from graph_agent.models.errors import FALLBACK_SENTENCE, SENTENCES

_MOST_CHARS = 1000
"""Longest text in parentheses; more than an error's text can have."""
_BOUNDS = [*SENTENCES.values(), FALLBACK_SENTENCE]
# Greedy, so that a provider's text that repeats the end of the sentence is removed as a whole.
_QUOTES = re.compile(
    "|".join(
        rf"(?:(?<={re.escape(before)}) \((?:HTTP (\d+): )?.{{0,{_MOST_CHARS}}}\)(?=; {re.escape(after)}))"
        for before, after in _BOUNDS
    )
)


def public_text(text: str) -> str:
    """Return a text without the provider's words in each description of a model's error."""
    if not any(before in text for before, _ in _BOUNDS):
        return text
    return _QUOTES.sub(lambda found: f" (HTTP {found[found.lastindex]})" if found.lastindex else "", text)


def public_value(value: Any) -> Any:
    """Return JSON data with `public_text` applied to each of its texts."""
    match value:
        case str():
            return public_text(value)
        case list():
            return [public_value(each) for each in value]
        case dict():
            return {key: public_value(each) for key, each in value.items()}
        case _:
            return value
