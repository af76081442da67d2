"""Defines the name of the plan's tool, and converts names of tools to names that every model provider accepts."""

from __future__ import annotations

import hashlib
import re

PLAN_TOOL = "make_plan"
"""Name of the tool by which a model returns its plan, if the model supports tools but no JSON schema mode."""

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
"""Matches tool names that every provider accepts."""
MAX_ALIAS_CHARS = 64
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_CHARS = 8


def alias_of(name: str) -> str:
    """Return a name for a tool that every provider accepts: `name` itself if it is valid, otherwise a similar one.

    A valid name has at most 64 letters, digits, `_` and `-`, and begins with a letter or `_`, as Gemini requires. Other
    characters become `_`, and `_` is put before an invalid first one. A name that is too long is cut and ends with a
    hash of the whole name. The result is the same in every process; two names may have the same one.
    """
    if NAME.fullmatch(name):
        return name
    alias = _ILLEGAL.sub("_", name)
    if not alias[:1].isalpha() and alias[:1] != "_":
        alias = f"_{alias}"
    if len(alias) <= MAX_ALIAS_CHARS:
        return alias
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{alias[: MAX_ALIAS_CHARS - _HASH_CHARS - 1]}_{digest}"
