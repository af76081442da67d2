"""Parser of a single day ("January 17", "next friday", "in 3 days") in a list of words.

The reader is sans-I/O and total: at any position it returns a day or None, or raises `DateError` if the words look
like an impossible date. It looks a bounded number of words ahead, so a whole text is read in linear time.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Literal, NamedTuple

# fmt: off
_MONTH_NAMES = ("january", "february", "march", "april", "may", "june",
                "july", "august", "september", "october", "november", "december")
_WEEKDAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBER_NAMES = ("one", "two", "three", "four", "five", "six", "seven",
                 "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen")
_BEFORE_SHORT_WEEKDAY = {"this", "next", "coming", "on", "from", "to", "until", "till", "through", "between",
                         "-", "–", "—"}
# fmt: on

MONTHS = {form: n for n, name in enumerate(_MONTH_NAMES, 1) for form in (name, name[:3])} | {"sept": 9}
WEEKDAYS = {name: n for n, name in enumerate(_WEEKDAY_NAMES)}
# "sat", "sun" and "wed" are also plain words: they count as days only after one of the words above.
SHORT_WEEKDAYS = {form: n for n, name in enumerate(_WEEKDAY_NAMES) for form in (name[:3], name[:4])} | {"thurs": 3}
NUMBERS = {name: n for n, name in enumerate(_NUMBER_NAMES, 1)} | {"a": 1, "an": 1, "couple": 2}
_DAYS_IN = {"day": 1, "days": 1, "night": 1, "nights": 1, "week": 7, "weeks": 7}

_TOKEN = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?![0-9])"  # an ISO date
    r"|[0-9]{1,4}([/.])[0-9]{1,2}\1[0-9]{2,4}(?![0-9])"  # 17/1/2027, 17.1.2027, 2027/1/17
    r"|[0-9]+(?:st|nd|rd|th)?(?![^\W\d_])"
    r"|[0-9]+|[^\W\d_]+|[^\w\s]",
    re.IGNORECASE,
)


class DateError(ValueError):
    """Words that name no day or no possible stay; the message names them and a correction."""

    def __init__(self, message: str, end: int = 0) -> None:
        super().__init__(message)
        self.end = end
        """The position after the last word that was read."""


class Word(NamedTuple):
    """A word, number or sign, lower-case, with its place in the text in characters."""

    text: str
    start: int
    end: int


class Day(NamedTuple):
    """A day as it was written."""

    value: date
    repeats: Literal["never", "yearly", "weekly"]
    """How a nearer or later day can be meant: a date without a year, a bare weekday, or neither."""
    relative: bool
    """Whether the day depends on today beyond the choice of a year."""
    end: int
    """The position after its last word."""


def words(text: str) -> list[Word]:
    """Split a text of any length into words; an empty text gives an empty list."""
    return [Word(m.group().lower(), m.start(), m.end()) for m in _TOKEN.finditer(text)]


def yearly_on_or_after(month: int, day: int, floor: date, end: int) -> date:
    """Return the first such day on or after `floor`; raises DateError where no calendar has it (February 30)."""
    for year in range(floor.year, min(floor.year + 9, 9999) + 1):
        try:
            value = date(year, month, day)
        except ValueError:
            continue  # 29 February, in most years
        if value >= floor:
            return value
    raise DateError(f"There is no {day} {_MONTH_NAMES[month - 1].title()}; write a day that exists.", end)


def weekly_on_or_after(weekday: int, floor: date) -> date:
    """Return the first such weekday (Monday is 0) on or after `floor`."""
    return floor + timedelta(days=(weekday - floor.weekday()) % 7)


class DayReader:
    """Reads single days from a text, for a given today."""

    def __init__(self, text: str, today: date) -> None:
        self.words = words(text)
        self.today = today

    def word(self, i: int) -> str:
        """Return the word at a position, or "" outside the text."""
        return self.words[i].text if 0 <= i < len(self.words) else ""

    def skip(self, i: int, *texts: str) -> int:
        """Return the position after one of these words, or the same position."""
        return i + 1 if self.word(i) in texts else i

    def number(self, i: int) -> int | None:
        """Return the number of at most four digits at a position ("17", "17th")."""
        digits = re.sub(r"(st|nd|rd|th)$", "", self.word(i))
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 4 else None

    def day_number(self, i: int) -> int | None:
        """Return the day of a month at a position, 1 to 31."""
        number = self.number(i)
        return number if number is not None and 1 <= number <= 31 and len(self.word(i)) <= 4 else None

    def year(self, i: int) -> tuple[int | None, int]:
        """Return the year at a position (maybe after a comma) and the position after it."""
        j = self.skip(i, ",")
        number = self.number(j)
        return (number, j + 1) if number is not None and 1900 <= number <= 2999 else (None, i)

    def length(self, i: int) -> tuple[int, int] | None:
        """Read a length ("2 nights", "a week", "a couple of days") as days, with the position after it."""
        j = self.skip(i, "a") if self.word(i + 1) == "couple" else i
        count = NUMBERS.get(self.word(j)) or self.number(j)
        j = self.skip(j + 1, "of") if self.word(j) == "couple" else j + 1
        unit = _DAYS_IN.get(self.word(j))
        return (count * unit, j + 1) if count and unit else None

    def day(self, i: int) -> Day | None:
        """Read one day at a position; None where none is written."""
        return self._written(i) or self._named(i) or self._counted(i)

    def _written(self, i: int) -> Day | None:
        """Read a calendar date: ISO, numeric, "January 17", "the 17th of January 2027", "Friday, December 4"."""
        if self.word(i) in WEEKDAYS:
            after = self._written(self.skip(i + 1, ","))
            if after and after.value.weekday() != WEEKDAYS[self.word(i)]:
                real = after.value.strftime("%A")
                raise DateError(
                    f"{after.value.isoformat()} is a {real}, not a {self.word(i).title()}; "
                    "leave the weekday out, or correct one of the two.",
                    after.end,
                )
            return after
        numeric = self._numeric(i)
        if numeric:
            return numeric
        start = self.skip(i, "the")
        if start == i and self.word(i) in MONTHS:
            month, day, end = MONTHS[self.word(i)], self.day_number(i + 1), i + 2
        else:
            middle = self.skip(start + 1, "of")
            month, day, end = MONTHS.get(self.word(middle), 0), self.day_number(start), middle + 1
        return self.dated(month, day, end) if month and day else None

    def dated(self, month: int, day: int, end: int) -> Day:
        """Make a day of a month and a day number, with the year that may stand at `end`."""
        year, end = self.year(end)
        if year is None:
            return Day(yearly_on_or_after(month, day, self.today, end), "yearly", False, end)
        return Day(_possible(year, month, day, end), "never", False, end)

    def _numeric(self, i: int) -> Day | None:
        """Read 2027-01-17, 2027/1/17, 17.1.2027, 17/1/2027 or 1/17/2027; refuse what can be read two ways."""
        text = self.word(i)
        parts = re.split(r"[-/.]", text)
        if len(parts) != 3 or not all(parts):
            return None
        first, second, third = (int(part) for part in parts)
        if len(parts[0]) == 4:
            return Day(_possible(first, second, third, i + 1), "never", False, i + 1)
        year = third if len(parts[2]) == 4 else 2000 + third
        if "/" in text and first <= 12 and second <= 12 and first != second:
            raise DateError(f"{text!r} can be read two ways; write it as year-month-day, e.g. 2027-01-17.", i + 1)
        month, day = (first, second) if "/" in text and second > 12 else (second, first)
        return Day(_possible(year, month, day, i + 1), "never", False, i + 1)

    def _named(self, i: int) -> Day | None:
        """Read today, tonight, tomorrow (night), the day after tomorrow, or a weekday."""
        one = timedelta(days=1)
        if self.word(i) in ("today", "tonight"):
            return Day(self.today, "never", True, i + 1)
        if self.word(i) == "tomorrow":
            return Day(self.today + one, "never", True, self.skip(i + 1, "night"))
        start = self.skip(i, "the")
        if [self.word(start + k) for k in range(3)] == ["day", "after", "tomorrow"]:
            return Day(self.today + 2 * one, "never", True, start + 3)
        return self._weekday(i)

    def _weekday(self, i: int) -> Day | None:
        """Read a weekday: the next one from today on; "next friday" and "friday next week" mean the week after this."""
        start = self.skip(i, "this", "next", "coming", "on")
        weekday = WEEKDAYS.get(self.word(start))
        if weekday is None and self._stands_as_day(start):
            weekday = SHORT_WEEKDAYS.get(self.word(start))
        if weekday is None:
            return None
        end = self.skip(start + 1, "night")
        behind = self.skip(end, "of")
        if self.word(behind) == "next" and self.word(behind + 1) == "week":
            return Day(self.monday(1) + timedelta(days=weekday), "never", True, behind + 2)
        if self.word(i) == "next":
            return Day(self.monday(1) + timedelta(days=weekday), "never", True, end)
        return Day(weekly_on_or_after(weekday, self.today), "weekly", True, end)

    def _stands_as_day(self, i: int) -> bool:
        """Whether a short weekday name at a position is meant as one: "on sat", "fri to sun"."""
        follows = self.word(i + 1) in ("-", "–", "—", "to") and self.word(i + 2) in SHORT_WEEKDAYS
        return follows or self.word(i - 1) in _BEFORE_SHORT_WEEKDAY

    def _counted(self, i: int) -> Day | None:
        """Read "in 3 days", "3 days from now", "a week from tomorrow"."""
        if self.word(i) == "in":
            length = self.length(i + 1)
            return Day(self.today + timedelta(days=length[0]), "never", True, length[1]) if length else None
        length = self.length(i)
        if length and self.word(length[1]) == "from" and self.word(length[1] + 1) in ("now", "today"):
            return Day(self.today + timedelta(days=length[0]), "never", True, length[1] + 2)
        return None

    def monday(self, weeks: int) -> date:
        """Return the Monday of this week (0), of the next (1), and so on."""
        return self.today + timedelta(days=7 * weeks - self.today.weekday())


def _possible(year: int, month: int, day: int, end: int) -> date:
    try:
        return date(year, month, day)
    except ValueError:
        raise DateError(f"There is no day {year:04}-{month:02}-{day:02}; write one that exists.", end) from None
