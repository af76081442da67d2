"""Polling: a failing poll is logged once, without a traceback, and polling continues."""

from __future__ import annotations

import asyncio
import logging

import pytest

from graph_agent.base._internal.polling import poll_forever

logger = logging.getLogger("graph_agent.tests")


async def test_a_failing_poll_is_logged_once_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    comes: list[Exception | None] = [
        OSError("gone"),
        OSError("gone"),
        None,
        OSError("gone again sk-secretsecretsecret"),
    ]
    over = asyncio.Event()

    async def look() -> None:
        if not comes:
            over.set()
        elif (error := comes.pop(0)) is not None:
            raise error

    looking = asyncio.create_task(poll_forever(look, 0, logger, "Looking"))
    await asyncio.wait_for(over.wait(), 30)
    looking.cancel()
    await asyncio.wait([looking])

    assert (looking.cancelled(), [(record.message, record.exc_info) for record in caplog.records]) == (
        True,
        [("Looking failed: OSError: gone", None), ("Looking failed: OSError: gone again sk-***", None)],
    )
