"""Parser of a stay ("January 17-19", "next weekend", "2 nights from December 4") in a list of words.

A stay has a check-in day and a later check-out day. Weeks run from Monday to Sunday; "this" is the week that holds
today, "next" the one after. So, on Saturday 2026-11-21, "this weekend" is what is left of the current one (to Sunday
22) and "next weekend" is Friday 2026-11-27 to Sunday 2026-11-29.
"""

from __future__ import annotations

import calendar
from datetime import date, timedelta
from typing import NamedTuple

from .date_days import MONTHS, DateError, Day, DayReader, weekly_on_or_after, yearly_on_or_after

_SEPARATORS = ("-", "–", "—", "/", "to", "till", "til", "until", "through", "thru")
_LEAVING = ("leaving", "departing", "departure", "checkout", "leave", "depart", "returning")
_LENGTH_LINKS = ("from", "starting", "beginning", "on", "in", "at", "over", "for", "during", "of", "the")
_MONTH_LINKS = ("in", "during", "for", "throughout", "next", "this")
_FRIDAY, _SUNDAY = timedelta(days=4), timedelta(days=6)
_NIGHT = timedelta(days=1)
# A longer range, in nights, came from swapped days, not from a wish to stay over New Year.
_LONGEST_UNDATED = 180


class Reading(NamedTuple):
    """A stay as it was written."""

    check_in: date
    check_out: date
    relative: bool
    """Whether it depends on today beyond the choice of a year."""
    counted: bool
    """Whether the number of nights was written out ("for 2 nights")."""
    end: int
    """The position after its last word."""


class StayReader(DayReader):
    """Reads stays from a text, for a given today."""

    def stay(self, i: int) -> Reading | None:
        """Read a stay at a position; None where none is written.

        A single day is one night. Raises DateError for an impossible stay (February 30; December 6 to December 4).
        """
        try:
            return self._counted_stay(i)
        except OverflowError:
            raise DateError("That is beyond the last day of the calendar; write an earlier date.", i + 1) from None

    def _counted_stay(self, i: int) -> Reading | None:
        """Read a stay with a length before ("2 nights from …") or behind it ("… for 2 nights"), or with none."""
        length = self.length(i)
        if length:
            j = length[1]
            for _ in range(2):
                reading = self._plain_stay(j)
                if reading:
                    return _lasting(reading, length[0], reading.end)
                j = self.skip(j, *_LENGTH_LINKS)
            reading = self._plain_stay(j)
            if reading:
                return _lasting(reading, length[0], reading.end)
        reading = self._plain_stay(i)
        if reading is None:
            return None
        length = self.length(self.skip(self.skip(reading.end, ","), "for"))
        behind = length and self.word(length[1]) not in ("from", "in", "at", "on", "over", "of", "during")
        return _lasting(reading, length[0], length[1]) if length and behind else reading

    def _plain_stay(self, i: int) -> Reading | None:
        """Read a range of days, a week, weekend or month, or a single day."""
        start = self.skip(i, "from", "between")
        reading = self._day_range(start) or self._dates(start, between=self.word(i) == "between")
        return reading or self._weekend(i) or self._week(i) or self._month(i)

    def _day_range(self, i: int) -> Reading | None:
        """Read days of one month: "January 17-19", "17-19 January 2027"."""
        month = MONTHS.get(self.word(i), 0)
        first, link = (self.day_number(i + 1), i + 2) if month else (self.day_number(i), i + 1)
        if self.word(link) not in _SEPARATORS:
            return None
        place = self.skip(link + 1, "the")
        last, end = self.day_number(place), place + 1
        if not month:
            end = self.skip(end, "of")
            month, end = MONTHS.get(self.word(end), 0), end + 1
        if not month or not first or not last or last <= first:
            return None
        check_in, check_out = self.dated(month, first, end), self.dated(month, last, end)
        if check_in.repeats == "yearly":
            check_out = check_out._replace(value=yearly_on_or_after(month, last, check_in.value, end))
        return _between(check_in, check_out)

    def _dates(self, i: int, *, between: bool) -> Reading | None:
        """Read one day, or two with a word like "to" between them."""
        first = self.day(i)
        if first is None:
            return None
        link = self._link(first.end, between=between)
        last = self.day(link) if link else None
        if last is None:
            return Reading(first.value, first.value + _NIGHT, first.relative, False, first.end)
        return _between(*_nearest(first, last))

    def _link(self, i: int, *, between: bool) -> int:
        """Return the position after "to", "leaving on" and the like, or 0."""
        if self.word(i) in _SEPARATORS or (between and self.word(i) == "and"):
            return i + 1
        j = self.skip(self.skip(i, ","), "and")
        if self.word(j) in _LEAVING:
            return self.skip(j + 1, "on", ":")
        if self.word(j) in ("check", "checking"):
            j = self.skip(j + 1, "-")
            if self.word(j) == "out":
                return self.skip(j + 1, "on", ":")
        return 0

    def _weekend(self, i: int) -> Reading | None:
        """Read "this weekend", "next weekend", "the weekend after next", "the weekend of January 17"."""
        bare = self.word(i) == "weekend"
        if not bare and (self.word(i) not in ("this", "next", "the", "coming") or self.word(i + 1) != "weekend"):
            return None
        end = i + 1 if bare else i + 2
        if self.word(end) == "after" and self.word(end + 1) == "next":
            return self._friday_to_sunday(self.monday(2), end + 2)
        if self.word(end) in ("of", "around"):
            day = self.day(end + 1)
            return self._friday_to_sunday(day.value - timedelta(days=day.value.weekday()), day.end) if day else None
        if bare or self.word(end) in ("before", "after", "at"):
            return None  # neither "a weekend" nor "the weekend after Thanksgiving" is this weekend
        return self._friday_to_sunday(self.monday(1 if self.word(i) == "next" else 0), end)

    def _friday_to_sunday(self, monday: date, end: int) -> Reading:
        check_in = max(monday + _FRIDAY, self.today) if monday + _SUNDAY >= self.today else monday + _FRIDAY
        return Reading(check_in, max(monday + _SUNDAY, check_in + _NIGHT), True, False, end)

    def _week(self, i: int) -> Reading | None:
        """Read "next week" (Monday to Monday) or "this week" (what is left of it)."""
        if self.word(i) not in ("this", "next") or self.word(i + 1) != "week" or self.word(i - 1) == "of":
            return None
        weeks = 1 if self.word(i) == "next" else 0
        return Reading(max(self.monday(weeks), self.today), self.monday(weeks + 1), True, False, i + 2)

    def _month(self, i: int) -> Reading | None:
        """Read a whole month, from its first day (or today) to its last: "in January", "next month", "January 2027"."""
        linked = self.word(i) in _MONTH_LINKS and self.word(i - 1) != "of"
        place = i + 1 if linked else i
        first = self.today.replace(day=1)
        if linked and self.word(place) == "month" and self.word(i) in ("next", "this"):
            first = _next_month(first) if self.word(i) == "next" else first
            return self._rest_of_month(first, place + 1, relative=True)
        month = MONTHS.get(self.word(place))
        year, end = self.year(place + 1)
        if month is None or not (year or (linked and self.day_number(end) is None)):
            return None  # "check in December 4" names a day
        value = date(year, month, 1) if year else yearly_on_or_after(month, 1, first, end)
        return self._rest_of_month(value, end, relative=False)

    def _rest_of_month(self, first: date, end: int, *, relative: bool) -> Reading:
        last = first.replace(day=calendar.monthrange(first.year, first.month)[1])
        check_in = max(first, self.today) if last >= self.today else first
        return Reading(check_in, max(last, check_in + _NIGHT), relative, False, end)


def _next_month(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1)


def _lasting(reading: Reading, nights: int, end: int) -> Reading:
    return reading._replace(check_out=reading.check_in + timedelta(days=nights), counted=True, end=end)


def _nearest(first: Day, last: Day) -> tuple[Day, Day]:
    """Choose the year or week that was not written so that the last day follows the first."""
    if first.repeats == "yearly" and last.repeats == "never" and not last.relative:
        value = first.value
        year = last.value.year if (value.month, value.day) < (last.value.month, last.value.day) else last.value.year - 1
        first = first._replace(value=yearly_on_or_after(value.month, value.day, date(max(year, 1), 1, 1), last.end))
    floor = first.value + _NIGHT
    if last.repeats == "yearly":
        value = last.value
        last = last._replace(value=yearly_on_or_after(value.month, value.day, floor, last.end))
    if last.repeats == "weekly":
        last = last._replace(value=weekly_on_or_after(last.value.weekday(), floor))
    return first, last


def _between(first: Day, last: Day) -> Reading:
    if last.value <= first.value:
        raise DateError(
            f"The check-out {last.value.isoformat()} does not come after the check-in {first.value.isoformat()}; "
            "write the earlier day first.",
            last.end,
        )
    nights = (last.value - first.value).days
    if "yearly" in (first.repeats, last.repeats) and nights > _LONGEST_UNDATED:
        raise DateError(
            f"From {first.value.isoformat()} to {last.value.isoformat()} are {nights} nights; "
            "write the earlier day first, or both years.",
            last.end,
        )
    return Reading(first.value, last.value, first.relative or last.relative, False, last.end)
