"""Supervisor of a server's worker processes; a second signal stops them at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import uvicorn
from uvicorn.supervisors import Multiprocess

from graph_agent.server.shared_folder import stop_at_once

_POLL_S = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Supervisor(Multiprocess):
    """uvicorn's supervisor, extended to forward a second stop signal, which uvicorn's ignores while it waits.

    A terminal or an init system signals the workers as well as this process, which signals them again. Only this
    process can count the requests to stop; the workers read its decision with `is_to_stop_at_once`.

    Args:
        config: uvicorn's configuration.
        sockets: The workers' listening sockets.
        shared: The folder that this process shares with its workers; None if none could be created. Without it, every
            second signal stops a worker at once, also one from this process.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], shared: Path | None) -> None:
        super().__init__(config, sockets)
        self._shared = shared
        self._stop_requests = 0

    def handle_int(self) -> None:
        """Count the signal; called by uvicorn."""
        self._stop_requests += 1
        super().handle_int()

    def handle_term(self) -> None:
        """Count the signal; called by uvicorn."""
        self._stop_requests += 1
        super().handle_term()

    def keep_subprocess_alive(self) -> None:
        """Restart dead workers; called by uvicorn twice a second."""
        for process in self.processes:
            # With the worker's end of the pipe open here too, a killed worker would be detected only after the
            # timeout of the health check, a minute.
            process.child_conn.close()
        super().keep_subprocess_alive()

    def join_all(self) -> None:
        """Wait until the workers have stopped; called by uvicorn after it has signalled them."""
        # With the sockets open here, new clients would wait forever instead of being refused.
        for listener in self.sockets:
            listener.close()
        forwarded = False
        while any(process.process.is_alive() for process in self.processes):
            self._stop_requests += sum(number in _STOP_SIGNALS for number in self.signal_queue)
            self.signal_queue.clear()
            if self._stop_requests > 1 and not forwarded:
                forwarded = True
                self._stop_at_once()
            time.sleep(_POLL_S)
        super().join_all()

    def _stop_at_once(self) -> None:
        if self._shared is not None:
            with contextlib.suppress(OSError):
                stop_at_once(self._shared)
        for process in self.processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, signal.SIGTERM)
