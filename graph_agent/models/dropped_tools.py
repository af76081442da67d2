"""Detects a server that leaves the tools out of the prompt, from the input tokens that its reply reports.

Some servers accept the field `tools` and drop it, because the model's chat template has no place for tools: llama.cpp,
and most servers with a base model. The model then answers without ever having seen a tool.

The estimates are lower bounds: a word is at least one token, and each form in which templates write tools has at least
some tokens for each of them. A count above the bound proves nothing; a count below it proves that something is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages.ai import UsageMetadata

_WORD = re.compile(r"[\w'’]{1,16}|[^\w\s]+(?=\s|\Z)")
"""A piece of text that no common tokenizer joins with the next one."""
_CHARS_PER_TOKEN = 4
"""Characters of a token, for a server that estimates its counts."""
_MESSAGE, _ALL_TOOLS, _TOOL, _ARGUMENT = 1, 12, 5, 2
"""Fewest tokens around each message, the tools, each tool and each argument, in addition to their words."""
_CUT_TO = 1024
"""Windows are multiples of it; a count next to a multiple may be that of a prompt which the server has cut."""


def fewest_tokens(text: str) -> int:
    """Return a lower bound of the tokens of a text."""
    by_length, words = len(text) // _CHARS_PER_TOKEN, 0
    for words, _ in enumerate(_WORD.finditer(text), 1):
        if words >= by_length:
            break
    return min(by_length, words)


def fewest_tokens_of_tools(schemas: Sequence[Mapping[str, Any]]) -> int:
    """Return a lower bound of the tokens of tools in a prompt, in whatever form its template writes them.

    Args:
        schemas: The tools in OpenAI's function format.
    """
    total = _ALL_TOOLS
    for schema in schemas:
        function = schema["function"]
        arguments = list(_arguments((function.get("parameters") or {}).get("properties")))
        words = [function["name"], function.get("description") or "", *arguments]
        total += _TOOL + fewest_tokens(" ".join(words)) + _ARGUMENT * len(arguments)
    return total if schemas else 0


def _arguments(properties: Any) -> Iterator[str]:
    """Yield the name and the description of each argument; nested ones are left out of the bound."""
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        described = schema.get("description") if isinstance(schema, Mapping) else None
        yield f"{name} {described}" if isinstance(described, str) else str(name)


def input_tokens(usage: UsageMetadata) -> int:
    """Return the tokens of a request by the usage of its reply, with those that came from a cache.

    Most servers count cached tokens as input; one that does not may report more cached tokens than input.
    """
    details = usage.get("input_token_details") or {}
    cached = (details.get("cache_read") or 0) + (details.get("cache_creation") or 0)
    asked = max(usage["input_tokens"], usage["total_tokens"] - usage["output_tokens"])
    return asked + cached if cached > asked else asked


def drops_tools(reported: int, prompt: Sequence[str], tools: int) -> bool:
    """Whether a count of input tokens has room for a prompt's texts, and none for the tools.

    A count that has no room for the texts either is no count of this request, and proves nothing.

    Args:
        reported: The tokens of the request by `input_tokens`.
        prompt: The texts that no server leaves out: the system prompt and the newest message.
        tools: The result of `fewest_tokens_of_tools`.
    """
    around = _MESSAGE * (len(prompt) + 1)
    if reported >= sum(map(len, prompt)) // _CHARS_PER_TOKEN + around + tools:
        return False
    fewest = sum(map(fewest_tokens, prompt))
    is_cut = -1 <= (reported + _CUT_TO // 2) % _CUT_TO - _CUT_TO // 2 <= 1
    return fewest <= reported < fewest + around + tools and not (is_cut and reported > 1)
