"""Rooms and bookings in a SQLite file.

Every operation opens its own connection, so any number of processes and threads may work on one file. Booking is one
transaction that takes the write lock before it looks, so a room is never given twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

CURRENCY = "EUR"
LONGEST_STAY = 30
"""Nights that one booking may have."""
_LOCK_TIMEOUT = 10.0
"""Seconds to wait for another process that is booking."""
_VERSION = 1

ROOMS = (  # id, name, sleeps, whole EUR a night
    ("single", "Single room, courtyard", 1, 80),
    ("double", "Double room, garden view", 2, 120),
    ("twin", "Twin room, street side", 2, 110),
    ("family", "Family room, two bedrooms", 4, 180),
    ("suite", "Suite, top floor", 3, 260),
)
_FIRST_BOOKINGS = (  # room, check-in, check-out, guest
    ("suite", "2026-11-27", "2026-11-29", "Grace Hopper"),
    ("twin", "2026-12-03", "2026-12-06", "Alan Turing"),
    ("family", "2026-12-24", "2026-12-27", "Katherine Johnson"),
    ("single", "2027-01-16", "2027-01-18", "Edsger Dijkstra"),
)
_SCHEMA = (
    "CREATE TABLE rooms (id TEXT PRIMARY KEY, name TEXT NOT NULL, sleeps INTEGER NOT NULL, price INTEGER NOT NULL)",
    "CREATE TABLE bookings (id INTEGER PRIMARY KEY, room TEXT NOT NULL REFERENCES rooms (id), check_in TEXT NOT NULL, "
    "check_out TEXT NOT NULL, guest TEXT NOT NULL, key TEXT UNIQUE)",
    "CREATE INDEX bookings_by_room ON bookings (room, check_in)",
)


class RoomError(ValueError):
    """An impossible stay or booking; the message gives the reason and the correction."""


@dataclass(frozen=True)
class Room:
    """A room that can be booked."""

    id: str
    name: str
    sleeps: int
    """Guests it takes at most."""
    price: int
    """Whole EUR a night."""


@dataclass(frozen=True)
class Booking:
    """A room that is booked."""

    id: int
    room: Room
    check_in: date
    check_out: date
    guest: str
    new: bool
    """False when an earlier request with the same idempotency key had made it."""


class Rooms:
    """The hotel's rooms and bookings in one file, made and filled when it does not exist."""

    def __init__(self, path: Path, today: Callable[[], date]) -> None:
        self._path = path
        self._today = today
        try:
            self._prepare()
        except sqlite3.Error as error:
            raise RoomError(
                f"{str(path)!r} cannot be used as the hotel's database ({error}); choose another path."
            ) from error

    def free(self, check_in: date, check_out: date, guests: int) -> list[Room]:
        """Return the rooms that take so many guests and are free every night, by price; raises RoomError."""
        self._check_stay(check_in, check_out)
        with self._connect() as db:
            rows = db.execute(
                "SELECT id, name, sleeps, price FROM rooms WHERE sleeps >= ? AND NOT EXISTS "
                "(SELECT 1 FROM bookings WHERE room = rooms.id AND check_in < ? AND ? < check_out) ORDER BY price, id",
                (guests, check_out.isoformat(), check_in.isoformat()),
            ).fetchall()
        return [Room(*row) for row in rows]

    def book(self, room: str, check_in: date, check_out: date, guest: str, key: str | None = None) -> Booking:
        """Book a room; raises RoomError when it is unknown or taken.

        The same `key` (an idempotency key of the caller) again returns the booking that was made, and books nothing.
        """
        guest = guest.strip()
        if not guest:
            raise RoomError("The guest_name is empty; give the name the room is booked for.")
        with self._connect() as db:
            db.execute("BEGIN IMMEDIATE")
            found = self._room(db, room)
            wanted = (found.id, check_in.isoformat(), check_out.isoformat(), guest)
            made = db.execute(
                "SELECT id, room, check_in, check_out, guest FROM bookings WHERE key = ?", (key,)
            ).fetchone()
            if made and made[1:] != wanted:
                raise RoomError(f"The idempotency_key {key!r} was used for another booking; use a new one.")
            if made:
                return Booking(made[0], found, check_in, check_out, guest, new=False)
            self._check_stay(check_in, check_out)
            self._check_free(db, found.id, check_in, check_out)
            cursor = db.execute(
                "INSERT INTO bookings (room, check_in, check_out, guest, key) VALUES (?, ?, ?, ?, ?)", (*wanted, key)
            )
            db.execute("COMMIT")
        return Booking(cursor.lastrowid or 0, found, check_in, check_out, guest, new=True)

    def _check_stay(self, check_in: date, check_out: date) -> None:
        today, nights = self._today(), (check_out - check_in).days
        if nights < 1:
            raise RoomError(f"check_out {check_out} is not after check_in {check_in}; a stay has at least one night.")
        if nights > LONGEST_STAY:
            raise RoomError(f"{check_in} to {check_out} are {nights} nights; a stay has at most {LONGEST_STAY}.")
        if check_in < today:
            raise RoomError(f"check_in {check_in} is in the past; today is {today}. Ask for today or a later day.")

    @staticmethod
    def _room(db: sqlite3.Connection, room: str) -> Room:
        row = db.execute("SELECT id, name, sleeps, price FROM rooms WHERE id = ?", (room.strip().lower(),)).fetchone()
        if row is None:
            known = ", ".join(one for (one,) in db.execute("SELECT id FROM rooms ORDER BY price"))
            raise RoomError(f"There is no room {room[:40]!r}; the rooms are: {known}.")
        return Room(*row)

    @staticmethod
    def _check_free(db: sqlite3.Connection, room: str, check_in: date, check_out: date) -> None:
        taken = db.execute(
            "SELECT check_in, check_out FROM bookings WHERE room = ? AND check_in < ? AND ? < check_out "
            "ORDER BY check_in",
            (room, check_out.isoformat(), check_in.isoformat()),
        ).fetchone()
        if taken:
            raise RoomError(
                f"The {room} is already booked from {taken[0]} to {taken[1]}, so it is not free from {check_in} to "
                f"{check_out}; ask pms.get_availability for a room that is."
            )

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT, isolation_level=None)
        try:
            yield db
        finally:
            db.close()  # without a COMMIT before, this rolls back

    def _prepare(self) -> None:
        with self._connect() as db:
            db.execute("BEGIN IMMEDIATE")  # two servers may start on one new file
            if db.execute("PRAGMA user_version").fetchone()[0] == _VERSION:
                return
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise sqlite3.DatabaseError("it holds something else")
            for statement in _SCHEMA:
                db.execute(statement)
            db.executemany("INSERT INTO rooms VALUES (?, ?, ?, ?)", ROOMS)
            db.executemany(
                "INSERT INTO bookings (room, check_in, check_out, guest) VALUES (?, ?, ?, ?)", _FIRST_BOOKINGS
            )
            db.execute(f"PRAGMA user_version = {_VERSION}")
            db.execute("COMMIT")
