"""A server with the travel agent, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.interfaces.server.process import Served, serving
from tests.support.chromium import chromium

expect.set_options(timeout=60_000)
_TOOLS = (
    "search_flights",
    "search_hotels",
    "weather",
    "book",
    "wait_for",
    "ask_person",
    "echo",
    "transfer",
    "look_for",
)
TRAVEL: dict[str, Any] = {
    "name": "travel",
    "description": "Plans short trips.",
    "model": "tests.web.travel_agent:make",
    "tools": [f"tests.web.travel_agent:{name}" for name in _TOOLS],
    "delegates": [{"name": "guide", "description": "Knows walks.", "graph": "tests.web.travel_agent:make_guide"}],
    "approve": ["book", "transfer"],
    "config": {"max_steps": 8, "model_retries": 0, "max_calls_per_wave": 256, "record_requests": True},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window.

    Playwright's event loop runs until the module's last test, so that no test of the module may be asynchronous.
    """
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def travel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the travel agent, with SQLite."""
    with serving(tmp_path_factory.mktemp("travel"), agent=TRAVEL) as served:
        yield served


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab; the test fails if its script fails or its policy blocks anything."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(60_000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    yield page
    context.close()
    assert problems == []
