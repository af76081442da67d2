"""A signal whose handler is installed with `handling` wakes an event loop that waits."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from graph_agent.base._internal.signals import handling


async def test_a_signal_wakes_the_event_loop() -> None:
    came = asyncio.Event()
    # The handler itself does not wake the loop, and the pause lets the loop begin to wait.
    send = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))

    with handling(signal.SIGUSR1, lambda *_: came.set()):
        send.start()
        await came.wait()

    assert came.is_set()


async def test_the_earlier_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGUSR1)

    with handling(signal.SIGUSR1, lambda *_: None):
        pass

    assert (signal.getsignal(signal.SIGUSR1), signal.set_wakeup_fd(-1)) == (before, -1)
