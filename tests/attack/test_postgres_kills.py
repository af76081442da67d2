"""Runs in PostgreSQL, killed before and after each commit and resumed in another process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from graph_agent.persistence import open_saver
from tests.attack.report import note_faults
from tests.support.fault_jobs import ALL
from tests.support.fault_server import ForkServer, fork_server
from tests.support.postgres_server import PostgresServer, on_postgres

pytestmark = [pytest.mark.attack, on_postgres]

_WAYS = ("resume", "input")
_STEPS = (
    "SELECT (metadata ->> 'step')::int, parent_checkpoint_id, checkpoint_id FROM checkpoints"
    " WHERE checkpoint_ns = '' ORDER BY checkpoint_id"
)
_WITHOUT_CHECKPOINT = (
    "SELECT DISTINCT checkpoint_id FROM checkpoint_writes w WHERE checkpoint_ns = '' AND NOT EXISTS"
    " (SELECT 1 FROM checkpoints c WHERE c.thread_id = w.thread_id AND c.checkpoint_id = w.checkpoint_id)"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("server")) as served:
        yield served


async def make_tables(url: str) -> None:
    """Create the tables of a database."""
    async with open_saver(url):
        pass


def gaps(url: str) -> list[str]:
    """The stored rows that lack an earlier one; empty for the first steps of a run."""
    with psycopg.connect(url) as connection:
        checkpoints = connection.execute(_STEPS).fetchall()
        orphans = connection.execute(_WITHOUT_CHECKPOINT).fetchall()
    before = [None, *(id_ for _, _, id_ in checkpoints)]
    return [
        *[f"step {step} is not {at}" for at, (step, _, _) in enumerate(checkpoints, -1) if at != step],
        *[f"{id_} follows {was}" for (_, was, id_), parent in zip(checkpoints, before, strict=False) if was != parent],
        *[f"writes without checkpoint {id_}" for (id_,) in orphans],
    ]


@pytest.mark.parametrize("structured", [False, True], ids=["native", "waves"])
@pytest.mark.parametrize("reading", [False, True], ids=["writing", "reading"])
def test_a_session_killed_at_any_commit_holds_the_first_steps_of_its_run(
    reading: bool, structured: bool, server: ForkServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    variant = {"structured": structured, "ledger": False, "commits": True, "reading": reading}
    with postgres.database() as empty:
        asyncio.run(make_tables(empty))
        with postgres.database(like=empty) as url:
            (tmp_path / "whole").mkdir()
            server.run("run_to", folder=str(tmp_path / "whole"), variant=variant, kill_at=ALL, url=url)
        boundaries = (tmp_path / "whole" / "reached").read_text().splitlines()

        faults: list[str] = []
        for kill_at in range(len(boundaries)):
            folder = tmp_path / str(kill_at)
            folder.mkdir()
            with postgres.database(like=empty) as url:
                killed = server.run("run_to", folder=str(folder), variant=variant, kill_at=kill_at, url=url)
                with postgres.database(like=url) as first, postgres.database(like=url) as second:
                    copies = dict(zip(_WAYS, (first, second), strict=True))
                    server.run("go_on", folder=str(folder), variant=variant, ways=[*_WAYS], urls=copies)
                faults += [f"killed at {kill_at}: {gap}" for gap in gaps(url)]
            found = json.loads((folder / "faults").read_text())
            faults += [f"killed at {kill_at}; then {how}: {fault}" for how, wrong in found.items() for fault in wrong]
            faults += [f"killed at {kill_at}: it lived"] if killed == 0 else []

    note_faults("a run on postgres, each commit", "kills", len(boundaries), faults)
    assert (faults, len(boundaries) >= (4 if reading else 10)) == ([], True), boundaries
