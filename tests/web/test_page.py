"""The page, in a real browser: sessions, the conversation, the time axis, and decisions on calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.server.process import Served
from tests.support.cli import run_cli

pytestmark = pytest.mark.xdist_group("page")
DONE_MS = 30_000


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def bars(page: Page) -> list[str]:
    """The names that a screen reader reads of the bars, without durations."""
    labels = [bar.get_attribute("aria-label") or "" for bar in page.locator(".bar").all()]
    return [re.sub(r", (<?[\d.]+ (ms|s)|no duration|\d+ tokens)", "", label) for label in labels]


def drawing(page: Page) -> list[Any]:
    """The bars of the time axis: name, state and place."""
    page.locator(".bar").first.wait_for()
    bars: list[Any] = page.locator(".bar").evaluate_all(
        "bars => bars.map(bar => [bar.ariaLabel, bar.className, bar.style.cssText])"
    )
    return bars


def test_an_input_is_answered_and_drawn(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, "Plan a trip to Bergen")
    page.get_by_role("button", name="Send decisions").click(timeout=DONE_MS)
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)

    expect(page.locator(".message.agent")).to_contain_text("Your trip is ready.")
    assert bars(page) == [
        "model, step 1",
        "search_flights, succeeded, step 1",
        "search_hotels, succeeded, step 1",
        "weather, succeeded, step 1",
        "weather, failed, step 1",
        "model, step 2",
        "delegate_to_guide, succeeded, step 2",
        "model, step 1",
        "weather, succeeded, step 1",
        "echo, succeeded, step 1",
        "model, step 2",
        "search_hotels, succeeded, step 2",
        "model, step 3",
        "book, succeeded, step 3",
        "book, succeeded, step 3",
        "model, step 4",
    ]


def test_a_call_shows_its_arguments_and_its_whole_output(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, '!call [["echo", {"text": "a\\u202eb"}]]')
    page.get_by_role("button", name=re.compile("^echo, succeeded, .*step 1")).click(timeout=DONE_MS)

    blocks = page.get_by_label("Details").locator("pre")
    expect(blocks).to_have_text(['{\n  "text": "aU+202Eb"\n}', "aU+202Eb"])


def test_an_exported_session_is_drawn_as_on_the_server(page: Page, travel: Served, tmp_path: Path) -> None:
    page.goto(travel.url)
    send(page, '!call [["weather", {"city": "Bergen"}], ["delegate_to_guide", {"task": "Find a walk."}]]')
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
    live = drawing(page)
    session = page.url.partition("#")[2]
    exported = tmp_path / "session.html"
    database = f"sqlite:///{travel.log.parent / 'sessions.db'}"

    export = run_cli(tmp_path, "sessions", "export", session, "--html", "--db", database, "--out", str(exported))
    assert (export.returncode, export.stderr) == (0, "")

    # Without the list of sessions, which is 250 pixels wide, the axis has the same width.
    page.set_viewport_size({"width": 1440 - 250, "height": 900})
    page.goto(exported.as_uri())
    assert drawing(page) == live


def test_the_root_is_a_page_under_a_strict_policy(travel: Served) -> None:
    answer = httpx.get(travel.url, headers={"accept": "text/html"}, trust_env=False)

    policy = re.sub(r"sha256-[^']*", "sha256", answer.headers["content-security-policy"])
    assert (answer.headers["content-type"], policy) == (
        "text/html; charset=utf-8",
        "default-src 'none'; script-src 'sha256'; style-src 'sha256'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    )
