"""A process that kills itself while its session waits for approval: see `tests/base/approvals/test_recovery.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from graph_agent.persistence import open_saver
from tests.support.agents import asks
from tests.support.approvals import Desk


async def main(path: str) -> None:
    """Run until the session waits, then end without any cleanup."""
    async with open_saver(f"sqlite:///{path}") as saver:
        desk = Desk(asks(("1", "write", {"path": "a"}), ("2", "read", {"path": "b"})), checkpointer=saver)
        waiting = await desk.session.run("go")
        assert waiting.interrupts
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
