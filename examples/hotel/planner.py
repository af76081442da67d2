"""The next tool calls for a request and the results so far. Pure, and without a model.

Holidays and phrases are resolved first; explicit dates need no resolving, so their rooms are looked up at once. A call
is made once: it is not repeated, whatever its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from .question import Request, Stay, Wanted

HOLIDAY = "calendar.resolve_holiday"
DATE_HINT = "calendar.resolve_date_hint"
AVAILABILITY = "pms.get_availability"
BOOKING = "pms.book_room"
TOOLS = (HOLIDAY, DATE_HINT, AVAILABILITY, BOOKING)


@dataclass(frozen=True)
class Call:
    """A tool call."""

    tool: str
    """One of `TOOLS`."""
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A tool call with its result."""

    call: Call
    data: dict[str, Any] | None
    """The tool's structured answer; None when there is none."""
    error: str | None
    """Why there is no answer; None when there is one."""


def next_calls(request: Request, done: list[Outcome]) -> list[Call]:
    """Return the calls to make now, none twice; empty when nothing is left to ask."""
    calls: list[Call] = []
    for wanted in request.wanted:
        open_calls = [call for call in resolving_calls(request, wanted) if outcome_of(call, done) is None]
        if open_calls:
            calls += open_calls
            continue
        stay = stay_of(wanted, done)
        if stay and request.intent != "dates":
            calls += room_calls(request, stay)
    fresh = [call for call in calls if outcome_of(call, done) is None]
    return [call for i, call in enumerate(fresh) if call not in fresh[:i]]


def resolving_calls(request: Request, wanted: Wanted) -> list[Call]:
    """Return the calls that resolve the days of a stay; none for explicit dates that need no confirmation."""
    ends = [wanted, wanted.until] if wanted.until else [wanted]
    calls = [_resolving_call(end, always=request.intent == "dates") for end in ends]
    return [call for call in calls if call]


def room_calls(request: Request, stay: Stay) -> list[Call]:
    """Return the calls for one stay: bookings if all details are given, else a search for free rooms."""
    return stay_calls(request, stay[0].isoformat(), stay[1].isoformat())


def stay_calls(request: Request, check_in: str, check_out: str) -> list[Call]:
    """Return the calls for a stay by its days: ISO dates, or references to them in a plan."""
    days = {"check_in": check_in, "check_out": check_out}
    if can_book(request):
        return [Call(BOOKING, {"room": room, **days, "guest_name": request.guest_name}) for room in request.rooms]
    guests = {} if request.guests is None else {"guests": request.guests}
    return [Call(AVAILABILITY, {**days, **guests})]


def can_book(request: Request) -> bool:
    """Whether the request is a booking with a room and a guest name."""
    return request.intent == "book" and bool(request.rooms and request.guest_name)


def outcome_of(call: Call, done: list[Outcome]) -> Outcome | None:
    """Return the latest result of a call; None if it was not made."""
    return next((outcome for outcome in reversed(done) if outcome.call == call), None)


def stay_of(wanted: Wanted, done: list[Outcome]) -> Stay | None:
    """Return the days of a stay; None while they are not known, or when there are none."""
    known = _known_days(wanted, done)
    if known is None:
        return None
    whole, bookable = known
    if wanted.until:
        last = _known_days(wanted.until, done)
        return (bookable, last[0][0]) if last and last[0][0] > bookable else None
    return (bookable, whole[1]) if wanted.nights is None else wanted.nights.of(whole, bookable)


def _resolving_call(wanted: Wanted, *, always: bool) -> Call | None:
    if wanted.kind == "holiday":
        year = {} if wanted.year is None else {"year": wanted.year}
        return Call(HOLIDAY, {"name": wanted.text, **year})
    return Call(DATE_HINT, {"phrase": wanted.text}) if wanted.kind == "hint" or always else None


def _known_days(wanted: Wanted, done: list[Outcome]) -> tuple[Stay, date] | None:
    """Return a whole stay and its first bookable day."""
    if wanted.stay is not None:
        return wanted.stay, wanted.stay[0]
    call = _resolving_call(wanted, always=False)
    outcome = outcome_of(call, done) if call else None
    return _days(outcome.data) if outcome and outcome.data else None


def _days(data: dict[str, Any]) -> tuple[Stay, date] | None:
    """Read the answer of either calendar tool."""
    try:
        check_in = date.fromisoformat(data["start"] if "start" in data else data["check_in"])
        bookable = date.fromisoformat(data.get("first_night") or check_in.isoformat())
        return (check_in, date.fromisoformat(data["check_out"])), bookable
    except (KeyError, TypeError, ValueError):
        return None
