"""Finds the complete JSON objects of a text that arrives in pieces, in time linear in its length."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


class StreamedObjects:
    """Returns the objects in a JSON text that arrives in pieces, as soon as each is complete.

    Text outside of brackets is skipped.

    Args:
        key: Field of the outermost object whose list holds the wanted objects; None for the outermost objects
            themselves.
    """

    def __init__(self, key: str | None = None) -> None:
        self._key = key
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._string: list[str] = []
        """Characters of the newest string of the outermost object: its key, when a list begins."""
        self._list_key = ""
        """The key of the newest list of the outermost object."""
        self._object: list[str] | None = None
        """Characters of the wanted object that is open; None outside of one."""

    def feed(self, piece: str) -> Iterator[dict[str, Any]]:
        """Yield each wanted object that ends in the next piece of the text. One that is not valid JSON is skipped.

        Without a key, these are the outermost objects; with one, the objects in the list under this key of an outermost
        object.

        Args:
            piece: The next piece.
        """
        for character in piece:
            is_end = not self._in_string and character in "}]" and self._depth == (1 if self._key is None else 3)
            self._advance(character)
            if self._object is None:
                continue
            self._object.append(character)
            if is_end:
                text, self._object = "".join(self._object), None
                try:
                    value = json.loads(text)
                except ValueError:
                    continue
                if isinstance(value, dict):
                    yield value

    def _advance(self, character: str) -> None:
        """Update the state of the parser (string, escape, depth, newest key) by one character, and begin to collect if
        the character opens a wanted object: one at the top if `_key` is None, else one in the list under that key.
        """
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._in_string = False
            elif self._depth == 1:
                self._string.append(character)
        elif character == '"' and self._depth:
            self._in_string, self._string = True, [] if self._depth == 1 else self._string
        elif character in "{[":
            self._depth += 1
            if self._depth == 2:
                self._list_key = "".join(self._string) if character == "[" else ""
            is_wanted = self._depth == 1 if self._key is None else self._depth == 3 and self._list_key == self._key
            if is_wanted and character == "{":
                self._object = []
        elif character in "}]":
            self._depth = max(0, self._depth - 1)
