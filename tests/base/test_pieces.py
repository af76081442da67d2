"""Coalescing of answer pieces that arrive in quick succession."""

from __future__ import annotations

import asyncio
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from graph_agent.base._internal.closing_stream import TextCoalescer

NEVER_S = 3600.0


class Reader:
    """A slow sink, so that the next send may come during the current one."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.received = asyncio.Event()

    async def receive(self, text: str) -> None:
        await asyncio.sleep(0)
        self.pieces.append(text)
        self.received.set()


async def test_the_first_piece_is_sent_at_once_and_later_ones_together() -> None:
    reader = Reader()
    pieces = TextCoalescer(reader.receive, lambda: NEVER_S)
    for piece in ("a", "b", "c"):
        await pieces.add(piece)
    before = list(reader.pieces)
    await pieces.flush()

    assert (before, reader.pieces) == (["a"], ["a", "bc"])


async def test_held_pieces_are_sent_after_the_interval() -> None:
    reader = Reader()
    pieces = TextCoalescer(reader.receive, lambda: 0.01)
    for piece in ("a", "b", "c"):
        await pieces.add(piece)
    reader.received.clear()
    await reader.received.wait()

    assert reader.pieces == ["a", "bc"]


Step = Literal["piece", "other", "wait"]


@given(steps=st.lists(st.sampled_from(["piece", "other", "wait"])), every_s=st.sampled_from([0.0, 1e-6, NEVER_S]))
def test_pieces_are_sent_once_and_in_order(steps: list[Step], every_s: float) -> None:
    async def run() -> list[str]:
        reader = Reader()
        pieces = TextCoalescer(reader.receive, lambda: every_s)
        for number, step in enumerate(steps):
            if step == "piece":
                await pieces.add(f"{number} ")
            elif step == "wait":
                await asyncio.sleep(0)
            else:
                await pieces.flush()
                reader.pieces.append(f"{number} ")
        await pieces.flush()
        return "".join(reader.pieces).split()

    assert asyncio.run(run()) == [str(number) for number, step in enumerate(steps) if step != "wait"]


async def test_a_piece_is_sent_before_its_interval_once_it_is_large() -> None:
    reader = Reader()
    pieces = TextCoalescer(reader.receive, lambda: NEVER_S)
    for _ in range(100):
        await pieces.add("x" * 10_000)
    before = sum(map(len, reader.pieces))
    await pieces.flush()

    assert (max(map(len, reader.pieces)), before > 900_000) == (70_000, True)
    assert sum(map(len, reader.pieces)) == 1_000_000
