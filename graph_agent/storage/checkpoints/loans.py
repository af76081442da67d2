"""Lends the objects of a kept history to the session's runs, one run after the other.

To unpickle a message takes ten times as long as to compare it with a copy of its fields. The next run therefore gets
the objects that the run before it had, unless one of the objects was changed in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, cast

from langchain_core.messages import BaseMessage

from graph_agent.core.state.run import Run

_LEAVES = frozenset({str, int, float, bool, type(None), bytes})
"""Types of values in an entry that cannot be changed in place."""
_EMPTY: dict[type, Any] = {dict: {}, list: [], tuple: ()}
"""Copies of empty values, which many entries have; shared ones are compared faster."""
_PART = 32
"""Entries that are compared together."""
_DEEPEST = 20
"""Maximum levels of lists and dicts in an entry."""
_FIELDS = tuple(map(attrgetter, ("__dict__", "__pydantic_extra__", "__pydantic_private__")))
"""Functions that return the fields of a message: those that its class declares, others, and private ones."""
_KINDS = {"messages": BaseMessage, "events": dict}
"""Channel whose entries may be lent → their class."""


class Loan:
    """The entries of one channel, with copies of their fields as they are stored. The lists are never modified."""

    __slots__ = ("_borrower", "_copies", "_name", "entries")

    def __init__(self, name: str, entries: list[Any], copies: list[list[Any]], borrower: weakref.ref[Run]) -> None:
        self.entries = entries
        """All entries of the full copy and the writes, oldest first."""
        self._copies = copies
        """Copies of what `_columns` returned for the entries."""
        self._name = name
        self._borrower = borrower

    @classmethod
    def of(cls, name: str, values: Iterable[Any], borrower: Run | None, before: Loan | None = None) -> Loan | None:
        """Return a loan of written values; None if one of them is no list of messages or events, or if one of these
        holds an object that could be changed without a trace in the copy.

        Args:
            name: The channel, `messages` or `events`.
            values: The values, oldest first. A message stands for a list of it.
            borrower: The run that is given these objects; None if no run is, which needs `before`.
            before: The loan of the values before them; None if there are none.
        """
        new: list[Any] = []
        for value in values:
            if not isinstance(value, list | BaseMessage):
                return None
            new += value if isinstance(value, list) else [value]
        if not all(issubclass(kind, _KINDS[name]) for kind in {*map(type, new)}):
            return None
        try:
            copies = [[*map(_copied, column)] for column in _columns(name, new)]
        except _UnplainError:
            return None
        if before is not None:
            copies = [old + added for old, added in zip(before._copies, copies, strict=True)]
            new = before.entries + new
        holder = before._borrower if borrower is None and before is not None else weakref.ref(cast("Run", borrower))
        return cls(name, new, copies, holder)

    def claim(self, borrower: Run) -> bool:
        """Lend the entries to another run, and return True; False, without a change, while the last borrower uses them.

        A borrower uses them until its `stored` is None, or it does not exist any more. Callers must hold a lock.
        """
        before = self._borrower()
        if before is not None and before.stored is not None:
            return False
        self._borrower = weakref.ref(borrower)
        return True

    def is_intact(self) -> bool:
        """Whether the entries are still as they are stored. A number equals a boolean of its value."""
        # In parts, so that messages read for one column are still in the cache of the processor for the next.
        return all(
            _columns(self._name, self.entries[at : at + _PART]) == [column[at : at + _PART] for column in self._copies]
            for at in range(0, len(self.entries), _PART)
        )


def _columns(name: str, entries: list[Any]) -> list[list[Any]]:
    """Return the parts of entries that can be changed in place: a list for each of `_FIELDS`, or the events."""
    return [[*map(fields, entries)] for fields in _FIELDS] if name == "messages" else [entries]


class _UnplainError(Exception):
    """A value holds an object that could be changed in place, or too many levels."""


def _copied(value: Any, levels: int = _DEEPEST) -> Any:
    """Return a copy of nested lists, tuples and dicts; raise `_UnplainError` if they hold any other object, or are
    nested more than `levels` deep."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if not value and kind in _EMPTY:
        return _EMPTY[kind]
    if levels and kind is dict:
        # Most values are leaves, for which a call of this function would take longer than the check.
        return {n: each if type(each) in _LEAVES else _copied(each, levels - 1) for n, each in value.items()}
    if levels and kind in (list, tuple):
        return kind([_copied(each, levels - 1) for each in value])
    raise _UnplainError
