"""The handler of SIGINT during blocking streams."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator

import pytest

from graph_agent.base._internal.sync_bridge import interruptible


def _numbers() -> Generator[int]:
    yield from (1, 2)


def _begun() -> Generator[int]:
    stream = interruptible(_numbers())
    next(stream)
    return stream


@pytest.fixture(autouse=True)
def no_ended_handler() -> None:
    """Remove the handler of a stream that another test has closed in a thread, which stays until the next stream."""
    _begun().close()


def test_streams_that_close_in_the_order_of_their_begin_restore_the_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    first, second = _begun(), _begun()

    first.close()
    second.close()

    assert signal.getsignal(signal.SIGINT) is before


def test_the_next_stream_replaces_the_handler_of_one_that_closed_in_another_thread() -> None:
    before = signal.getsignal(signal.SIGINT)
    closing = threading.Thread(target=_begun().close)
    closing.start()
    closing.join()

    _begun().close()

    assert signal.getsignal(signal.SIGINT) is before
