"""The page is fast with a long session, and with a wide live wave."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.server.process import Served, serving
from tests.web.conftest import TRAVEL
from tests.web.long_session import store_long_session

pytestmark = pytest.mark.xdist_group("page")
ATTEMPTS = 5
"""Attempts on a machine that does other work, too; the fastest one counts."""
FRAMES = """
    window.frames_ms = [];
    const request = requestAnimationFrame;
    window.requestAnimationFrame = (draw) => request((time) => {
      const begun = performance.now();
      draw(time);
      // Preact renders in a microtask before this one; the measurement includes the layout of what it changed.
      queueMicrotask(() => (document.body.offsetHeight, frames_ms.push(performance.now() - begun)));
    });
"""


@pytest.fixture(scope="module")
def long_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a session of 10,000 events; stored before Playwright's event loop runs."""
    folder: Path = tmp_path_factory.mktemp("long")
    asyncio.run(store_long_session(f"sqlite:///{folder / 'sessions.db'}", "long", 10_000))
    with serving(folder, agent=TRAVEL) as served:
        yield served


def test_a_session_of_10_000_events_opens_within_a_second_and_a_half(long_session: Served, page: Page) -> None:
    durations = []
    for _ in range(ATTEMPTS):
        page.goto("about:blank")
        begun = time.perf_counter()
        page.goto(f"{long_session.url}/#long")
        page.locator(".bar").first.wait_for()
        durations.append(time.perf_counter() - begun)

    assert min(durations) < 1.5


def test_a_live_wave_of_200_calls_keeps_frames_short(travel: Served, page: Page) -> None:
    page.add_init_script(FRAMES)
    wave = [["search_hotels", {"city": f"City {n}"}] for n in range(200)]
    medians: list[float] = []
    while len(medians) < ATTEMPTS and min(medians, default=16) >= 16:
        page.goto("about:blank")
        page.goto(travel.url)
        page.get_by_label("Message").fill(f"!call {json.dumps(wave)}")
        page.keyboard.press("Enter")
        expect(page.get_by_text("Done: 200 results.")).to_be_visible(timeout=60_000)
        frames = page.evaluate("frames_ms")
        assert len(frames) > 10
        medians.append(statistics.median(frames))

    assert min(medians) < 16
