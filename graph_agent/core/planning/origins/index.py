"""Indexes texts by their tokens, and finds a value in them in time that does not depend on how much they hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any

from graph_agent.core.planning.origins.tokens import continued_tokens, leaf_values, match_tokens, other_forms

MOST_INDEXED_TOKENS = 400_000
"""Maximum tokens of all texts of an index, about two million characters; texts beyond it are not searched."""
MOST_OTHER_FORMS = 200_000
"""Maximum second readings of ids and numbers in the texts of one author; later ones are found as they are written."""
MOST_PLACES = 2_000
"""Maximum positions in the texts of one author that are compared with a whole value."""
MOST_COMPARED = 5_000
"""Maximum tokens in the texts of one author that are compared to find parts of a value."""
_WHOLE_TOKENS = 64
"""Maximum tokens of a field that can be found as a whole by one look-up in a dict."""
_END = ""
"""Separates the fields in the list of all tokens; no token is empty."""


class Author(IntEnum):
    """Kind of author of a text. A lower value wins if texts of several authors contain a value."""

    HANDED = 0
    """Parts of a delegate's task that the delegating agent took from untrusted text."""
    USER = 1
    """The user, or a reviewer."""
    SYSTEM = 2
    """The author of the agent: its system prompt."""
    MEMORY = 3
    """The memory of earlier sessions."""
    TAINTED_MEMORY = 4
    """Facts of that memory that an agent took from untrusted text."""
    TRUSTED = 5
    """A tool or delegate whose results are not declared untrusted."""
    UNTRUSTED = 6
    """A tool or delegate whose results outsiders can write."""


@dataclass(frozen=True, slots=True)
class ReadText:
    """The source of a text that the model has read, and in which values are searched."""

    group: Author
    """Who wrote it."""
    kind: str
    """The `kind` of an `ArgumentOrigin` for a value found in this text."""
    call: str = ""
    """Id of the call whose result it is; empty for other texts."""
    name: str = ""
    """Name of the call; empty for other texts."""
    named: bool = False
    """Whether this is a field that the tool's mark `source` lists as written by outsiders, so that the field as a whole
    is too."""


UNSEARCHED = ReadText(Author.UNTRUSTED, "unknown")
"""The source of a value that was not found although not everything could be searched; it counts as untrusted."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value, or a part of it, was found."""

    source: ReadText
    path: str
    """Path of the field in the source; empty for a source that is one text."""
    whole: bool
    """Whether the value is the whole field; False if it is a part of the field's text."""
    part: tuple[int, int] | None = None
    """`(first, end)` indexes of the value's tokens that were found, `end` exclusive; None if all were."""


@dataclass(slots=True)
class _Field:
    start: int
    end: int
    source: ReadText
    path: str


class TextIndex:
    """Finds values in texts that are added one after the other.

    A value is looked up by its rarest token and compared with a limited number of positions, so that a search takes no
    longer in a long session than in a short one.
    """

    def __init__(self) -> None:
        self.complete = True
        """Whether all texts were added; False once there were more than `MOST_INDEXED_TOKENS`."""
        self.steps = 0
        """Number of tokens read and compared so far, by which tests measure the cost."""
        self._tokens: list[str] = []
        self._fields: list[_Field] = []
        self._starts: list[int] = []
        self._postings: dict[Author, dict[str, list[int]]] = {group: {} for group in Author}
        self._whole: dict[Author, dict[tuple[str, ...], int]] = {group: {} for group in Author}
        self._others: dict[Author, dict[str, tuple[int, int]]] = {group: {} for group in Author}
        """Second reading of some tokens → `(position, count)` of the newest."""
        self._continued: set[int] = set()
        """Positions of tokens that continue an address."""

    def add(self, source: ReadText, value: Any, source_of: Callable[[str], ReadText] | None = None) -> None:
        """Add a text, or plain JSON, each field of which is searched separately, field names included.

        Once the index is full (`MOST_INDEXED_TOKENS`), the rest is left out, and `complete` becomes False.

        Args:
            source: The source of the value.
            value: Plain JSON.
            source_of: Returns the source of the field at a path; None if all fields have `source`.
        """
        for path, leaf in leaf_values(value, names=True, most=MOST_INDEXED_TOKENS):
            tokens = match_tokens(leaf)
            if not tokens:
                continue
            if len(self._tokens) + len(tokens) > MOST_INDEXED_TOKENS:
                self.complete = False
                return
            author = source if source_of is None else source_of(path)
            others = self._others[author.group]
            for reading, first, end in islice(other_forms(leaf), max(0, MOST_OTHER_FORMS - len(others))):
                self.steps += 1
                others[reading] = len(self._tokens) + first, end - first
            self._continued.update(len(self._tokens) + at for at in continued_tokens(leaf))
            self._add_field(author, path, tokens)

    def _add_field(self, source: ReadText, path: str, tokens: list[str]) -> None:
        """Add the tokens of one field to the list of all tokens and to the index of its author.

        Of a number or date inside JSON, only the whole value can be found, unless the field is declared as written by
        outsiders. A whole field of `_WHOLE_TOKENS` tokens or fewer is also found by one look-up.

        Args:
            source: The source of the field.
            path: The field's path; empty for a text.
            tokens: Its tokens.
        """
        start = len(self._tokens)
        self.steps += len(tokens)
        self._fields.append(_Field(start, start + len(tokens), source, path))
        self._starts.append(start)
        self._tokens += tokens
        self._tokens.append(_END)
        # A number or a date has no parts: the day of a date is no mention of a file of this number.
        if not path or source.named or any(token.isalpha() for token in tokens):
            postings = self._postings[source.group]
            for at, token in enumerate(tokens, start):
                postings.setdefault(token, []).append(at)
        if len(tokens) <= _WHOLE_TOKENS and path and not source.named:
            self._whole[source.group][tuple(tokens)] = len(self._fields) - 1

    def find(self, tokens: Sequence[str], others: Sequence[str] = (), *, is_address: bool = False) -> Place | None:
        """Return where a value occurs; None if it occurs nowhere.

        Authors are searched in the order of `Author`, and whole fields before parts of texts. In untrusted texts, a
        value with letters is searched in prose before whole fields: that a record has the value, too, is no reason to
        trust it. A text that contains the value with other separators counts after these.

        If the whole value occurs nowhere, the longest part of it counts that has more than half of its characters. A
        value without letters, such as a date, or with one token is only found as a whole. If nothing was found, but not
        all texts or positions could be searched, the source is `UNSEARCHED` in place of None.

        Args:
            tokens: The value's tokens, by `match_tokens`; empty gives None.
            others: Second readings of the whole value, by `other_forms`.
            is_address: Whether the value is an address of mail, which no longer address may contain:
                `black@mail.example` does not occur in `eve.black@mail.example`.
        """
        if not tokens:
            return None
        is_cut, has_letters = not self.complete, any(char.isalpha() for token in tokens for char in token)
        for group in Author:
            at = self._whole[group].get(tuple(tokens))
            whole = None if at is None else Place(self._fields[at].source, self._fields[at].path, True)
            if whole is not None and (group is not Author.UNTRUSTED or not has_letters):
                return whole
            place, has_more = self._full(group, tokens, is_address=is_address)
            if place is None and whole is None:
                place = self._in_other_form(group, tokens, others)
            if place is not None or whole is not None:
                return place or whole
            is_cut |= has_more
        found = self._longest_part(tokens) if has_letters and len(tokens) > 1 else None
        return Place(UNSEARCHED, "", False) if found is None and is_cut else found

    def parts(self, tokens: Sequence[str]) -> list[tuple[int, int]]:
        """Return the parts of a text that occur in untrusted texts, unless the user's or author's texts have them at
        least as long.

        Adjacent tokens of this kind form one part.

        Args:
            tokens: The text's tokens.

        Returns:
            `(first, end)` indexes of each part, `end` exclusive, in order.
        """
        untrusted = self._covered((Author.HANDED, Author.TAINTED_MEMORY, Author.UNTRUSTED), tokens)
        own = self._covered((Author.USER, Author.SYSTEM), tokens)
        found: list[tuple[int, int]] = []
        for at, (theirs, ours) in enumerate(zip(untrusted, own, strict=True)):
            # The user's own words do not become suspect because an untrusted text repeats them.
            if theirs <= ours:
                continue
            if found and found[-1][1] == at:
                found[-1] = (found[-1][0], at + 1)
            else:
                found.append((at, at + 1))
        return found

    def _covered(self, groups: Sequence[Author], tokens: Sequence[str]) -> list[int]:
        """Return, for each token, the length of the longest run of tokens around it that also occurs in texts of these
        authors; 0 if it is in none, at least 1 for a token that is a second reading in one.
        """
        longest = [0] * len(tokens)
        for group in groups:
            for first, last, _ in self._runs(group, tokens):
                for at in range(first, last):
                    longest[at] = max(longest[at], last - first)
            for at, token in enumerate(tokens):
                if token in self._others[group]:
                    longest[at] = max(longest[at], 1)
        return longest

    def _full(self, group: Author, tokens: Sequence[str], *, is_address: bool) -> tuple[Place | None, bool]:
        """Return the newest place in texts of one author at which all tokens occur in order, and whether the search was
        cut short.

        The `MOST_PLACES` newest occurrences of the rarest token are compared. A place that is a whole field counts only
        if the field is declared to be untrusted.

        Args:
            group: The author.
            tokens: The value's tokens.
            is_address: Whether no place counts at which a longer address continues the value.

        Returns:
            `(place, False)`; or None, with True if there were more occurrences than are compared.
        """
        postings = self._postings[group]
        found = [postings.get(token, ()) for token in tokens]
        self.steps += len(tokens)
        rarest = min(range(len(tokens)), key=lambda at: len(found[at]))
        wanted = list(tokens)
        # The newest places first: the model has most likely read the value there.
        for at in found[rarest][: -MOST_PLACES - 1 : -1]:
            start = at - rarest
            self.steps += 1
            if start < 0 or self._tokens[start : start + len(wanted)] != wanted:
                continue
            self.steps += len(wanted)
            if is_address and not self._continued.isdisjoint((start, start + len(wanted))):
                continue
            place = self._place(start, len(wanted))
            if not place.whole or place.source.named:
                return place, False
        return None, len(found[rarest]) > MOST_PLACES

    def _in_other_form(self, group: Author, tokens: Sequence[str], others: Sequence[str]) -> Place | None:
        """Return a place in texts of one author where the value is written with other separators, such as `DE02 1203`
        for `DE021203`; None if there is none.

        The second readings of the texts are compared with a value of one token and with the value's second readings;
        then these with single tokens of the texts. The parameters are those of `find`.
        """
        for form in [*tokens[: len(tokens) == 1], *others]:
            if (found := self._others[group].get(form)) is not None:
                return self._place(*found)
        for form in others:
            if postings := self._postings[group].get(form):
                return self._place(postings[-1], 1)
        return None

    def _runs(self, group: Author, tokens: Sequence[str]) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of tokens, as long as possible, that occur in texts of one author.

        A run is yielded for each place where it occurs; those around rare tokens come first.

        At most `MOST_COMPARED` tokens are compared.

        Yields:
            `(first, end, position)`: indexes of the run in `tokens`, `end` exclusive, and the position of its first
            token in the index.
        """
        postings = self._postings[group]
        found = [postings.get(token, ()) for token in tokens]
        compared: set[tuple[int, int]] = set()
        left = MOST_COMPARED
        for seed in sorted(range(len(tokens)), key=lambda at: len(found[at])):
            for at in reversed(found[seed]):
                if left <= 0:
                    return
                left -= 1
                self.steps += 1
                shift = at - seed
                if (shift, seed) in compared:
                    continue
                first, last = seed, seed + 1
                while first > 0 and self._at(shift + first - 1) == tokens[first - 1]:
                    first -= 1
                while last < len(tokens) and self._at(shift + last) == tokens[last]:
                    last += 1
                self.steps += last - first
                left -= last - first
                compared.update((shift, index) for index in range(first, last))
                yield first, last, shift + first

    def _at(self, position: int) -> str:
        """Return the token at a position in the index; the separator, which equals no token, outside of it."""
        return self._tokens[position] if 0 <= position < len(self._tokens) else _END

    def _longest_part(self, tokens: Sequence[str]) -> Place | None:
        """Return the place of the longest part of a value in the texts; None if no part has more than half of the
        value's characters.

        Of equally long parts, that of the first author in the order of `Author` counts. `tokens` are the tokens of the
        value.
        """
        best, found = sum(map(len, tokens)) / 2, None
        for group in Author:
            for first, last, start in self._runs(group, tokens):
                chars = sum(map(len, tokens[first:last]))
                # Of equally long parts that of the first group is kept.
                if chars > best:
                    best, found = chars, (first, last, start)
        if found is None:
            return None
        first, last, start = found
        return self._place(start, last - first, (first, last))

    def _place(self, start: int, count: int, part: tuple[int, int] | None = None) -> Place:
        """Return the place of the `count` tokens at a position of the index.

        Args:
            start: Position of the first token.
            count: Number of tokens.
            part: `(first, end)` indexes in the value; None for the whole value.
        """
        field = self._fields[bisect_right(self._starts, start) - 1]
        is_whole = bool(field.path) and field.start == start and field.end == start + count
        return Place(field.source, field.path, is_whole, part)
