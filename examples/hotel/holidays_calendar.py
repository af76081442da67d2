"""Holidays as stays: which nights "Hanukkah" has, seen from a given today."""

from __future__ import annotations

import re
from datetime import date, timedelta

from pydantic import BaseModel, Field

from .holiday_names import country_of, match_name, near_names
from .holiday_spans import COUNTRIES, Span, spans

_YEAR = re.compile(r"\b(?:19|20|21)[0-9]{2}\b")


class HolidayError(ValueError):
    """An unknown holiday, or one without a date in that year; the message suggests similar names."""


class HolidayNights(BaseModel, frozen=True):
    """The nights of one holiday."""

    name: str = Field(description="The holiday's name as the calendar lists it.")
    country: str = Field(description="ISO 3166 code of the country whose calendar lists it, e.g. IL.")
    start: date = Field(
        description="Its first night: the check-in day for all of it. Jewish holidays start at the eve."
    )
    end: date = Field(description="Its last night, inclusive.")
    check_out: date = Field(description="The morning after its last night: the check-out day for all of it.")
    nights: int = Field(description="Number of nights from start to end, both included.")
    first_night: date = Field(
        description="The first night that can still be booked: start, or today when it has begun."
    )
    first_check_out: date = Field(description="The morning after first_night: the check-out day for that night alone.")


def resolve_holiday(name: str, today: date, year: int | None = None, country: str | None = None) -> HolidayNights:
    """Return the nights of a holiday.

    Without `year` (which may also stand in the name, "Hanukkah 2027") it is the occurrence that is under way or comes
    next; with it, the one that starts in that year. `country` is an ISO 3166 code; without it, the first of `COUNTRIES`
    that has the holiday counts. Raises HolidayError.
    """
    listed = match_name(name)
    if listed is None:
        near = near_names(name)
        hint = f"Near: {', '.join(near)}." if near else "Try a name like Hanukkah, Christmas or Thanksgiving."
        raise HolidayError(f"No holiday named {name[:80]!r} is known. {hint}")
    written = _YEAR.search(name)
    year = int(written[0]) if year is None and written else year
    places = _places(country or country_of(name))
    years = (year,) if year is not None else (today.year - 1, today.year, today.year + 1, today.year + 2)
    for place in places:
        for span in (span for one in years for span in spans(place, one)):
            if span.name == listed and (year is not None or span.last >= today):
                return _nights(span, today)
    when = f"in {year}" if year is not None else f"in the two years after {today.isoformat()}"
    where = f"the calendar of {places[0]}" if len(places) == 1 else "any calendar known here"
    raise HolidayError(
        f"{listed} is not in {where} {when}. "
        "Ask for another year, or leave year and country out for the next one anywhere."
    )


def _places(country: str | None) -> tuple[str, ...]:
    if country is None:
        return COUNTRIES
    code = country.strip().upper()
    if code not in COUNTRIES:
        raise HolidayError(f"There is no calendar for country {country[:20]!r}; known: {', '.join(COUNTRIES)}.")
    return (code,)


def _nights(span: Span, today: date) -> HolidayNights:
    first_night = max(span.first, today) if span.last >= today else span.first
    return HolidayNights(
        name=span.name,
        country=span.country,
        start=span.first,
        end=span.last,
        check_out=span.last + timedelta(days=1),
        nights=(span.last - span.first).days + 1,
        first_night=first_night,
        first_check_out=first_night + timedelta(days=1),
    )
