"""Names the values that occurred in an input by the place where they stand, in the user's message or in a result.

Such a name, a reference, has an equal meaning in another session, where another value stands at the same place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from graph_agent.base._internal.text import decode

Reference = tuple[str, ...]
"""The place of a value, as texts: first the source, then the place in it.

The source is `user`, or `result`, the tool and the number of its call in the wave. The place is `field` and the path of
a field, or a kind of text such as `email` and the number of its occurrence from 0.
"""

MOST_VALUES = 2_000
"""Maximum values of one message or result that get a reference; the others get none."""
MOST_TEXT_CHARS = 4_000
"""Number of characters at the begin of a text in which values are searched."""
MOST_EXPANDED = 16
"""Maximum values that are returned for a reference to every element of a list."""
EVERY = "[*]"
"""Part of a path that stands for every element of a list."""

_INDEX = re.compile(r"\[\d+\]")
_ZEROS = re.compile(r"\A0+(?=\d)")
"""Zeros before a number, which JSON refuses; not that of `0.5`."""
_KINDS = {
    "email": re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+"),
    "date": re.compile(r"\b\d{4}-\d{2}-\d{2}\b"),
    "quoted": re.compile(r"(?<=[\"“])[^\"“”\n]{1,200}(?=[\"”])"),
    "id": re.compile(r"\b(?=[\w-]{0,64}\d)(?=[\w-]{0,64}[A-Za-z])[\w-]{2,64}\b"),
    "number": re.compile(r"(?<![\w.-])\d{1,18}(?:\.\d{1,18})?(?![\w-])"),
    "name": re.compile(r"\b[A-Z][\w'-]{0,64}(?: [A-Z][\w'-]{0,64}){0,5}"),
}
"""Kind of value in a text → pattern that finds it."""
_BEGINS_SENTENCE = re.compile(r"(?:\A|[.!?])\s*\Z")
_SENTENCE_CHARS = 8
"""Number of characters before a word that are examined to decide whether the word begins a sentence."""


class ValueReferences:
    """The values that occurred in one input, each with the place where it stands.

    If a value stands at several places, the newest source counts, and within a source the first place.
    """

    def __init__(self) -> None:
        self._places: dict[str, Reference] = {}
        """Value as JSON text → its reference."""
        self._values: dict[Reference, Any] = {}
        self._of_source: dict[Reference, list[Reference]] = {}
        """Source → the references to the values in it."""

    def add_text(self, text: str, *source: str) -> None:
        """Add a text as a value, and the email addresses, dates, quotes, ids, numbers and names in its first
        `MOST_TEXT_CHARS` characters.

        A text of that length or more is not a value itself. A number is added as text and as number; a name at the
        begin of a sentence is left out, because such a word is written with a capital letter anyway.

        Args:
            text: The text.
            source: The first part of the references to these values, such as `user`.
        """
        text = text[:MOST_TEXT_CHARS]
        if text and len(text) < MOST_TEXT_CHARS:
            self._add(source, ("text",), text)
        for kind, pattern in _KINDS.items():
            count = 0
            for found in pattern.finditer(text):
                before = text[max(0, found.start() - _SENTENCE_CHARS) : found.start()]
                # Such a word is written with a capital letter anyway.
                if kind == "name" and _BEGINS_SENTENCE.search(before):
                    continue
                self._add(source, (kind, str(count)), found[0])
                # Some tools take it as a number, others as text.
                if kind == "number":
                    self._add(source, ("value", str(count)), json.loads(_ZEROS.sub("", found[0])))
                count += 1

    def add_result(self, tool: str, number: int, value: Any) -> None:
        """Add the texts and numbers in a call's result as values; for a text that is no JSON object or list, the
        values that `add_text` finds.

        The first result of a wave (`number` 0) replaces the tool's earlier results.

        Args:
            tool: Name of the tool.
            number: The number of the call among those of the tool in its wave, from 0.
            value: The result as plain JSON; a text may contain JSON.
        """
        if number == 0:
            for source in [source for source in self._of_source if source[:2] == ("result", tool)]:
                self._remove(source)
        own = ("result", tool, str(number))
        if isinstance(value, str):
            decoded = decode(value) if value.lstrip().startswith(("{", "[")) else None
            if decoded is None:
                self.add_text(value, *own)
                return
            value = decoded[0]
        for path, leaf in _leaves(value):
            self._add(own, ("field", path), leaf)

    def reference_to(self, value: Any) -> Reference | None:
        """Return the place where a text or a number stands.

        None for any other value, and for one that has not occurred.
        """
        return self._places.get(_key(value)) if _is_named(value) else None

    def values_at(self, reference: Reference) -> list[Any]:
        """Return the values at a place; empty if no value stands there.

        A reference to every element of a list gives up to `MOST_EXPANDED` values, up to the first element without a
        value.
        """
        if not is_for_every(reference):
            return [self._values[reference]] if reference in self._values else []
        found: list[Any] = []
        while len(found) < MOST_EXPANDED:
            path = reference[-1].replace(EVERY, f"[{len(found)}]")
            if (one := (*reference[:-1], path)) not in self._values:
                break
            found.append(self._values[one])
        return found

    def _add(self, source: Reference, place: Reference, value: Any) -> None:
        """Record a value at a place in a source.

        An empty text, a boolean, null, and a value beyond `MOST_VALUES` of a source are ignored. A value at several
        places is found at the first of one source, and at the newest source.

        Args:
            source: The source.
            place: The place in it.
            value: The value.
        """
        own = self._of_source.setdefault(source, [])
        if not _is_named(value) or len(own) >= MOST_VALUES:
            return
        reference = (*source, *place)
        own.append(reference)
        self._values[reference] = value
        key = _key(value)
        known = self._places.get(key)
        # Of one source the first place counts, of several sources the newest.
        if known is None or known[: len(source)] != source:
            self._places[key] = reference

    def _remove(self, source: Reference) -> None:
        """Forget a source with all its values."""
        for reference in self._of_source.pop(source):
            value = self._values.pop(reference, None)
            if self._places.get(_key(value)) == reference:
                del self._places[_key(value)]


def is_for_every(reference: Reference) -> bool:
    """Whether a reference means every element of a list."""
    return EVERY in reference[-1]


def for_every(reference: Reference) -> Reference:
    """Return a reference to one element of a list as a reference to every element of it.

    Any other reference, and one with several list indexes, is returned unchanged.
    """
    path = reference[-1]
    is_element = reference[-2] == "field" and len(_INDEX.findall(path)) == 1
    return (*reference[:-1], _INDEX.sub(EVERY, path)) if is_element else reference


def _is_named(value: Any) -> bool:
    """Whether a value can have a reference: a text that is not empty, or a number."""
    return bool(value) if isinstance(value, str) else isinstance(value, int | float) and not isinstance(value, bool)


def _key(value: Any) -> str:
    """Return a value as JSON text, by which equal values are found."""
    return json.dumps(value)


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path, such as `a.b[0]`, and the value of each text, number, boolean and null in plain JSON, level by
    level.

    Stops after `MOST_VALUES` objects, lists and values.
    """
    level = [("", value)]
    count = 0
    while level and count < MOST_VALUES:
        below: list[tuple[str, Any]] = []
        for path, current in level:
            count += 1
            if count > MOST_VALUES:
                return
            if isinstance(current, dict):
                below += [(f"{path}.{key}" if path else str(key), item) for key, item in current.items()]
            elif isinstance(current, list):
                below += [(f"{path}[{at}]", item) for at, item in enumerate(current)]
            else:
                yield path, current
        level = below
