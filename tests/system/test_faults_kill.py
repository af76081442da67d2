"""A session of three waves, killed at every boundary and resumed in another process."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_jobs import ALL
from tests.support.fault_server import ForkServer, fork_server

VARIANTS = {
    "native": {"structured": False, "ledger": False},
    "native-ledger": {"structured": False, "ledger": True},
    "waves": {"structured": True, "ledger": False},
    "waves-ledger": {"structured": True, "ledger": True},
}
COMMITS = {
    f"{kind}-{'waves' if structured else 'native'}": {
        "structured": structured,
        "ledger": False,
        "commits": True,
        "reading": kind == "reading",
    }
    for kind in ("reading", "writing")
    for structured in (False, True)
}
SHARDS = 24
"""Tests that share the kill points of a variant; `make test` runs one of them, another for each variant."""
COMMIT_OFFSETS = {variant: at for at, variant in enumerate(COMMITS)}
COMMIT_STEPS = [10, pytest.param(1, marks=pytest.mark.thorough)]
"""Commits between two kills."""
DEALT = [
    pytest.param(variant, shard, marks=[] if shard == 2 * at else pytest.mark.thorough)
    for at, variant in enumerate(VARIANTS)
    for shard in range(SHARDS)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("server")) as served:
        yield served


def boundaries(server: ForkServer, folder: Path, variant: dict[str, Any]) -> int:
    """The number of boundaries of a run that is not killed."""
    folder.mkdir()
    server.run("run_to", folder=str(folder), variant=variant, kill_at=ALL)
    return len((folder / "reached").read_text().splitlines())


def test_there_are_kill_points_enough(server: ForkServer, tmp_path: Path) -> None:
    found = {name: boundaries(server, tmp_path / name, variant) for name, variant in VARIANTS.items()}

    assert (min(found.values()) >= 50, sum(found.values()) >= 200) == (True, True), found


@pytest.mark.parametrize(("variant", "shard"), DEALT)
def test_a_killed_session_resumes_and_settles_its_calls_truthfully(
    variant: str, shard: int, server: ForkServer, tmp_path: Path
) -> None:
    total = boundaries(server, tmp_path / "whole", VARIANTS[variant])

    faults: list[str] = []
    for kill_at in range(shard, total, SHARDS):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        killed = server.run("run_to", folder=str(folder), variant=VARIANTS[variant], kill_at=kill_at)
        # Neighbouring boundaries differ little to an abort, and each variant takes time.
        ways = ["resume", "input", *(["abort"] if kill_at // SHARDS % 2 else [])]
        server.run("go_on", folder=str(folder), variant=VARIANTS[variant], ways=ways)
        at = f"killed at {kill_at}, {(folder / 'reached').read_text().splitlines()[-1]}"
        found = json.loads((folder / "faults").read_text())
        faults += [f"{at}; then {how}: {fault}" for how, wrong in found.items() for fault in wrong]
        faults += [f"{at}: it lived"] if killed == 0 else []

    assert faults == []


def gaps(file: Path) -> list[str]:
    """The rows of a session's database that lack an earlier one; empty for a prefix of a run."""
    with closing(sqlite3.connect(file)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'checkpoints'").fetchall():
            return []
        ids = connection.execute("SELECT checkpoint_id, parent_checkpoint_id, metadata FROM checkpoints ORDER BY 1")
        checkpoints = ids.fetchall()
        writes = connection.execute("SELECT DISTINCT checkpoint_id FROM writes").fetchall()
    known = {id_ for id_, _, _ in checkpoints}
    steps = [json.loads(metadata)["step"] for _, _, metadata in checkpoints]
    parents = [None, *(id_ for id_, _, _ in checkpoints)]
    return [
        *[f"step {step} is not {at}" for at, step in enumerate(steps, -1) if at != step],
        *[f"{id_} follows {was}" for (id_, was, _), parent in zip(checkpoints, parents, strict=False) if was != parent],
        *[f"writes without checkpoint {id_}" for (id_,) in writes if id_ not in known],
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", COMMIT_STEPS)
@pytest.mark.parametrize("variant", COMMITS)
def test_a_session_killed_at_any_commit_holds_the_first_steps_of_its_run(
    variant: str, step: int, server: ForkServer, tmp_path: Path
) -> None:
    total = boundaries(server, tmp_path / "whole", COMMITS[variant])

    faults: list[str] = []
    for kill_at in range(COMMIT_OFFSETS[variant] % step, total, step):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        killed = server.run("run_to", folder=str(folder), variant=COMMITS[variant], kill_at=kill_at)
        server.run("go_on", folder=str(folder), variant=COMMITS[variant], ways=["resume", "input"])
        at = f"killed at {kill_at}, {(folder / 'reached').read_text().splitlines()[-1]}"
        found = json.loads((folder / "faults").read_text())
        faults += [f"{at}; then {how}: {fault}" for how, wrong in found.items() for fault in wrong]
        faults += [f"{at}: {gap}" for gap in gaps(folder / "sessions.db")]
        faults += [f"{at}: it lived"] if killed == 0 else []

    assert (faults, total >= (4 if "reading" in variant else 8)) == ([], True), total
