"""The hotel's MCP server over stdio: a calendar that reads holidays and date phrases, and the rooms.

Run as `python server.py [--today YYYY-MM-DD] [--db PATH]`. Standard output carries the protocol and nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from datetime import date
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Annotated

import anyio.to_thread
from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

if not __package__:  # run as a script: be a module of the package that this folder is
    _folder = Path(__file__).resolve().parent
    sys.path.insert(0, str(_folder.parent))
    __package__ = importlib.import_module(_folder.name).__name__
    __spec__ = ModuleSpec(f"{__package__}.{Path(__file__).stem}", None)
    sys.path.remove(str(_folder.parent))

from .dates import UNDERSTOOD, resolve_phrase
from .holidays_calendar import HolidayNights, resolve_holiday
from .rooms import CURRENCY, LONGEST_STAY, RoomError, Rooms

_ISO = "An ISO date, e.g. 2026-12-04."
_READS = ToolAnnotations(readOnlyHint=True, openWorldHint=False)
# Booking only adds, and the same request again adds nothing: it returns the booking, or is refused.
_BOOKS = ToolAnnotations(readOnlyHint=False, destructiveHint=False, idempotentHint=True, openWorldHint=False)


class ResolvedDates(BaseModel):
    """The stay that a date phrase means."""

    phrase: str = Field(description="The phrase as it was given.")
    check_in: date = Field(description=f"The day of arrival. {_ISO}")
    check_out: date = Field(description=f"The day of departure. {_ISO}")
    nights: int = Field(description="Nights from check_in to check_out.")
    weekdays: str = Field(description="The weekdays of check_in and check_out, e.g. 'Friday to Sunday'.")


class FreeRoom(BaseModel):
    """A room that is free every night of the stay."""

    room: str = Field(description="The room's id, which pms.book_room takes.")
    name: str = Field(description="The room's name.")
    sleeps: int = Field(description="Guests it takes at most.")
    price_per_night: int = Field(description=f"Price of one night, whole {CURRENCY}.")
    total: int = Field(description=f"Price of the whole stay, whole {CURRENCY}.")


class Availability(BaseModel):
    """The rooms that are free for a stay."""

    check_in: date = Field(description=f"The day of arrival. {_ISO}")
    check_out: date = Field(description=f"The day of departure. {_ISO}")
    nights: int = Field(description="Nights from check_in to check_out.")
    guests: int = Field(description="Guests the rooms had to take.")
    currency: str = Field(description="Currency of all prices.")
    rooms: list[FreeRoom] = Field(description="The free rooms, the cheapest first; empty when none is free.")


class BookedRoom(BaseModel):
    """A room that is now booked."""

    booking: str = Field(description="The booking's number.")
    room: str = Field(description="The room's id.")
    name: str = Field(description="The room's name.")
    check_in: date = Field(description=f"The day of arrival. {_ISO}")
    check_out: date = Field(description=f"The day of departure. {_ISO}")
    nights: int = Field(description="Nights from check_in to check_out.")
    guest_name: str = Field(description="Who it is booked for.")
    currency: str = Field(description="Currency of the price.")
    total: int = Field(description=f"Price of the whole stay, whole {CURRENCY}.")
    new: bool = Field(description="False when an earlier request with the same idempotency_key had already booked it.")


def make_server(rooms: Rooms, today: Callable[[], date]) -> FastMCP:
    """Build the server on a set of rooms; `today` is asked at every call, as a server may run past midnight."""
    server = FastMCP(
        "hotel", instructions="Resolve holidays and date phrases first, then look up rooms.", log_level="WARNING"
    )

    @server.tool(
        name="calendar.resolve_holiday",
        description="The nights of a holiday (Hanukkah, Christmas, Thanksgiving, Easter, …), as dates to book.",
        annotations=_READS,
    )
    async def resolve_holiday_tool(
        name: Annotated[str, Field(description="The holiday's English name, e.g. Hanukkah.")],
        year: Annotated[
            int | None,
            Field(description="The year it starts in; the one under way or next when left out.", ge=1900, le=2200),
        ] = None,
        country: Annotated[
            str | None, Field(description="ISO 3166 code of the country meant, e.g. CA; left out, the best known one.")
        ] = None,
    ) -> HolidayNights:
        return await anyio.to_thread.run_sync(resolve_holiday, name, today(), year, country)

    @server.tool(
        name="calendar.resolve_date_hint",
        description=f"The check-in and check-out days of a date phrase, seen from today. Understood: {UNDERSTOOD}.",
        annotations=_READS,
    )
    async def resolve_date_hint_tool(
        phrase: Annotated[str, Field(description="One English date phrase, e.g. 'next weekend'; no holiday.")],
    ) -> ResolvedDates:
        check_in, check_out = resolve_phrase(phrase, today())
        return ResolvedDates(
            phrase=phrase,
            check_in=check_in,
            check_out=check_out,
            nights=(check_out - check_in).days,
            weekdays=f"{check_in:%A} to {check_out:%A}",
        )

    @server.tool(
        name="pms.get_availability",
        description=f"The free rooms for a stay of at most {LONGEST_STAY} nights, with prices in {CURRENCY}.",
        annotations=_READS,
    )
    async def get_availability_tool(
        check_in: Annotated[str, Field(description=f"The day of arrival, today or later. {_ISO}")],
        check_out: Annotated[str, Field(description=f"The day of departure, after check_in. {_ISO}")],
        guests: Annotated[int, Field(description="Guests who share the room.", ge=1, le=1000)] = 1,
    ) -> Availability:
        first, last = _day("check_in", check_in), _day("check_out", check_out)
        free = await anyio.to_thread.run_sync(rooms.free, first, last, guests)
        nights = (last - first).days
        offers = [
            FreeRoom(room=r.id, name=r.name, sleeps=r.sleeps, price_per_night=r.price, total=r.price * nights)
            for r in free
        ]
        return Availability(
            check_in=first, check_out=last, nights=nights, guests=guests, currency=CURRENCY, rooms=offers
        )

    @server.tool(
        name="pms.book_room",
        description="Book a free room for a guest. A room that is taken on any of the nights is refused.",
        annotations=_BOOKS,
    )
    async def book_room_tool(
        room: Annotated[str, Field(description="The room's id, as pms.get_availability gives it, e.g. double.")],
        check_in: Annotated[str, Field(description=f"The day of arrival, today or later. {_ISO}")],
        check_out: Annotated[str, Field(description=f"The day of departure, after check_in. {_ISO}")],
        guest_name: Annotated[str, Field(description="Who the room is booked for.")],
        idempotency_key: Annotated[
            str | None,
            Field(description="Any text that is unique to this request; the same again books nothing twice."),
        ] = None,
    ) -> BookedRoom:
        first, last = _day("check_in", check_in), _day("check_out", check_out)
        done = await anyio.to_thread.run_sync(rooms.book, room, first, last, guest_name, idempotency_key)
        nights = (last - first).days
        return BookedRoom(
            booking=f"HB-{done.id:04}",
            room=done.room.id,
            name=done.room.name,
            check_in=first,
            check_out=last,
            nights=nights,
            guest_name=done.guest,
            currency=CURRENCY,
            total=done.room.price * nights,
            new=done.new,
        )

    return server


def main(argv: list[str] | None = None) -> None:
    """Serve on standard input and output until they close; a wrong argument exits with code 2 and an error message."""
    parser = argparse.ArgumentParser(description="The hotel's MCP server, over stdio.")
    parser.add_argument(
        "--today", default=os.environ.get("GRAPH_AGENT_TODAY"), help="the day taken as today (YYYY-MM-DD)"
    )
    parser.add_argument("--db", default=os.environ.get("HOTEL_DB"), help="the SQLite file, made when there is none")
    options = parser.parse_args(argv)
    try:
        fixed = _day("--today", options.today) if options.today else None
        path = Path(options.db) if options.db else Path(__file__).resolve().parent / "hotel.db"
        today: Callable[[], date] = (lambda: fixed) if fixed else date.today
        rooms = Rooms(path, today)
    except RoomError as error:
        parser.error(str(error))
    make_server(rooms, today).run()


def _day(what: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise RoomError(
            f"{what} is {text[:40]!r}, which is no ISO date; write it as year-month-day, e.g. 2026-12-04."
        ) from None


if __name__ == "__main__":
    main()
