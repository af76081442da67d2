"""The process that starts a server's worker processes, and stops them as it is told to: a second time at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import uvicorn
from uvicorn.supervisors import Multiprocess

_LOOK_S = 0.1
_STOPS = (signal.SIGINT, signal.SIGTERM)
_AT_ONCE = "stop-at-once"


class Supervisor(Multiprocess):
    """uvicorn's supervisor, which passes on the second signal to stop too; uvicorn's own waits and hears no more.

    A terminal and an init system signal the workers as well as this process, which signals them once more: only this
    process can count how often it was asked, and the workers read here what that came to (`is_to_stop_at_once`).

    Args:
        config: uvicorn's.
        sockets: What the workers listen at.
        shared: The folder that this process shares with its workers; None where none could be made. Then workers stop
            at once when they are asked a second time, also by this process.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], shared: Path | None) -> None:
        super().__init__(config, sockets)
        self._shared = shared
        self._asked = 0

    def handle_int(self) -> None:
        """As uvicorn calls it."""
        self._asked += 1
        super().handle_int()

    def handle_term(self) -> None:
        """As uvicorn calls it."""
        self._asked += 1
        super().handle_term()

    def keep_subprocess_alive(self) -> None:
        """As uvicorn calls it, twice a second."""
        for process in self.processes:
            # While this process holds a worker's end of their pipe too, it waits for the word of one that was killed
            # meanwhile as long as for that of a busy one: a minute.
            process.child_conn.close()
        super().keep_subprocess_alive()

    def join_all(self) -> None:
        """As uvicorn calls it, when it has asked the workers to stop."""
        # While this process listens too, clients that come now would wait for nobody instead of being refused.
        for listening in self.sockets:
            listening.close()
        told = False
        while any(process.process.is_alive() for process in self.processes):
            self._asked += sum(number in _STOPS for number in self.signal_queue)
            self.signal_queue.clear()
            if self._asked > 1 and not told:
                told = True
                self._stop_at_once()
            time.sleep(_LOOK_S)
        super().join_all()

    def _stop_at_once(self) -> None:
        if self._shared is not None:
            with contextlib.suppress(OSError):
                (self._shared / _AT_ONCE).touch()
        for process in self.processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, signal.SIGTERM)


def is_to_stop_at_once(shared: Path) -> bool:
    """Whether the process that started this worker was asked to stop a second time.

    Args:
        shared: The folder that they share.
    """
    return (shared / _AT_ONCE).exists()
