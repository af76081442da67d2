"""A session of three waves, killed at every boundary and resumed in another process."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
SHARDS = 4
"""Each variant's kill points are dealt out over so many tests, which may run side by side."""


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


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("variant", VARIANTS)
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
