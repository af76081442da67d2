"""The default executor of event loops that agents run on: an agent's blocking code runs on daemon threads.

LangChain and LangGraph hand blocking code (nodes, models, callbacks, retrievers) to the loop's default executor, and so
does `asyncio.to_thread`. `asyncio.run` joins that executor's threads, so one call that hangs would keep the process
alive after its time limit or a Ctrl-C. Everything that no agent's run submits is executed as before.
"""

from __future__ import annotations

import asyncio

from langchain_core.runnables.config import var_child_runnable_config

from graph_agent._compat import default_executor_of
from graph_agent._internal.daemon_threads import DaemonExecutor
from graph_agent.runs.run import RUN


def use_daemon_threads() -> None:
    """Put a `DaemonExecutor` around the running loop's default executor, once.

    Only asyncio's own loops show their executor. Another kind of loop is left as it is, since its executor may be one
    that the program has chosen; see `use_daemon_threads_of_own_loop`.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.BaseEventLoop) and not isinstance(before := default_executor_of(loop), DaemonExecutor):
        loop.set_default_executor(DaemonExecutor(_is_within_a_run, before))


def use_daemon_threads_of_own_loop() -> None:
    """As `use_daemon_threads`, for any kind of loop, once the program that owns it has started it."""
    asyncio.get_running_loop().set_default_executor(DaemonExecutor(_is_within_a_run))


def _is_within_a_run() -> bool:
    config = var_child_runnable_config.get() or {}
    return RUN in config.get("configurable", {})
