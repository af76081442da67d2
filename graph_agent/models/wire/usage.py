"""Adjusts the usage in the chunks of a streamed reply so that its sum is the usage of the whole reply.

LangChain adds up the usage of all chunks. Most servers that report usage in several chunks report the total so far in
each; Anthropic's API reports the input at the start and the output at the end, both cumulative.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from langchain_core.messages import AIMessageChunk

_REPORT_DIFFERENCES = ("langchain_google_genai", "langchain_google_vertexai")
"""Packages whose chunks report the tokens of that chunk only, so that LangChain's sum of them is right."""
_REPORT_TOTALS = "langchain_google_vertexai.model_garden"
_PARTS = ("input_tokens", "output_tokens")
_DETAILS = ("input_token_details", "output_token_details")


def reports_differences(model: object) -> bool:
    """Whether the chunks of a model's stream report only their own tokens, rather than the total so far.

    Decided by the package of the model's class or of its bases; False for other packages.
    """
    kind: type = type(model)
    return _reports_differences(kind)


@lru_cache(maxsize=128)
def _reports_differences(cls: type) -> bool:
    """Whether the chunks of a model class report only their own usage; decided by the package of the class or its
    bases.
    """
    modules = [each.__module__ for each in cls.__mro__]
    own = [module for module in modules if module.startswith(_REPORT_DIFFERENCES)]
    return bool(own) and not own[0].startswith(_REPORT_TOTALS)


class UsageSoFar:
    """Tracks the usage of one streamed reply, as the largest value of each field that its chunks reported so far."""

    def __init__(self) -> None:
        self._figures: dict[str, Any] = {}

    def receive(self, message: AIMessageChunk) -> None:
        """Replace a chunk's usage, which reports totals so far, by what it adds to the earlier chunks, in place, so
        that LangChain's sum is the total.

        The usage becomes None if the chunk adds nothing. The first report is unchanged; a chunk without usage is
        ignored.
        """
        reported: Mapping[str, Any] | None = message.usage_metadata
        if not reported:
            return
        before, self._figures = self._figures, _larger(self._figures, reported)
        if not before:
            return
        counts = _gain(self._figures, before)
        gained: dict[str, Any] = {name: _gain(self._figures.get(name), before.get(name)) for name in _DETAILS}
        # One of LangChain's two ways of streaming keeps the newest value of a detail: an unchanged one is left out.
        details = {name: new for name, values in gained.items() if (new := {key: n for key, n in values.items() if n})}
        usage: Any = {**counts, **details} if details or any(counts.values()) else None
        message.usage_metadata = usage


def _larger(before: Mapping[str, Any], reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return the larger value of each field of two usage reports, at any level.

    If `reported` has less input or output than before, the total is at least the sum of the larger input and output.
    """
    figures = {**before, **reported}
    for name, earlier in before.items():
        newer = reported.get(name)
        if isinstance(earlier, Mapping):
            figures[name] = _larger(earlier, newer) if isinstance(newer, Mapping) else earlier
        elif isinstance(earlier, int | float) and not (isinstance(newer, int | float) and newer > earlier):
            figures[name] = earlier
    if any((reported.get(part) or 0) < (before.get(part) or 0) for part in _PARTS):
        # Input and output are reported apart, each with a total of its own.
        figures["total_tokens"] = max(figures.get("total_tokens") or 0, sum(figures.get(part) or 0 for part in _PARTS))
    return figures


def _gain(figures: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the differences of the numbers in two usage reports, field by field.

    A field missing before counts as 0.
    """
    earlier = before or {}
    return {
        name: value - (earlier.get(name) or 0)
        for name, value in (figures or {}).items()
        if isinstance(value, int | float)
    }
