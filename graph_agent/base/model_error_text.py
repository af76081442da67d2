"""Describes the errors of model calls by kind, and removes the provider's words from descriptions."""

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
"""Kind of a model's error → the text before and the text after the provider's own words, which stand in parentheses."""
UNREACHABLE = ("The model's server cannot be reached", "try again later")
"""The same two texts for special cases of `transient`; `POSTPONED` is followed by the delay."""
MODEL_LOADING = ("The model's server is still loading its model", "try again in a minute")
POSTPONED = ("The model provider asks for a longer wait", "try again in")
"""The same texts for special cases of `transient`; the text of `POSTPONED` is followed by the delay."""
FALLBACK_SENTENCE = ("does not answer", "going on with")
"""The same two texts for the warning that a fallback model is asked."""
_MOST_CHARS = 1000
"""Maximum characters in parentheses that are removed; no error's text is that long."""
_BOUNDS = [*SENTENCES.values(), UNREACHABLE, MODEL_LOADING, POSTPONED, FALLBACK_SENTENCE]
# Greedy, so that a provider's text that repeats the end of the sentence is removed as a whole.
_QUOTES = re.compile(
    "|".join(
        rf"(?:(?<={re.escape(before)}) \((?!HTTP \d{{1,5}}\))(?:HTTP (\d{{1,5}}): )?.{{0,{_MOST_CHARS}}}\)"
        rf"(?=; {re.escape(after)}))"
        for before, after in _BOUNDS
    )
)


def public_text(text: str) -> str:
    """Return a text for clients, in which each description of a model's error lacks the words of the provider.

    The HTTP status is kept. A text without such a description is unchanged.
    """
    if not any(before in text for before, _ in _BOUNDS):
        return text
    return _QUOTES.sub(lambda found: f" (HTTP {found[found.lastindex]})" if found.lastindex else "", text)


def public_value(value: Any) -> Any:
    """Return a copy of JSON data with `public_text` applied to each string value; keys are unchanged."""
    match value:
        case str():
            return public_text(value)
        case list():
            return [public_value(each) for each in value]
        case dict():
            return {key: public_value(each) for key, each in value.items()}
        case _:
            return value
