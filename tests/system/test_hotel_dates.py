"""Date phrases and holidays of the hotel example, as tables."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.hotel.date_days import DateError
from examples.hotel.dates import find_phrases, resolve_phrase
from examples.hotel.holidays_calendar import HolidayError, HolidayNights, resolve_holiday

SATURDAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("phrase", "check_in", "check_out"),
    [
        ("tonight", "2026-11-21", "2026-11-22"),
        ("tomorrow", "2026-11-22", "2026-11-23"),
        ("the day after tomorrow", "2026-11-23", "2026-11-24"),
        ("in 3 days", "2026-11-24", "2026-11-25"),
        ("a week from now", "2026-11-28", "2026-11-29"),
        ("friday", "2026-11-27", "2026-11-28"),
        ("next friday", "2026-11-27", "2026-11-28"),
        ("friday next week", "2026-11-27", "2026-11-28"),
        ("this sat", "2026-11-21", "2026-11-22"),
        ("from friday to sunday", "2026-11-27", "2026-11-29"),
        ("fri-sun", "2026-11-27", "2026-11-29"),
        ("this weekend", "2026-11-21", "2026-11-22"),
        ("next weekend", "2026-11-27", "2026-11-29"),
        ("the weekend after next", "2026-12-04", "2026-12-06"),
        ("weekend of January 17", "2027-01-15", "2027-01-17"),
        ("this week", "2026-11-21", "2026-11-23"),
        ("next week", "2026-11-23", "2026-11-30"),
        ("next month", "2026-12-01", "2026-12-31"),
        ("January", "2027-01-01", "2027-01-31"),
        ("in November", "2026-11-21", "2026-11-30"),
        ("January 17", "2027-01-17", "2027-01-18"),
        ("the 17th of January", "2027-01-17", "2027-01-18"),
        ("Friday, December 4", "2026-12-04", "2026-12-05"),
        ("January 17-19", "2027-01-17", "2027-01-19"),
        ("January 17 to 19", "2027-01-17", "2027-01-19"),
        ("Jan 17–19, 2028", "2028-01-17", "2028-01-19"),
        ("17-19 January", "2027-01-17", "2027-01-19"),
        ("Jan 17 to Jan 19 2027", "2027-01-17", "2027-01-19"),
        ("between january 17 and january 19", "2027-01-17", "2027-01-19"),
        ("check in December 4 and check out December 6", "2026-12-04", "2026-12-06"),
        ("dec 30 to jan 2", "2026-12-30", "2027-01-02"),
        ("dec 30 to jan 2 2027", "2026-12-30", "2027-01-02"),
        ("November 20", "2027-11-20", "2027-11-21"),
        ("February 29", "2028-02-29", "2028-03-01"),
        ("2026-12-04", "2026-12-04", "2026-12-05"),
        ("2026-12-04 to 2026-12-06", "2026-12-04", "2026-12-06"),
        ("2026-12-04/2026-12-06", "2026-12-04", "2026-12-06"),
        ("25/12/2026", "2026-12-25", "2026-12-26"),
        ("2 nights from December 4", "2026-12-04", "2026-12-06"),
        ("a couple of nights from friday", "2026-11-27", "2026-11-29"),
        ("tomorrow for two nights", "2026-11-22", "2026-11-24"),
        ("for a week from December 4", "2026-12-04", "2026-12-11"),
    ],
)
def test_a_phrase_means_a_stay(phrase: str, check_in: str, check_out: str) -> None:
    stay = resolve_phrase(phrase, SATURDAY)

    assert stay == (date.fromisoformat(check_in), date.fromisoformat(check_out))


@pytest.mark.parametrize(
    ("today", "this_weekend", "next_weekend"),
    [
        ("2026-11-23", ("2026-11-27", "2026-11-29"), ("2026-12-04", "2026-12-06")),  # Monday
        ("2026-11-27", ("2026-11-27", "2026-11-29"), ("2026-12-04", "2026-12-06")),  # Friday
        ("2026-11-21", ("2026-11-21", "2026-11-22"), ("2026-11-27", "2026-11-29")),  # Saturday
        ("2026-11-22", ("2026-11-22", "2026-11-23"), ("2026-11-27", "2026-11-29")),  # Sunday
    ],
)
def test_weekends_from_any_day(today: str, this_weekend: tuple[str, str], next_weekend: tuple[str, str]) -> None:
    day = date.fromisoformat(today)

    stays = [resolve_phrase(phrase, day) for phrase in ("this weekend", "next weekend")]

    assert [tuple(map(str, stay)) for stay in stays] == [this_weekend, next_weekend]


@pytest.mark.parametrize(
    ("phrase", "message"),
    [
        (
            "Monday December 4",
            "2026-12-04 is a Friday, not a Monday; leave the weekday out, or correct one of the two.",
        ),
        ("Feb 30", "There is no 30 February; write a day that exists."),
        ("29 Feb 2027", "There is no day 2027-02-29; write one that exists."),
        ("12/4/2026", "'12/4/2026' can be read two ways; write it as year-month-day, e.g. 2027-01-17."),
        (
            "2026-12-06 to 2026-12-04",
            "The check-out 2026-12-04 does not come after the check-in 2026-12-06; write the earlier day first.",
        ),
        (
            "December 6 to December 4",
            "From 2026-12-06 to 2027-12-04 are 363 nights; write the earlier day first, or both years.",
        ),
        ("9999-12-31", "That is beyond the last day of the calendar; write an earlier date."),
        ("tomorrow or friday", "2 date phrases in 'tomorrow or friday': 'tomorrow', 'friday'. Ask for one at a time."),
    ],
)
def test_an_impossible_phrase_reports_the_reason(phrase: str, message: str) -> None:
    with pytest.raises(DateError) as caught:
        resolve_phrase(phrase, SATURDAY)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    "phrase", ["", "hello", "May I ask", "before friday", "end of next month", "the weekend after Thanksgiving", "24/7"]
)
def test_a_phrase_without_a_stay_lists_accepted_forms(phrase: str) -> None:
    with pytest.raises(DateError, match=r"^No date phrase in .*\. Understood are, for example: tonight, tomorrow, "):
        resolve_phrase(phrase, SATURDAY)


def test_phrases_are_found_in_a_text() -> None:
    text = "Is anything free on January 17-19, or else next weekend? I sat down at 5."

    found = find_phrases(text, SATURDAY)

    assert [(one.text, str(one.check_in), str(one.check_out), one.relative) for one in found] == [
        ("January 17-19", "2027-01-17", "2027-01-19", False),
        ("next weekend", "2026-11-27", "2026-11-29", True),
    ]


_DAYS = st.dates(date(1990, 1, 1), date(2990, 12, 31))
# fmt: off
_PARTS = st.sampled_from([
    "in", "on", "the", "from", "to", "until", "-", ",", "and", "for", "of", "next", "this", "weekend", "week", "month",
    "day", "after", "tomorrow", "tonight", "friday", "sun", "january", "Feb", "dec", "1", "2", "17", "19", "29", "31st",
    "2027", "2026-12-04", "12/25/2026", "a", "two", "couple", "nights", "weeks", "between", "check", "out", "leaving",
])
# fmt: on
_PHRASES = st.lists(_PARTS, max_size=12).map(" ".join) | st.text(max_size=60)


@given(_PHRASES, _DAYS)
def test_a_stay_has_at_least_one_night(phrase: str, today: date) -> None:
    found = find_phrases(phrase, today)

    assert [one for one in found if one.error is None and not _is_stay(one.check_in, one.check_out)] == []


@given(_DAYS, st.integers(0, 400), st.integers(1, 60))
def test_a_written_range_is_read_as_it_stands(today: date, ahead: int, nights: int) -> None:
    check_in = today + timedelta(days=ahead)
    check_out = check_in + timedelta(days=nights)

    stay = resolve_phrase(f"from {check_in:%d %B} {check_in.year} to {check_out:%B %d}, {check_out.year}", today)

    assert stay == (check_in, check_out)


def _is_stay(check_in: date | None, check_out: date | None) -> bool:
    return check_in is not None and check_out is not None and check_in < check_out


@pytest.mark.parametrize(
    ("name", "listed", "country", "start", "end", "nights"),
    [
        ("Hanukkah", "Hanukkah", "IL", "2026-12-04", "2026-12-11", 8),
        ("hannuka", "Hanukkah", "IL", "2026-12-04", "2026-12-11", 8),
        ("the first night of Chanukah", "Hanukkah", "IL", "2026-12-04", "2026-12-11", 8),
        ("Hanukkah 2024", "Hanukkah", "IL", "2024-12-25", "2025-01-01", 8),
        ("Passover", "Passover", "IL", "2027-04-21", "2027-04-27", 7),
        ("rosh hashana", "Rosh Hashanah", "IL", "2027-10-01", "2027-10-02", 2),
        ("Xmas", "Christmas Day", "US", "2026-12-25", "2026-12-25", 1),
        ("christmass", "Christmas Day", "US", "2026-12-25", "2026-12-25", 1),
        ("Thanksgiving", "Thanksgiving Day", "US", "2026-11-26", "2026-11-26", 1),
        ("easter", "Easter Sunday", "US", "2027-03-28", "2027-03-28", 1),
        ("New Year", "New Year's Day", "US", "2027-01-01", "2027-01-01", 1),
        ("new years eve", "New Year's Eve", "US", "2026-12-31", "2026-12-31", 1),
        ("Bastille Day", "National Day", "FR", "2027-07-14", "2027-07-14", 1),
    ],
)
def test_a_holiday_has_nights(name: str, listed: str, country: str, start: str, end: str, nights: int) -> None:
    found = resolve_holiday(name, SATURDAY)

    assert found == HolidayNights(
        name=listed,
        country=country,
        start=date.fromisoformat(start),
        end=date.fromisoformat(end),
        check_out=date.fromisoformat(end) + timedelta(days=1),
        nights=nights,
        first_night=date.fromisoformat(start),
        first_check_out=date.fromisoformat(start) + timedelta(days=1),
    )


def test_a_holiday_under_way_can_be_booked_from_today() -> None:
    found = resolve_holiday("Hanukkah", date(2026, 12, 6))

    assert (found.start, found.first_night, found.end) == (date(2026, 12, 4), date(2026, 12, 6), date(2026, 12, 11))


def test_a_holiday_of_a_given_country() -> None:
    found = resolve_holiday("Thanksgiving", SATURDAY, country="ca")

    assert (found.country, found.start) == ("CA", date(2027, 10, 11))


@pytest.mark.parametrize(
    ("name", "year", "country", "message"),
    [
        ("Hanuman", None, None, "No holiday named 'Hanuman' is known. Near: Hanukkah"),
        ("", None, None, "No holiday named '' is known. Try a name like Hanukkah, Christmas or Thanksgiving."),
        ("Hanukkah", 2026, "US", "Hanukkah is not in the calendar of US in 2026. Ask for another year"),
        ("Christmas", None, "Atlantis", "There is no calendar for country 'Atlantis'; known: US, GB, CA, IL"),
    ],
)
def test_an_unknown_holiday_suggests_the_nearest(
    name: str, year: int | None, country: str | None, message: str
) -> None:
    with pytest.raises(HolidayError) as caught:
        resolve_holiday(name, SATURDAY, year, country)

    assert str(caught.value).startswith(message)
