"""A worker process: serves virtual objects to Restate's server over HTTP/2."""

from __future__ import annotations

import asyncio
import signal
import socket

import restate
from hypercorn.asyncio import serve as serve_asgi
from hypercorn.config import Config
from restate.server import install_shutdown_hook


async def serve(*objects: restate.VirtualObject, bind: str = "127.0.0.1:9080", drain_s: float = 30.0) -> None:
    """Serve objects to Restate over HTTP/2, until SIGTERM or SIGINT.

    Args:
        objects: The objects.
        bind: Host and port. Several processes of a machine may serve one address; the system shares the connections.
        drain_s: Seconds that runs may take to end after the signal; Restate delivers unfinished inputs to other workers.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        install_shutdown_hook(loop, stop.set, number)  # a handler of the loop would be replaced by Restate's own
    host, _, port = bind.rpartition(":")
    config = Config()
    config.bind = [f"fd://{socket.create_server((host, int(port)), reuse_port=True).detach()}"]
    config.graceful_timeout = drain_s
    await serve_asgi(restate.app(objects), config, shutdown_trigger=stop.wait)
