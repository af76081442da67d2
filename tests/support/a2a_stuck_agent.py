"""A process with an agent that starts every task and ends none: it prints its address, and waits to be killed."""

from __future__ import annotations

import asyncio
import threading

from a2a.server.agent_execution import RequestContext
from a2a.server.tasks import TaskUpdater
from a2a.types import Part

from tests.support.a2a_servers import PlainAgent, serving_plain


async def stuck(text: str, updater: TaskUpdater, context: RequestContext) -> None:
    """Report that the work has started, and never end."""
    await updater.start_work(updater.new_agent_message([Part(text="begun")]))
    await asyncio.Event().wait()


if __name__ == "__main__":
    with serving_plain(PlainAgent(stuck)) as url:
        print(url, flush=True)  # noqa: T201 - how its parent learns the port
        threading.Event().wait()
