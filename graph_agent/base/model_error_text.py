"""Describes the errors of models by category, and removes the provider's words from a description."""

from __future__ import annotations

import re
from typing import Any, Literal

ModelErrorKind = Literal[
    "transient", "auth", "permission", "unknown_model", "context_overflow", "content_filter", "tools_rejected", "other"
]
SENTENCES: dict[ModelErrorKind, tuple[str, str]] = {
    "transient": ("The model provider did not answer as it should", "try again later"),
    "auth": ("The model provider refused the API key", "check the key and the address it is sent to"),
    "permission": ("The model provider does not allow this request", "check the account's access, quota and billing"),
    "unknown_model": ("The model or the address is unknown to the provider", "check the model's name and the base URL"),
    "context_overflow": ("The request is longer than the model can read", "shorten the history or the tools' output"),
    "content_filter": ("The provider's content filter stopped the request", "put the request in other words"),
    "tools_rejected": ("This model or its server does not take tools", "set tool_calling to 'text'"),
    "other": ("The model call failed", "see the provider's documentation"),
}
"""The text before and after the provider's words, by category."""
UNREACHABLE = ("The model's server cannot be reached", "try again later")
LOADING = ("The model's server is still loading its model", "try again in a minute")
POSTPONED = ("The model provider asks for a longer wait", "try again in")
"""The same for kinds of `transient`; the last one is followed by the delay."""
FALLBACK_SENTENCE = ("does not answer", "going on with")
"""The text before and after the provider's words in the warning of a change to a fallback model."""
_MOST_CHARS = 1000
"""Longest text in parentheses; more than an error's text can have."""
_BOUNDS = [*SENTENCES.values(), UNREACHABLE, LOADING, POSTPONED, FALLBACK_SENTENCE]
# Greedy, so that a provider's text that repeats the end of the sentence is removed as a whole.
_QUOTES = re.compile(
    "|".join(
        rf"(?:(?<={re.escape(before)}) \((?!HTTP \d{{1,5}}\))(?:HTTP (\d{{1,5}}): )?.{{0,{_MOST_CHARS}}}\)"
        rf"(?=; {re.escape(after)}))"
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
