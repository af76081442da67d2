"""The hotel's MCP server as a real subprocess over stdio."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from examples.hotel.rooms import RoomError, Rooms
from tests.support.warm_process import warm_python

SERVER = Path(__file__).parents[2] / "examples" / "hotel" / "server.py"
STAY = {"check_in": "2026-12-04", "check_out": "2026-12-06"}


@asynccontextmanager
async def hotel(db: Path, *arguments: str, env: dict[str, str] | None = None) -> AsyncIterator[ClientSession]:
    parameters = StdioServerParameters(
        command=warm_python(), args=[str(SERVER), "--db", str(db), *arguments], env=env, cwd=db.parent
    )
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield session


async def answer(session: ClientSession, tool: str, **arguments: Any) -> Any:
    """The structured answer, or the text of the error."""
    result = await session.call_tool(tool, arguments)
    text = "".join(block.text for block in result.content if block.type == "text")
    if result.isError:
        return text
    assert json.loads(text) == result.structuredContent
    return result.structuredContent


async def free_rooms(session: ClientSession, **arguments: Any) -> list[str]:
    return [room["room"] for room in (await answer(session, "pms.get_availability", **arguments))["rooms"]]


async def test_the_four_tools(tmp_path: Path) -> None:
    async with hotel(tmp_path / "hotel.db") as session:
        tools = (await session.list_tools()).tools

    described = {
        tool.name: (
            sorted(tool.inputSchema["properties"]),
            tool.inputSchema.get("required"),
            tool.annotations.model_dump(exclude_none=True) if tool.annotations else None,
        )
        for tool in tools
    }
    reads = {"readOnlyHint": True, "openWorldHint": False}
    assert described == {
        "calendar.resolve_holiday": (["country", "name", "year"], ["name"], reads),
        "calendar.resolve_date_hint": (["phrase"], ["phrase"], reads),
        "pms.get_availability": (["check_in", "check_out", "guests"], ["check_in", "check_out"], reads),
        "pms.book_room": (
            ["check_in", "check_out", "guest_name", "idempotency_key", "room"],
            ["room", "check_in", "check_out", "guest_name"],
            {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        ),
    }
    assert all(tool.description and tool.outputSchema for tool in tools)
    assert all(field["description"] for tool in tools for field in tool.inputSchema["properties"].values())


async def test_the_calendar(tmp_path: Path) -> None:
    async with hotel(tmp_path / "hotel.db", env={"GRAPH_AGENT_TODAY": "2026-11-21"}) as session:
        answers = [
            await answer(session, "calendar.resolve_holiday", name="Hanukkah"),
            await answer(session, "calendar.resolve_date_hint", phrase="next weekend"),
            await answer(session, "calendar.resolve_holiday", name="Hanukkah", country="XX"),
        ]

    assert answers == [
        {
            "name": "Hanukkah",
            "country": "IL",
            "start": "2026-12-04",
            "end": "2026-12-11",
            "check_out": "2026-12-12",
            "nights": 8,
            "first_night": "2026-12-04",
            "first_check_out": "2026-12-05",
        },
        {
            "phrase": "next weekend",
            "check_in": "2026-11-27",
            "check_out": "2026-11-29",
            "nights": 2,
            "weekdays": "Friday to Sunday",
        },
        "Error executing tool calendar.resolve_holiday: There is no calendar for country 'XX'; known: US, GB, CA, IL, "
        "IE, TR, IN, CN, DE, FR, IT, MX, BR, SE, JP, KR, AU, NZ.",
    ]


async def test_availability_and_its_limits(tmp_path: Path) -> None:
    async with hotel(tmp_path / "hotel.db", "--today", "2026-11-21") as session:
        tool = "pms.get_availability"
        found = await answer(session, tool, check_in="2027-01-17", check_out="2027-01-19", guests=3)
        refused = [
            await answer(session, tool, check_in="2026-12-06", check_out="2026-12-06"),
            await answer(session, tool, check_in="2026-12-01", check_out="2027-01-01"),
            await answer(session, tool, check_in="2026-11-20", check_out="2026-11-22"),
            await answer(session, tool, check_in="4 December", check_out="2026-12-06"),
        ]

    assert found == {
        "check_in": "2027-01-17",
        "check_out": "2027-01-19",
        "nights": 2,
        "guests": 3,
        "currency": "EUR",
        "rooms": [
            {"room": "family", "name": "Family room, two bedrooms", "sleeps": 4, "price_per_night": 180, "total": 360},
            {"room": "suite", "name": "Suite, top floor", "sleeps": 3, "price_per_night": 260, "total": 520},
        ],
    }
    assert [error.removeprefix("Error executing tool pms.get_availability: ") for error in refused] == [
        "check_out 2026-12-06 is not after check_in 2026-12-06; a stay has at least one night.",
        "2026-12-01 to 2027-01-01 are 31 nights; a stay has at most 30.",
        "check_in 2026-11-20 is in the past; today is 2026-11-21. Ask for today or a later day.",
        "check_in is '4 December', which is no ISO date; write it as year-month-day, e.g. 2026-12-04.",
    ]


async def test_a_booked_room_is_no_longer_free(tmp_path: Path) -> None:
    async with hotel(tmp_path / "hotel.db", "--today", "2026-11-21") as session:
        before = await free_rooms(session, **STAY)
        booked = await answer(session, "pms.book_room", room="Double", guest_name="Ada", idempotency_key="k1", **STAY)
        again = await answer(session, "pms.book_room", room="double", guest_name="Ada", idempotency_key="k1", **STAY)
        other = await answer(session, "pms.book_room", room="suite", guest_name="Ada", idempotency_key="k1", **STAY)
        taken = await answer(session, "pms.book_room", room="double", guest_name="Bob", **STAY)
        unknown = await answer(session, "pms.book_room", room="penthouse", guest_name="Bob", **STAY)
    async with hotel(tmp_path / "hotel.db", "--today", "2026-11-21") as session:  # the file outlives the server
        after = await free_rooms(session, **STAY)
        touching = await free_rooms(session, check_in="2026-12-06", check_out="2026-12-07")

    assert (before, after, touching) == (
        ["single", "double", "family", "suite"],
        ["single", "family", "suite"],
        ["single", "twin", "double", "family", "suite"],
    )
    assert (booked, again) == (
        {
            "booking": "HB-0005",
            "room": "double",
            "name": "Double room, garden view",
            **STAY,
            "nights": 2,
            "guest_name": "Ada",
            "currency": "EUR",
            "total": 240,
            "new": True,
        },
        {**booked, "new": False},
    )
    assert [error.removeprefix("Error executing tool pms.book_room: ") for error in (other, taken, unknown)] == [
        "The idempotency_key 'k1' was used for another booking; use a new one.",
        "The double is already booked from 2026-12-04 to 2026-12-06, so it is not free from 2026-12-04 to 2026-12-06; "
        "ask pms.get_availability for a room that is.",
        "There is no room 'penthouse'; the rooms are: single, twin, double, family, suite.",
    ]


async def test_two_processes_never_book_one_room_twice(tmp_path: Path) -> None:
    results: list[Any] = []

    async def book(session: ClientSession, guest: str) -> None:
        results.append(await answer(session, "pms.book_room", room="suite", guest_name=guest, **STAY))

    db = tmp_path / "hotel.db"
    async with (
        hotel(db, "--today", "2026-11-21") as one,
        hotel(db, "--today", "2026-11-21") as two,
        anyio.create_task_group() as tasks,
    ):
        for i, session in enumerate([one, two] * 4):
            tasks.start_soon(book, session, f"Guest {i}")

    assert sorted(type(result).__name__ for result in results) == ["dict"] + ["str"] * 7


def test_servers_that_start_together_make_one_file(tmp_path: Path) -> None:
    def start(_: int) -> list[str]:
        rooms = Rooms(tmp_path / "hotel.db", lambda: date(2026, 11, 21))
        return [room.id for room in rooms.free(date(2026, 12, 4), date(2026, 12, 6), guests=1)]

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(start, range(8)))

    assert seen == [["single", "double", "family", "suite"]] * 8


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE notes (text TEXT)")

    with pytest.raises(RoomError, match=r"cannot be used as the hotel's database \(it holds something else\)"):
        Rooms(tmp_path / "other.db", date.today)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--today", "soon"], "--today is 'soon', which is no ISO date; write it as year-month-day, e.g. 2026-12-04."),
        (
            ["--db", "."],
            "'.' cannot be used as the hotel's database (unable to open database file); choose another path.",
        ),
    ],
)
async def test_a_wrong_argument_ends_the_start(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = await anyio.run_process([warm_python(), str(SERVER), *arguments], cwd=tmp_path, check=False)

    assert (done.returncode, done.stdout, done.stderr.decode().splitlines()[-1]) == (
        2,
        b"",
        f"server.py: error: {message}",
    )
