"""The text of the offline model's final answer, composed from the tools' results."""

from __future__ import annotations

from datetime import date
from typing import Any

from .planner import BOOKING, Outcome, can_book, outcome_of, resolving_calls, room_calls, stay_of
from .question import LONGEST_QUESTION, Request, Stay, Wanted

ABILITIES = (
    "I am the offline stand-in of this example: a few rules, no language model. I can tell the dates of a holiday or a "
    "date phrase, look up free rooms for them, and book one. Try:\n"
    "- Check availability for January 17-19\n"
    "- one night in Hanukkah\n"
    "- Check availability for Hanukkah and also next weekend\n"
    "- Book the double for the first night of Hanukkah for Ada\n"
    "- When is Easter?"
)


def write_answer(request: Request, done: list[Outcome]) -> str:
    """Return the answer: a paragraph for each requested stay and missing details; a summary of abilities if none."""
    if not request.wanted:
        missing = ["I found no date and no holiday in that."] if request.intent == "book" or request.rooms else []
        paragraphs = [*missing, ABILITIES]
    else:
        paragraphs = [_about(request, wanted, done) for wanted in request.wanted]
        if request.intent == "book" and not can_book(request):
            paragraphs.append(_missing(request))
    if request.cut:
        paragraphs.append(f"I read only the first {LONGEST_QUESTION} characters of your question.")
    return "\n\n".join(paragraphs)


def _about(request: Request, wanted: Wanted, done: list[Outcome]) -> str:
    parts: list[str] = []
    for call in resolving_calls(request, wanted):
        phrase = next(iter(call.arguments.values()))
        outcome = outcome_of(call, done)
        if outcome is None:
            return f"I did not get to look up {phrase!r}."
        if outcome.data is None:
            return f"I could not resolve {phrase!r}: {outcome.error}"
        parts.append(_meaning(outcome.data))
    if request.intent == "dates":
        return "\n".join(parts)
    stay = stay_of(wanted, done)
    if stay is None:
        return " ".join(
            [*parts, "There are no such nights." if wanted.nights or wanted.until else "I cannot read that."]
        )
    parts += [_result(request, stay, outcome_of(call, done), call.tool) for call in room_calls(request, stay)]
    return "\n".join(parts)


def _meaning(data: dict[str, Any]) -> str:
    """Describe the days that a calendar tool found; "" for a result of another shape."""
    nights = data.get("nights")
    if "start" in data:
        first, last = _day(data["start"]), _day(data.get("end"))
        if nights == 1:
            return f"{data.get('name')}: the night of {first}."
        return f"{data.get('name')}: {nights} nights, from {first} to {last}."
    phrase, check_in = str(data.get("phrase")), _day(data.get("check_in"))
    until = "" if nights == 1 else f" to {_day(data.get('check_out'))}"
    return f"{phrase[:1].upper()}{phrase[1:]}: {check_in}{until}."


def _result(request: Request, stay: Stay, outcome: Outcome | None, tool: str) -> str:
    """Describe the result of a room search or a booking."""
    when = f"{_day(stay[0].isoformat())} to {_day(stay[1].isoformat())} ({_nights(stay)})"
    if outcome is None:
        return f"I did not get to {'book' if tool == BOOKING else 'look up rooms'} from {when}."
    if outcome.error or outcome.data is None:
        failed = "I could not book" if tool == BOOKING else "I could not look up rooms"
        return f"{failed} from {when}: {outcome.error or 'the answer could not be read.'}"
    return _booked(outcome.data, when) if tool == BOOKING else _free(request, outcome.data, when)


def _free(request: Request, data: dict[str, Any], when: str) -> str:
    rooms, currency = data.get("rooms") or [], data.get("currency")
    guests = f" for {request.guests} guests" if request.guests and request.guests > 1 else ""
    if not rooms:
        return f"No room{guests} is free from {when}."
    lines = [
        f"- {room['name']} ({room['room']}), sleeps {room['sleeps']}: "
        f"{room['price_per_night']} {currency} a night, {room['total']} {currency} in all"
        for room in rooms
    ]
    free = {room["room"] for room in rooms}
    asked = "".join(f"{room.capitalize()}: {'free' if room in free else 'not free'}. " for room in request.rooms)
    count = "1 room is" if len(rooms) == 1 else f"{len(rooms)} rooms are"
    return "\n".join([f"{asked}{count} free{guests} from {when}:", *lines])


def _booked(data: dict[str, Any], when: str) -> str:
    return (
        f"Booked: {data.get('name')} ({data.get('room')}) from {when} for {data.get('guest_name')}, "
        f"{data.get('total')} {data.get('currency')} in all. The booking number is {data.get('booking')}."
    )


def _missing(request: Request) -> str:
    lacks = [what for what, there in (("which room", request.rooms), ("for whom", request.guest_name)) if not there]
    return f"I booked nothing yet: say {' and '.join(lacks)}, e.g. 'book the double for Ada'."


def _nights(stay: Stay) -> str:
    nights = (stay[1] - stay[0]).days
    return "1 night" if nights == 1 else f"{nights} nights"


def _day(iso: object) -> str:
    """Write an ISO date as "Friday 4 December 2026"; anything else as it is."""
    try:
        day = date.fromisoformat(str(iso))
    except ValueError:
        return str(iso)
    return f"{day:%A} {day.day} {day:%B} {day.year}"
