"""Parser of a person's question: stays, nights of a stay, guests, a room, a name.

Rules, not understanding: each field is found by its own pattern, and what no pattern finds is not there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Literal, NamedTuple

from .date_days import NUMBERS
from .dates import Phrase, find_phrases
from .holiday_names import find_names
from .rooms import ROOMS

LONGEST_QUESTION = 4000
"""Characters of a question that are read."""

Stay = tuple[date, date]
"""Check-in and check-out day."""

_ORDINAL_NAMES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_ORDINALS = {name: n for n, name in enumerate(_ORDINAL_NAMES, 1)}
_COUNT = "|".join(sorted(NUMBERS, key=len, reverse=True)) + r"|\d{1,3}"
_NIGHTS = re.compile(
    rf"\b(?:(?P<ordinal>{'|'.join(_ORDINALS)}|last|\d{{1,2}}(?:st|nd|rd|th))\s+)?"
    rf"(?:(?P<count>{_COUNT})\s+(?:of\s+)?)?(?:only\s+|single\s+)?nights?\b",
    re.IGNORECASE,
)
_GUESTS = re.compile(rf"\b({_COUNT})\s+(?:guests?|people|persons?|adults?|travell?ers?|of us)\b", re.IGNORECASE)
_FOR_GUESTS = re.compile(
    rf"\bfor\s+(?!an?\b)({_COUNT})\b\s*(?=$|[.,;!?]|(?:on|in|at|from|over|during)\b)", re.IGNORECASE
)
_ROOM = re.compile(rf"\b({'|'.join(room[0] for room in ROOMS)})s?\b(?!\s*-?\s*check)", re.IGNORECASE)
_YEAR_BEHIND = re.compile(r"\s*,?\s*(?:of\s+|in\s+)?((?:19|20|21)\d\d)\b(?!-)")
_NAME = r"((?:(?:Mr|Mrs|Ms|Dr)\.?\s+)?[^\W\d_a-z][\w'’-]*(?:\s+[^\W\d_a-z][\w'’-]*){0,3})"
_GUEST_NAME = re.compile(
    rf"\b(?:[Ff]or|[Uu]nder|[Nn]ame\s+of|[Nn]ame\s+is|[Nn]ame:|[Gg]uest:?|[Ii]\s+am|I'm)\s+{_NAME}"
)
_MAYBE_HOLIDAY = re.compile(rf"\b(?:[Ff]or|[Oo]ver|[Dd]uring|[Aa]t|[Aa]round|[Ww]hen\s+(?:is|are|was))\s+{_NAME}")
_BOOK = re.compile(r"\b(?:book|reserve|(?:make|want|need) an? (?:booking|reservation))\b", re.IGNORECASE)
_CLAUSE = re.compile(r"\band\b|,|;", re.IGNORECASE)
_NOT_BOOK = re.compile(
    r"(?:\bnot|n't|n’t|\bwithout|\bnever|\bhow (?:do|can|to)\b.{0,12})\s+(?:book|reserve)", re.IGNORECASE
)
_WHEN = re.compile(r"\b(?:when|what (?:date|day)|which (?:date|day)|how (?:long|many (?:nights|days)))", re.IGNORECASE)
_ROOMS = re.compile(
    r"\b(?:rooms?|avail\w*|free|vacan\w*|stay|sleep|pric\w*|cost\w*|cheap\w*|hotel|bed)\b", re.IGNORECASE
)
_GOES_ON = re.compile(
    r"\s*(?:and|or|what about|how about|also|then|ok|okay|yes|please|for|it|that|the)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Nights:
    """A part of a stay: some nights, from one on."""

    first: int
    """1 is the stay's first night that can be booked (`ordinal` false) or its first night at all; -1 its last."""
    count: int
    ordinal: bool

    def of(self, whole: Stay, bookable: date) -> Stay | None:
        """Return these nights of a stay; None when it does not have them ("the ninth night of Hanukkah")."""
        night = timedelta(days=1)
        if not self.ordinal:
            return bookable, bookable + self.count * night
        start = whole[1] - self.count * night if self.first < 0 else whole[0] + (self.first - 1) * night
        end = start + self.count * night
        return (start, end) if whole[0] <= start and end <= whole[1] else None


@dataclass(frozen=True)
class Wanted:
    """One requested stay, as it was written."""

    kind: Literal["dates", "hint", "holiday"]
    """Explicit dates; a phrase to be resolved against today; a holiday's name."""
    text: str
    stay: Stay | None = None
    """For explicit dates only."""
    year: int | None = None
    """For a holiday with a year only."""
    nights: Nights | None = None
    """None for all of it."""
    until: Wanted | None = None
    """The end of the stay if it is a stay itself ("from Christmas to New Year")."""


@dataclass(frozen=True)
class Request:
    """A parsed request; `wanted` is empty if no date or holiday was found."""

    intent: Literal["rooms", "book", "dates"] = "rooms"
    """Search for rooms; book one; or only resolve the dates of a holiday or phrase."""
    wanted: tuple[Wanted, ...] = ()
    guests: int | None = None
    rooms: tuple[str, ...] = ()
    guest_name: str | None = None
    cut: bool = False
    """Whether the question was too long to be read to its end."""


def read_questions(texts: list[str], today: date) -> Request:
    """Read the last of several questions; missing details ("and next weekend?") are taken from earlier ones."""
    request = Request()
    for text in texts:
        request = _carry_on(request, read_question(text, today), text)
    return request


def read_question(text: str, today: date) -> Request:
    """Read one question by itself; a text of any length, without or with sense. Never raises."""
    cut, text = len(text) > LONGEST_QUESTION, text[:LONGEST_QUESTION]
    wanted, rest = _find_wanted(text, today)
    guests = _GUESTS.search(rest) or _FOR_GUESTS.search(rest)
    name = _GUEST_NAME.search(rest)
    books = bool(_BOOK.search(text)) and not _NOT_BOOK.search(text)
    if not wanted and not books and (_ROOMS.search(text) or _WHEN.search(text)):
        unknown = _MAYBE_HOLIDAY.search(rest)
        wanted = (Wanted("holiday", unknown[1]),) if unknown else ()
    only_dates = _WHEN.search(text) and not _ROOMS.search(text)
    return Request(
        intent="book" if books else "dates" if only_dates else "rooms",
        wanted=wanted,
        guests=_count(guests[1]) if guests else None,
        rooms=tuple(dict.fromkeys(found.lower() for found in _ROOM.findall(rest))),
        guest_name=name[1].rstrip(" '’-") if name else None,
        cut=cut,
    )


def _carry_on(before: Request, now: Request, text: str) -> Request:
    goes_on = bool(_GOES_ON.match(text))
    if now.wanted:
        guests = now.guests or (before.guests if goes_on else None)
        asks_dates = goes_on and before.intent == "dates" and now.intent == "rooms" and not _ROOMS.search(text)
        return replace(now, guests=guests, intent="dates" if asks_dates else now.intent)
    adds = now.intent == "book" or now.guests or now.rooms or now.guest_name
    if not before.wanted or not adds:
        return now
    completes = before.intent == "book" and (now.guest_name or now.rooms)
    return Request(
        intent="book" if now.intent == "book" or completes else "rooms",
        wanted=before.wanted,
        guests=now.guests or before.guests,
        rooms=now.rooms or before.rooms,
        guest_name=now.guest_name or before.guest_name,
        cut=now.cut,
    )


class _Place(NamedTuple):
    """A stay with its place in the text; `counted` if it contains the number of nights."""

    start: int
    end: int
    wanted: Wanted
    counted: bool


def _find_wanted(text: str, today: date) -> tuple[tuple[Wanted, ...], str]:
    """Return the stays named in a text, in order, and the text with them blotted out."""
    places: list[_Place] = []
    rest = text
    for mention in find_names(text):  # before the dates: "Easter Monday" is no Monday
        year = _YEAR_BEHIND.match(text, mention.end)
        end = year.end() if year else mention.end
        wanted = Wanted("holiday", mention.text, year=int(year[1]) if year else None)
        places.append(_Place(mention.start, end, wanted, counted=False))
        rest = _blot(rest, mention.start, end)
    # "until January 2" alone names no stay; behind a holiday it ends one.
    rest = re.sub(r"(?<=;)(\s*)(until|till)\b", lambda m: m[1] + "to".ljust(len(m[2])), rest)
    for phrase in find_phrases(rest, today):
        places.append(_Place(phrase.start, phrase.end, _wanted_dates(phrase), phrase.counted))
        rest = _blot(rest, phrase.start, phrase.end)
    places = _joined(rest, sorted(places))
    found = [
        place.wanted if place.counted else replace(place.wanted, nights=_nights_for(rest, places, i))
        for i, place in enumerate(places)
    ]
    return tuple(dict.fromkeys(found)), rest


def _joined(rest: str, places: list[_Place]) -> list[_Place]:
    """Make one stay of two with "to" between them; date phrases have done that among themselves."""
    joined: list[_Place] = []
    for place in places:
        last = joined[-1] if joined else None
        if last and not last.wanted.until and _links(rest, last, place):
            joined[-1] = _Place(last.start, place.end, replace(last.wanted, until=place.wanted), counted=True)
        else:
            joined.append(place)
    return joined


def _links(rest: str, first: _Place, last: _Place) -> bool:
    link = rest[first.end : last.start].strip().lower()
    between = rest[: first.start].rstrip().lower().endswith("between")
    return link in ("to", "until", "till", "through", "-", "–", "—") or (between and link == "and")


def _wanted_dates(phrase: Phrase) -> Wanted:
    if phrase.relative or phrase.check_in is None or phrase.check_out is None:
        return Wanted("hint", phrase.text)
    return Wanted("dates", phrase.text, stay=(phrase.check_in, phrase.check_out))


def _nights_for(rest: str, places: list[_Place], i: int) -> Nights | None:
    """Find "one night", "the last two nights" before a stay or, failing that, behind it."""
    before = rest[places[i - 1].end if i else 0 : places[i].start]
    found = _stated_nights(before)
    if i:
        # "Hanukkah first night and next weekend": what stands before the "and" belongs to Hanukkah.
        found = [match for match in found if not _CLAUSE.search(before, match.end())]
    if not found and i + 1 < len(places):
        behind = rest[places[i].end : places[i + 1].start]
        found = _stated_nights(" ".join(_CLAUSE.split(behind)[:-1]))[:1]
    elif not found:
        found = _stated_nights(rest[places[i].end :])[:1]
    if not found:
        return None
    ordinal, count = (found[-1]["ordinal"] or "").lower(), _count(found[-1]["count"] or "1")
    if not ordinal:
        return Nights(1, count, ordinal=False)
    first = -1 if ordinal == "last" else _ORDINALS.get(ordinal) or int(re.sub(r"\D", "", ordinal))
    return Nights(first, count, ordinal=True)


def _stated_nights(text: str) -> list[re.Match[str]]:
    return [match for match in _NIGHTS.finditer(text) if match["ordinal"] or match["count"]]


def _count(text: str) -> int:
    return NUMBERS.get(text.lower()) or int(text)


def _blot(text: str, start: int, end: int) -> str:
    # A sign, so that words left and right of it are not read as one phrase.
    return text[:start] + ";" * (end - start) + text[end:]
