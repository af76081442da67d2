"""Structured plans of the due calls: a wave of calls, or one plan whose calls need each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any, Literal

from .date_days import DateError
from .dates import resolve_phrase
from .holidays_calendar import HolidayError, resolve_holiday
from .planner import (
    AVAILABILITY,
    BOOKING,
    DATE_HINT,
    HOLIDAY,
    Call,
    Outcome,
    can_book,
    next_calls,
    resolving_calls,
    room_calls,
    stay_calls,
    stay_of,
)
from .question import Request, Stay, Wanted

Style = Literal["wave", "dag"]
"""One plan for each wave; or everything in one plan, ordered by needs."""

_NAMES = {HOLIDAY: "holiday", DATE_HINT: "dates", AVAILABILITY: "rooms", BOOKING: "booking"}
_ACTIONS = {HOLIDAY: "find the dates", DATE_HINT: "find the dates", AVAILABILITY: "look up rooms", BOOKING: "book"}
_Named = list[tuple[str, Call]]
"""Calls with the ids that a plan gives them."""


def make_plan(
    request: Request, done: list[Outcome], offered: Mapping[str, str], style: Style, most: int, today: date
) -> dict[str, Any]:
    """Return the next plan; one without calls when nothing is left to run.

    Args:
        request: The parsed request.
        done: The results of the calls so far.
        offered: The hotel's tools → the names under which they are offered.
        style: How it is planned.
        most: Calls in one plan at most.
        today: The day that "next weekend" is seen from.
    """
    named: _Named = []
    counts = Counter(_NAMES[outcome.call.tool] for outcome in done)

    def add(calls: list[Call]) -> None:
        for call in calls:
            if call.tool in offered and call not in [other for _, other in named]:
                counts[_NAMES[call.tool]] += 1
                named.append((f"{_NAMES[call.tool]}_{counts[_NAMES[call.tool]]}", call))

    add(next_calls(request, done))
    resolves = request.intent != "dates" and any(call.tool in (HOLIDAY, DATE_HINT) for _, call in named)
    if style == "dag" and resolves:
        for wanted in request.wanted:
            add(_later_calls(request, wanted, named, today))
    is_last = style == "dag" or not resolves
    return {
        "status": "done" if is_last and len(named) <= most else "continue",
        "action": ", then ".join(dict.fromkeys(_ACTIONS[call.tool] for _, call in named)) or "answer",
        "slots": _slots(request),
        "tools": [{"id": id_, "tool": offered[call.tool], "args": call.arguments} for id_, call in named[:most]],
        "reasoning": "",
    }


def _later_calls(request: Request, wanted: Wanted, named: _Named, today: date) -> list[Call]:
    """Return the calls for a stay whose days other calls of the plan resolve."""
    if not any(call in [other for _, other in named] for call in resolving_calls(request, wanted)):
        return []
    if (days := _days_by_reference(request, wanted, named)) is not None:
        return stay_calls(request, *days)
    stay = _expected_stay(request, wanted, today)
    # Rooms are searched, but never booked, on days that these rules have computed themselves.
    return room_calls(request, stay) if stay is not None and not can_book(request) else []


def _days_by_reference(request: Request, wanted: Wanted, named: _Named) -> tuple[str, str] | None:
    """Return arrival and departure by the fields of what the calendar returns; None where it has no such fields."""
    nights = wanted.nights

    def field(of_holiday: str, of_hint: str, end: Wanted = wanted) -> str:
        return _field(request, end, named, of_holiday, of_hint)

    if wanted.until is not None:
        return field("first_night", "check_in"), field("start", "check_in", wanted.until)
    if nights is None:
        return field("first_night", "check_in"), field("check_out", "check_out")
    if wanted.kind != "holiday" or nights.count != 1 or nights.first not in (1, -1):
        return None
    if nights.first == -1:
        return field("end", ""), field("check_out", "")
    return field("start" if nights.ordinal else "first_night", ""), field("first_check_out", "")


def _expected_stay(request: Request, wanted: Wanted, today: date) -> Stay | None:
    """Return the days of a stay by these rules' own calendar; None where it has no such days."""
    expected: list[Outcome] = []
    for call in resolving_calls(request, wanted):
        try:
            expected.append(Outcome(call, _reckoned(call, today), None))
        except (HolidayError, DateError):
            return None
    return stay_of(wanted, expected)


def _reckoned(call: Call, today: date) -> dict[str, Any]:
    if call.tool == HOLIDAY:
        return resolve_holiday(today=today, **call.arguments).model_dump(mode="json")
    check_in, check_out = resolve_phrase(today=today, **call.arguments)
    return {"check_in": check_in.isoformat(), "check_out": check_out.isoformat()}


def _field(request: Request, wanted: Wanted, named: _Named, of_holiday: str, of_hint: str) -> str:
    """Return a day of a stay: the date if known, else a reference to the call that resolves it."""
    if wanted.stay is not None:
        return wanted.stay[of_hint == "check_out"].isoformat()
    call = resolving_calls(request, wanted)[0]
    id_ = next((id_ for id_, other in named if other == call), "")
    return f"${{{id_}.{of_holiday if wanted.kind == 'holiday' else of_hint}}}"


def _slots(request: Request) -> dict[str, Any]:
    slots = {
        "stays": [wanted.text for wanted in request.wanted],
        "guests": request.guests,
        "rooms": list(request.rooms),
        "guest_name": request.guest_name,
    }
    return {name: value for name, value in slots.items() if value}
