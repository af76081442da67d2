"""The tools of all scenarios: standard library only, for they run in the environment of each framework.

`FOLDER` is set before an agent is made. Each tool appends what it did to `effects.jsonl` there.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, TypedDict

FOLDER = Path()
_PATIENCE_S = 5.0
"""Seconds a tool waits for another, or for the event loop."""


def effect(tool: str, **details: Any) -> None:
    """Append one line; lines of several threads and processes do not mix."""
    line = json.dumps({"tool": tool, **details}) + "\n"
    file = os.open(FOLDER / "effects.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def search(query: str) -> str:
    """Search the web.

    Args:
        query: What to search for.
    """
    effect("search", query=query)
    return f"Three pages about {query}."


def pay(amount: int) -> str:
    """Pay an amount.

    Args:
        amount: The amount in euros.
    """
    effect("pay", amount=amount)
    return f"Paid {amount}."


def pay_and_crash(amount: int) -> str:
    """Pay an amount; the first payment kills the process before its result is known.

    Args:
        amount: The amount in euros.
    """
    effect("pay_and_crash", amount=amount)
    crash("now")
    return f"Paid {amount}."


def crash(reason: str) -> str:
    """Kill the process, unless one was killed before.

    Args:
        reason: Why.
    """
    effect("crash")
    mark = FOLDER / "crashed"
    if not mark.exists():
        mark.touch()
        # A crash comes at any time; a framework that stores in the background has the time to.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return f"Looked up {reason}."


def now() -> str:
    """Return the time."""
    effect("now")
    return "It is noon."


class Item(TypedDict):
    """An item of an order."""

    sku: str
    quantity: int


def order(items: list[Item], express: bool = False) -> str:
    """Order items.

    Args:
        items: What to order.
        express: Whether it is urgent.
    """
    effect("order", items=items, express=express)
    return f"Ordered {len(items)} items."


def status(job: str) -> str:
    """Return the state of a job.

    Args:
        job: Its name.
    """
    effect("status", job=job)
    done = _count("status")
    return "The job is ready." if done > 5 else f"{done * 16} percent are done."


async def read_page(page: int) -> str:
    """Read a page of a book.

    Args:
        page: Its number.
    """
    effect("read_page", page=page)
    await asyncio.sleep(0.3)
    effect("end_of_page", page=page)
    return f"Three words are on page {page}."


async def hang(city: str) -> str:
    """Look up a city on a server that never replies.

    Args:
        city: Its name.
    """
    effect("hang", city=city)
    await asyncio.sleep(3600)
    return "Never."


def fail(city: str) -> str:
    """Look up a city.

    Args:
        city: Its name.
    """
    effect("fail", city=city)
    raise ValueError(f"There is no city {city}.")


async def slow(city: str) -> str:
    """Look up a city slowly.

    Args:
        city: Its name.
    """
    effect("slow", city=city)
    await asyncio.sleep(60)
    return f"{city} is large."


def huge(table: str) -> str:
    """Return a whole table.

    Args:
        table: Its name.
    """
    effect("huge", table=table)
    return "first row\n" + "0123456789" * 100_000 + "\nlast row"


def record(name: str) -> Any:
    """Return a database record.

    Args:
        name: Its name.
    """
    effect("record", name=name)
    return {"name": name, "since": datetime.date(2020, 2, 29), "tags": {"gold"}, "photo": b"\xff\xd8"}


def broken_text(page: str) -> str:
    """Return the text of a page, with half of an emoji.

    Args:
        page: Its address.
    """
    effect("broken_text", page=page)
    return "A page about cats \ud83d."


async def meet(name: str) -> str:
    """Wait for another call of this tool.

    Args:
        name: A name for this call.
    """
    effect("meet", name=name)
    for _ in range(int(_PATIENCE_S / 0.02)):
        if _count("meet") > 1:
            return f"{name} met the other."
        await asyncio.sleep(0.02)
    return f"{name} was alone."


def meet_in_thread(name: str) -> str:
    """Wait for another call of this tool.

    Args:
        name: A name for this call.
    """
    effect("meet_in_thread", name=name)
    return f"{name} met the other." if _wait(lambda: _count("meet_in_thread") > 1) else f"{name} was alone."


def block(seconds: int) -> str:
    """Work until the event loop of the process has run once.

    Args:
        seconds: How long the work takes at least.
    """
    effect("block")
    (FOLDER / "ping").touch()
    return "The loop ran." if _wait((FOLDER / "pong").exists) else "The loop was blocked."


def _wait(condition: Any) -> bool:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def effects() -> list[dict[str, Any]]:
    """What the tools did so far, in all processes."""
    file = FOLDER / "effects.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _count(tool: str) -> int:
    return sum(each["tool"] == tool for each in effects())
