"""A session that another process holds, while it runs and after it is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import InputError, SessionBusyError
from graph_agent.persistence import open_saver
from tests.support.fault_server import ForkServer
from tests.support.gates import until


async def holder_pid(folder: Path) -> int:
    """Wait until a process holds the session, and return its id."""
    await until((folder / "entered").exists)
    return int((folder / "entered").read_text())


async def run_while_held(server: ForkServer, folder: Path, database: str) -> tuple[str, int, str]:
    """Assert that a held session refuses a run and an abort; run another session, then the released one.

    Returns the other session's answer, the exit status of the holding process, and the released session's answer.
    """
    await holder_pid(folder)
    async with open_saver(database) as saver:
        graph = create_graph_agent(ScriptedChatModel(["Mine.", "Other."]), checkpointer=saver)
        with pytest.raises(SessionBusyError):
            await Session(graph, "s1").run("me too")
        with pytest.raises(InputError, match="Store"):
            await Session(graph, "s1").abort()
        other = await Session(graph, "s2").run("hello")
        (folder / "leave").touch()
        ended = server.end()
        after = await Session(graph, "s1").run("now me")
    return other.answer, ended, after.answer


async def run_after_holder_killed(server: ForkServer, folder: Path, database: str) -> tuple[int, str]:
    """Kill the process that holds a session; return its exit status and the session's next answer."""
    os.kill(await holder_pid(folder), signal.SIGKILL)
    ended = server.end()
    async with open_saver(database) as saver:
        graph = create_graph_agent(ScriptedChatModel(["Mine."]), checkpointer=saver)
        result = await Session(graph, "s1").run("now me")
    return ended, result.answer
