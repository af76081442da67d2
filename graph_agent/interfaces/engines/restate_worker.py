"""Serves virtual objects to Restate over HTTP/2, and lets their runs end after SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

import restate
from hypercorn.asyncio import serve as serve_asgi
from hypercorn.config import Config
from restate.server import install_shutdown_hook

from graph_agent.interfaces.engines.restate import RUNS


async def serve(
    *objects: restate.VirtualObject,
    bind: str = "127.0.0.1:9080",
    drain_s: float = 30.0,
    identity_keys: Sequence[str] = (),
) -> None:
    """Serve virtual objects to Restate until SIGTERM or SIGINT, then wait for their runs to end, and return.

    After the signal the connections are closed, so that Restate delivers to another worker, which waits for the runs of
    this one and returns their results. Raises `OSError` if the address cannot be bound, `ValueError` if `bind` has no
    number as its port, and any exception that ends the server before a signal.

    Args:
        objects: Virtual objects, e.g. of `agent_object`.
        bind: IPv4 host, empty for all addresses, and port. Several processes of a machine may bind one address; the
            system shares the connections among them.
        drain_s: Maximum seconds to wait for runs after the signal. Another worker continues those that have not ended.
        identity_keys: Public keys of the Restate servers that may call this worker; empty for any caller.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        install_shutdown_hook(loop, stop.set, number)  # a handler of the loop would be replaced by Restate's own
    host, _, port = bind.rpartition(":")
    config = Config()
    config.bind = [f"fd://{socket.create_server((host, int(port)), reuse_port=True).detach()}"]
    config.graceful_timeout = 0
    serving = asyncio.create_task(
        serve_asgi(restate.app(objects, identity_keys=list(identity_keys)), config, shutdown_trigger=stop.wait)
    )
    await asyncio.wait([serving, stopping := asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        return await serving
    with suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await asyncio.wait([serving])
            while RUNS:
                await asyncio.wait(RUNS)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return None
