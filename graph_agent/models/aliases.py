"""Replaces tool names by aliases that every provider accepts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from graph_agent.errors import ConfigError

MAX_ALIAS_CHARS = 64
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_CHARS = 8


def alias_of(name: str) -> str:
    """Return `name` in the letters, digits, `_` and `-` that providers accept, in at most 64 characters.

    A valid name is its own alias. Otherwise each other character becomes `_`, and a name that is too long is cut and
    gets a hash of the whole name, which is the same in every process.
    """
    alias = _ILLEGAL.sub("_", name) or "_"
    if len(alias) <= MAX_ALIAS_CHARS:
        return alias
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{alias[: MAX_ALIAS_CHARS - _HASH_CHARS - 1]}_{digest}"


class ToolAliases:
    """A bidirectional map between tool names and the aliases sent to a provider.

    Args:
        names: the tools' own names, in any order; none may be empty or occur twice.

    Raises:
        ConfigError: if two tools have the same alias; names both.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._alias_by_name: dict[str, str] = {}
        self._name_by_alias: dict[str, str] = {}
        for name in names:
            if not name:
                raise ConfigError("A tool has an empty name. Give it one, such as 'search'.")
            if name in self._alias_by_name:
                raise ConfigError(f"Two tools are called {name!r}. Rename one of them.")
            alias = alias_of(name)
            if (other := self._name_by_alias.get(alias)) is not None:
                raise ConfigError(
                    f"The tools {other!r} and {name!r} are both {alias!r} to a model provider, which takes only "
                    f"letters, digits, '_' and '-', {MAX_ALIAS_CHARS} of them at most. Rename one of them."
                )
            self._alias_by_name[name] = alias
            self._name_by_alias[alias] = name

    def to_alias(self, name: str) -> str:
        """Return the alias of a tool; an unknown name is converted in the same way.

        A history may name tools that are no longer offered, and a provider refuses it if such a name is invalid.
        """
        return self._alias_by_name.get(name) or alias_of(name)

    def to_name(self, alias: str) -> str:
        """Return the tool's own name for its alias; own names and unknown names are returned unchanged."""
        # No alias is another tool's own name, so the lookup needs no precedence.
        return self._name_by_alias.get(alias, alias)
