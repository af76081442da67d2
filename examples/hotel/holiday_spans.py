"""Data of the `holidays` package as named runs of nights.

The package lists single days, country by country; here the days of one holiday are joined, its several names are made
one, and holidays that begin on the evening before are moved to that evening.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple

import holidays
from holidays.constants import HOLIDAY_NAME_DELIMITER

# A name known in several countries means the one of the first of these.
COUNTRIES = ("US", "GB", "CA", "IL", "IE", "TR", "IN", "CN", "DE", "FR", "IT", "MX", "BR", "SE", "JP", "KR", "AU", "NZ")
_CATEGORIES = {"public", "optional", "school", "unofficial", "government", "catholic"}
# Days off around a holiday, which have no name of their own.
_NO_HOLIDAY = re.compile(
    r"observed|in lieu|substitut|alternative holiday|joint holiday|day off|additional|\(from |^The (day|second)|Eve of|"
    r"(Local|Government) Election",
    re.IGNORECASE,
)
_ONE_NAME = {
    "Pesach": "Passover",
    "Pesach holiday": "Passover",
    "Seventh day of Pesach": "Passover",
    "Sukkot holiday": "Sukkot",
    "Christmas": "Christmas Day",
    "Labour Day": "Labor Day",
}
# Jewish holidays begin at sunset on the eve of the day that calendars list.
_FROM_THE_EVE = {
    "Hanukkah",
    "Lag BaOmer",
    "Passover",
    "Purim",
    "Rosh Hashanah",
    "Shavuot",
    "Simchat Torah / Shemini Atzeret",
    "Sukkot",
    "Tisha B'Av",
    "Yom Kippur",
}


class Span(NamedTuple):
    """One holiday of one year, as nights."""

    name: str
    country: str
    """ISO 3166 code of the calendar that lists it."""
    first: date
    """Its first night."""
    last: date
    """Its last night; the stay ends on the morning after."""


@lru_cache(maxsize=256)
def spans(country: str, year: int) -> tuple[Span, ...]:
    """Return the holidays of a country whose first night is in a year, by date; empty for a year it has no data for."""
    days: dict[str, list[date]] = {}
    # A holiday can run over New Year's Eve: Hanukkah of 2024 ends in January 2025.
    for day, listed in sorted(_calendar(country, year).items()):
        for name in listed.split(HOLIDAY_NAME_DELIMITER):
            if not _NO_HOLIDAY.search(name):
                plain = name.replace(" (estimated)", "")
                days.setdefault(_ONE_NAME.get(plain, plain), []).append(day)
    found = [span for name, dates in days.items() for span in _runs(name, country, dates)]
    return tuple(sorted((span for span in found if span.first.year == year), key=lambda span: (span.first, span.name)))


@lru_cache(maxsize=1)
def known_names() -> tuple[str, ...]:
    """Return the names of all holidays of this year and the next, each once, those of the first countries first."""
    year = date.today().year
    listed = (span.name for country in COUNTRIES for y in (year, year + 1) for span in spans(country, y))
    return tuple(dict.fromkeys(listed))


def _calendar(country: str, year: int) -> holidays.HolidayBase:
    entity = getattr(holidays, country)
    languages = entity.supported_languages
    language = "en_US" if "en_US" in languages else next((one for one in languages if one.startswith("en")), None)
    return holidays.country_holidays(
        country,
        years=(year - 1, year, year + 1),
        expand=False,
        language=language,
        categories=sorted(_CATEGORIES.intersection(entity.supported_categories)),
    )


def _runs(name: str, country: str, days: list[date]) -> list[Span]:
    """Join the days of a name that follow one another."""
    runs: list[list[date]] = []
    for day in days:
        if runs and day - runs[-1][-1] <= timedelta(days=1):
            runs[-1].append(day)
        else:
            runs.append([day])
    shift = timedelta(days=1 if name in _FROM_THE_EVE else 0)
    return [Span(name, country, run[0] - shift, run[-1] - shift) for run in runs]
