"""The Store in an SQLite file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from langgraph.store.base import GetOp, Op, PutOp

from graph_agent.storage.checkpoints.sqlite_saver import SharedSqliteStore, open_sqlite_store


async def test_a_setup_that_was_cut_off_is_made_good(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "store.db") as store:
        await store.setup()
        # As it is when another process was in the way of the first try, once the connection had its functions.
        store.is_setup = False
        await store.aput(("a",), "k", {"v": 1})
        found = await store.aget(("a",), "k")

    assert [item.value for item in [found] if item] == [{"v": 1}]


async def test_two_processes_read_and_write_concurrently(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with open_sqlite_store(file) as one, open_sqlite_store(file) as two:
        await one.setup()
        await two.setup()

        async def work(store: SharedSqliteStore, name: str) -> list[Any]:
            items: list[Any] = []
            for i in range(100):
                both: list[Op] = [GetOp((name,), str(i)), PutOp((name,), str(i), {"i": i})]
                (found, _), _ = await asyncio.gather(store.abatch(both), store.is_empty((name,)))
                items.append(found)
            return items

        # As a store batches them: reads and writes together.
        before = await asyncio.gather(work(one, "one"), work(two, "two"))
        after = [await store.aget((name,), "99") for store, name in ((one, "two"), (two, "one"))]

    assert (list(before), [item.value for item in after if item]) == ([[None] * 100] * 2, [{"i": 99}] * 2)
