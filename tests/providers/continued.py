"""A process that continues a stored session: `python -m tests.providers.continued ROW DATABASE PORT`.

The model is the row's, at an emulator on this machine. Prints the answer.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from graph_agent.persistence import open_saver
from tests.providers.emulator import Emulator
from tests.providers.lab import Lab, weather
from tests.providers.rows import ROWS


class Elsewhere(Emulator):
    """The emulator of another process."""

    def __init__(self, port: int, given: Emulator) -> None:
        self.row = given.row
        self._elsewhere = port

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._elsewhere


async def main(name: str, database: Path, port: int) -> None:
    row = next(row for row in ROWS if row.name == name)
    with pytest.MonkeyPatch.context() as monkeypatch:
        lab = Lab(row, database.parent, monkeypatch)
        model = lab.model_of(Elsewhere(port, lab.emulator))
        async with open_saver(f"sqlite:///{database}") as saver:
            session = lab.session(model=model, tools=[weather], checkpointer=saver)
            result = await session.run("And now?")
    sys.stdout.write(result.answer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
