"""Inputs with ids, approvals and a delegate, with a fault at every write; everything is then sent again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from graph_agent import Session
from graph_agent.persistence import open_saver, strict_serializer
from tests.attack.report import SCALE, note_faults
from tests.support.fault_agent import WatchedMemorySaver, WriteFailedError, nothing
from tests.support.fault_jobs import ALL
from tests.support.fault_server import ForkServer, fork_server
from tests.support.input_faults import Fault, agent_over, ask, fault_at, faults_of
from tests.support.postgres_server import on_postgres

LEAST_WRITES = 45
"""Fewer writes than one input has on any saver."""
STRIDE = SCALE if SCALE >= 5 else 60
"""Boundaries from one with a fault to the next, in each of `SCALE` shards; from a scale of 5 on, each has one."""

_NAMES: dict[Fault, str] = {"kill": "kills", "raise": "errors", "cut": "cuts"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("server")) as served:
        yield served


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.thorough)])
async def test_an_input_whose_write_raises_in_memory_is_completed_once(step: int) -> None:
    log: list[tuple[str, str]] = []
    saver = WatchedMemorySaver(serde=strict_serializer())
    graph = agent_over(saver, lambda stage, id_: log.append((stage, id_)))
    boundaries: list[str] = []
    saver.reach = fault_at(ALL, "raise", reached=boundaries.append)
    await ask(Session(graph, "whole"))
    writes = [number for number, boundary in enumerate(boundaries) if boundary.startswith("before ")]

    faults: list[str] = []
    for number in writes[::step]:
        log.clear()
        session = Session(graph, f"s{number}")
        saver.reach = fault_at(number, "raise")
        with suppress(WriteFailedError):
            await ask(session)
            faults.append(f"{boundaries[number]}: nothing was raised")
        saver.reach = nothing
        faults += [f"{boundaries[number]}: {fault}" for fault in await faults_of(session, lambda: log)]

    assert (faults, len(writes) > LEAST_WRITES) == ([], True)


@pytest.mark.attack
@pytest.mark.parametrize("shard", range(SCALE))
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("sqlite", "kill"),
        ("sqlite", "raise"),
        pytest.param("postgres", "kill", marks=on_postgres),
        pytest.param("postgres", "raise", marks=on_postgres),
        pytest.param("postgres", "cut", marks=on_postgres),
    ],
)
def test_an_input_with_a_fault_at_a_write_is_completed_once_by_another_process(
    kind: str, fault: Fault, shard: int, server: ForkServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{tmp_path / 's.db'}"
    asyncio.run(make_tables(url))
    at = {"folder": str(tmp_path), "url": url}
    server.run("send_input", **at, session_id="whole", at=ALL, fault=fault)
    boundaries = (tmp_path / "whole.reached").read_text().splitlines()

    faults: list[str] = []
    for number in range(shard, len(boundaries), STRIDE):
        id_ = f"s{number}"
        ended = server.run("send_input", **at, session_id=id_, at=number, fault=fault)
        server.run("send_again", **at, session_id=id_)
        found = json.loads((tmp_path / f"{id_}.faults").read_text())
        faults += [f"{number}, {boundaries[number]}: {each}" for each in found]
        # The writes of SQLite are committed in groups, of which a run may have fewer than another.
        has_reached = len((tmp_path / f"{id_}.reached").read_text().splitlines()) > number
        faults += (
            [f"{number}, {boundaries[number]}: it lived"] if fault == "kill" and has_reached and ended == 0 else []
        )

    times = len(range(shard, len(boundaries), STRIDE))
    note_faults(f"inputs with ids on {kind}, each write", _NAMES[fault], times, faults)
    assert (faults, len(boundaries) > 2 * LEAST_WRITES) == ([], True)


async def make_tables(url: str) -> None:
    """Create the tables of a database."""
    async with open_saver(url):
        pass
