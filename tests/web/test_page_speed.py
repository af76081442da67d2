"""The page shows a long session whole, and draws a wide live wave in frames; `benchmarks.page` times both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.interfaces.server.process import Served, serving
from tests.web.conftest import TRAVEL
from tests.web.long_session import store_long_session

pytestmark = pytest.mark.xdist_group("page")


@pytest.fixture(scope="module")
def long_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a session of 10,000 events; stored before Playwright's event loop runs."""
    folder: Path = tmp_path_factory.mktemp("long")
    asyncio.run(store_long_session(f"sqlite:///{folder / 'sessions.db'}", "long", 10_000))
    with serving(folder, agent=TRAVEL) as served:
        yield served


def test_a_session_of_10_000_events_is_read_at_once_and_drawn_in_part(long_session: Served, page: Page) -> None:
    reads: list[str] = []
    page.on("request", lambda request: reads.append(request.url) if request.url.endswith("/events") else None)

    page.goto(f"{long_session.url}/#long")
    page.locator(".bar").first.wait_for()

    # All calls would be thousands of bars.
    assert (len(reads), page.locator(".bar").count() < 500) == (1, True)


def test_a_live_wave_of_200_calls_is_drawn_in_fewer_frames_than_it_has_events(travel: Served, page: Page) -> None:
    page.add_init_script("""
        window.frames = 0;
        const request = requestAnimationFrame;
        window.requestAnimationFrame = (draw) => request((time) => (frames += 1, draw(time)));
    """)
    wave = [["search_hotels", {"city": f"City {n}"}] for n in range(200)]
    page.goto(travel.url)
    page.get_by_label("Message", exact=True).fill(f"!call {json.dumps(wave)}")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Done: 200 results.")).to_be_visible(timeout=60_000)

    assert 0 < page.evaluate("frames") < 400
