"""A session whose calls and reasoning were stored is continued by another process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from graph_agent.persistence import open_saver
from tests.providers.exchange import Reply
from tests.providers.lab import ANSWER, WEATHER, Lab, called, calls, clock, in_order, weather
from tests.providers.row import Row
from tests.providers.rows import ROWS, SAMPLE
from tests.support.warm_process import warm_python


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in SAMPLE], ids=lambda row: str(row.name))
async def test_another_process_continues_a_session(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "sessions.db"
    reply = calls(("weather", {"city": "Paris"}), ("clock", {"zone": "UTC"}), reasoning="Two calls.")
    with Lab(row, tmp_path, monkeypatch) as lab:
        async with open_saver(f"sqlite:///{database}") as saver:
            await lab.session(reply, Reply(ANSWER), tools=[weather, clock], checkpointer=saver).run(WEATHER)
        lab.emulator.brain = in_order(Reply("Fine."))

        arguments = ["-m", "tests.providers.continued", row.name, str(database), str(lab.emulator.port)]
        process = await asyncio.create_subprocess_exec(warm_python(), *arguments, stdout=asyncio.subprocess.PIPE)
        answer, _ = await process.communicate()

        lab.check()
        assert (answer.decode(), [name for name, _ in called(lab.requests)]) == ("Fine.", ["weather", "clock"])
