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
"""Characters per token, for servers that only estimate their token counts."""
_MESSAGE, _ALL_TOOLS, _TOOL, _ARGUMENT = 1, 12, 5, 2
"""Fewest tokens, beyond their words, of a message, of the section of tools, of each tool and of each argument."""
_CUT_TO = 1024
"""Context windows are multiples of this. A count near a multiple may be that of a prompt that was cut to the window."""


def fewest_tokens(text: str) -> int:
    """Return a lower bound of the tokens in a text: its words or a quarter of its characters, whichever is less; 0 for
    an empty text.
    """
    by_length, words = len(text) // _CHARS_PER_TOKEN, 0
    for words, _ in enumerate(_WORD.finditer(text), 1):
        if words >= by_length:
            break
    return min(by_length, words)


def fewest_tokens_of_tools(schemas: Sequence[Mapping[str, Any]]) -> int:
    """Return a lower bound of the tokens that tools take in a prompt, whatever form the template gives them.

    Args:
        schemas: The tools, in OpenAI's function format. Without any, the result is 0.
    """
    total = _ALL_TOOLS
    for schema in schemas:
        function = schema["function"]
        arguments = list(_arguments((function.get("parameters") or {}).get("properties")))
        words = [function["name"], function.get("description") or "", *arguments]
        total += _TOOL + fewest_tokens(" ".join(words)) + _ARGUMENT * len(arguments)
    return total if schemas else 0


def _arguments(properties: Any) -> Iterator[str]:
    """Yield the name and description of each top-level argument; nested ones are not counted."""
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        described = schema.get("description") if isinstance(schema, Mapping) else None
        yield f"{name} {described}" if isinstance(described, str) else str(name)


def input_tokens(usage: UsageMetadata) -> int:
    """Return the input tokens of a request from the usage of its reply, including those read from or put in a cache.

    Most servers include cached tokens in the input. A server that reports more cached than input tokens does not, so
    they are added.
    """
    details = usage.get("input_token_details") or {}
    cached = (details.get("cache_read") or 0) + (details.get("cache_creation") or 0)
    asked = max(usage["input_tokens"], usage["total_tokens"] - usage["output_tokens"])
    return asked + cached if cached > asked else asked


def drops_tools(reported: int, prompt: Sequence[str], tools: int) -> bool:
    """Whether a token count is large enough for a prompt's texts but not for the tools, so that the tools are missing.

    A count that is too small for the texts as well is unusable and returns False; so does one near a multiple of 1,024,
    which may be that of a prompt that was cut to the context window.

    Args:
        reported: The input tokens of the request, from `input_tokens`.
        prompt: Texts that every server includes: the system prompt and the newest message.
        tools: The result of `fewest_tokens_of_tools`.
    """
    around = _MESSAGE * (len(prompt) + 1)
    # Most requests end here, before any words are counted.
    if reported >= sum(map(len, prompt)) // _CHARS_PER_TOKEN + around + tools:
        return False
    fewest = sum(map(fewest_tokens, prompt))
    is_cut = -1 <= (reported + _CUT_TO // 2) % _CUT_TO - _CUT_TO // 2 <= 1
    return fewest <= reported < fewest + around + tools and not (is_cut and reported > 1)
