"""The page shows a long session whole, and draws a wide live wave in frames; `benchmarks.page` times both."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect

from tests.interfaces.server.process import Served, serving
from tests.web.conftest import TRAVEL
from tests.web.long_session import store_long_session, store_turns

pytestmark = pytest.mark.xdist_group("page")


WORDS = 150
WATCHED = """
    window.touched = [0, 0];
    const newest = () => [...document.querySelectorAll(".turn")].at(-1);
    new MutationObserver((records) => {
      for (const { target, addedNodes, removedNodes } of records) {
        const turn = (target.nodeType === Node.TEXT_NODE ? target.parentElement : target)?.closest(".turn");
        touched[0] += 1 + addedNodes.length + removedNodes.length;
        touched[1] += Boolean(turn && turn !== newest());
      }
    }).observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
"""
"""Count the nodes that change, and the changes in turns before the newest one."""


@pytest.fixture(scope="module")
def long_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a session of 10,000 events; stored before Playwright's event loop runs."""
    folder: Path = tmp_path_factory.mktemp("long")
    url = f"sqlite:///{folder / 'sessions.db'}"
    asyncio.run(store_long_session(url, "long", 10_000))
    for turns in (1, 200):
        asyncio.run(store_turns(url, f"turns-{turns}", turns))
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


class Work(NamedTuple):
    """What the page did while an answer was streamed."""

    turns: int
    """Turns that are shown."""
    calls: float
    """Function calls of its script for each drawing."""
    drawings: int
    """How often the page was drawn."""
    nodes: int
    """Nodes of the document that changed, were added or were removed."""
    old: int
    """Changes in turns before the newest one."""


def streamed(page: Page, url: str, go: Path) -> Work:
    """Stream an answer in an open session, all of whose turns are shown, and count the work."""
    # Otherwise an address with another fragment would stay on the page, with its observers.
    page.goto("about:blank")
    page.goto(url)
    page.locator(".turn").last.wait_for()
    while (more := page.get_by_role("button", name="earlier inputs")).count():
        more.click()
    page.get_by_label("Message", exact=True).fill(f"!words {WORDS} !hold {go}")
    page.keyboard.press("Enter")
    page.get_by_text("word0").wait_for()
    expect(page.get_by_role("button", name="Abort")).to_be_visible()
    client = page.context.new_cdp_session(page)
    client.send("Profiler.enable")
    client.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    page.evaluate(WATCHED)
    go.touch()
    expect(page.locator(".message.agent:not(.live)").last).to_contain_text(f"word{WORDS - 1}", timeout=60_000)
    scripts = client.send("Profiler.takePreciseCoverage")["result"]
    nodes, old = page.evaluate("touched")
    calls = Counter[str]()
    for script in scripts:
        # Playwright's own scripts have no address.
        for each in script["functions"] if script["url"].startswith("http") else ():
            calls[each["functionName"]] += each["ranges"][0]["count"]
    # The App's method `page` is called once for each drawing.
    drawings = calls["page"]
    return Work(page.locator(".turn").count(), calls.total() / drawings, drawings, nodes, old)


def test_a_token_costs_no_more_in_a_session_of_200_turns_than_in_a_short_one(
    long_session: Served, page: Page, tmp_path: Path
) -> None:
    short = streamed(page, f"{long_session.url}/#turns-1", tmp_path / "short")
    long = streamed(page, f"{long_session.url}/#turns-200", tmp_path / "long")

    assert (short.turns, long.turns) == (2, 201)
    # A block of ten turns costs some calls; one turn that is drawn again would cost a hundred.
    assert long.calls < min(1800, short.calls + 600), (short, long)
    # A word is a node's text; beside it, the axis grows.
    for work in (short, long):
        assert work.drawings < 3 * WORDS, work
        assert work.nodes < 8 * WORDS, work
        assert work.old == 0, work
