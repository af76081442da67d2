"""Date phrases to check-in and check-out days.

`resolve_phrase` is what the calendar tool offers; `find_phrases` finds the same phrases in any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

from .date_days import MONTHS, SHORT_WEEKDAYS, DateError
from .date_stays import Reading, StayReader

UNDERSTOOD = (
    "tonight, tomorrow, in 3 days, friday, next friday, this weekend, next weekend, next week, next month, in January, "
    "January 17, January 17-19, 17-19 January 2027, Jan 17 to Jan 19 2027, from friday to sunday, "
    "2 nights from December 4, 2027-01-17, 2027-01-17 to 2027-01-19"
)
# "before friday" names no stay, and must not be read as friday.
_BOUNDS_ONLY = ("before", "after", "by", "until", "till", "except", "not", "since")


# A bare "January", "weekend" or "sat" is too weak a sign in running text, but clear when it is the whole phrase.
_LONE = re.compile(r"\A\s*([a-z]+)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Phrase:
    """A date phrase found in a text."""

    text: str
    start: int
    """The place of its first character."""
    end: int
    """The place after its last character."""
    check_in: date | None
    """None if `error` is set."""
    check_out: date | None
    relative: bool
    """Whether it depends on today beyond the choice of a year ("next weekend" does, "January 17" does not)."""
    counted: bool
    """Whether it contains the number of nights."""
    error: str | None


def find_phrases(text: str, today: date) -> list[Phrase]:
    """Find the date phrases of a text in order; an empty list where there are none. Never raises."""
    reader = StayReader(text, today)
    found: list[Phrase] = []
    i = 0
    while i < len(reader.words):
        reading: Reading | None = None
        error: str | None = None
        end = i + 1
        try:
            reading = reader.stay(i)
            end = reading.end if reading else end
        except DateError as problem:
            error, end = str(problem), max(problem.end, end)
        if (reading or error) and reader.word(i - 1) not in _BOUNDS_ONLY:
            start, stop = reader.words[i].start, reader.words[min(end, len(reader.words)) - 1].end
            found.append(_phrase(text[start:stop], start, stop, reading, error))
        i = end
    return found


def resolve_phrase(phrase: str, today: date) -> tuple[date, date]:
    """Return the check-in and check-out days that a phrase means, seen from `today`.

    A date without a year is the next one, today included. A single day is one night. Raises DateError for a phrase
    that names no stay, an impossible one, or several.
    """
    found = find_phrases(_LONE.sub(_spell_out, phrase), today)
    if not found:
        raise DateError(f"No date phrase in {phrase[:80]!r}. Understood are, for example: {UNDERSTOOD}.")
    if len(found) > 1:
        names = ", ".join(repr(one.text) for one in found[:5])
        raise DateError(f"{len(found)} date phrases in {phrase[:80]!r}: {names}. Ask for one at a time.")
    one = found[0]
    if one.check_in is None or one.check_out is None:
        raise DateError(one.error or f"No date phrase in {phrase[:80]!r}.")
    return one.check_in, one.check_out


def _spell_out(lone: re.Match[str]) -> str:
    word = lone[1].lower()
    link = "in " if word in MONTHS else "this " if word in SHORT_WEEKDAYS or word == "weekend" else ""
    return link + word


def _phrase(text: str, start: int, end: int, reading: Reading | None, error: str | None) -> Phrase:
    if reading is None:
        return Phrase(text, start, end, None, None, True, False, error)
    return Phrase(text, start, end, reading.check_in, reading.check_out, reading.relative, reading.counted, None)
