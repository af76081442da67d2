"""The page shows a run that a crash has cut off, and the time until its resume."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from graph_agent.web.page import exported_page
from tests.interfaces.server.process import Served, serving
from tests.support import gaps
from tests.support.cli import run_cli
from tests.web.conftest import TRAVEL

pytestmark = pytest.mark.xdist_group("page")


def shown(page: Page) -> dict[str, Any]:
    """The status, the calls in the conversation, the bars of calls, and the dead times on the axis."""
    bars = page.locator(".bar:not(.model)")
    return {
        "status": page.get_by_role("status").first.inner_text(),
        "calls": [each.get_attribute("aria-label") for each in page.locator(".chip").all()],
        "cut off": ["cut" in str(each.get_attribute("class")).split() for each in bars.all()],
        "dead": [str(each.get_attribute("aria-label")).split(":")[0] for each in page.locator(".dead").all()],
        "active": page.locator(".graph .active text").all_text_contents(),
    }


def send_and_kill(page: Page, served: Served, waiting: str, file: Path) -> None:
    """Send a message, and kill the server while the first of its two calls waits for a file."""
    page.goto(f"{served.url}/#trip")
    message = f"!call {json.dumps([[waiting, {'file': str(file)}], ['echo', {'text': 'one'}]])}"
    page.get_by_label("Message", exact=True).fill(message)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="echo, succeeded").first.wait_for()
    served.kill_all()
    page.goto("about:blank")


def exported(folder: Path) -> str:
    """The address of the page that `graph-agent sessions export --html` writes."""
    (folder / "trip.html").unlink(missing_ok=True)
    options = ("--config", str(folder / "agent.yaml"), "--db", f"sqlite:///{folder / 'sessions.db'}")
    run_cli(folder, "sessions", "export", "trip", "--html", "--out", str(folder / "trip.html"), *options)
    return (folder / "trip.html").as_uri()


def test_a_killed_run_is_cut_off_and_its_dead_time_is_no_work(page: Page, tmp_path: Path) -> None:
    with serving(tmp_path, agent=TRAVEL) as served:
        send_and_kill(page, served, "wait_for", tmp_path / "never")
    views = []
    with serving(tmp_path, agent=TRAVEL) as served:
        for address in (exported(tmp_path), f"{served.url}/#trip"):
            page.goto(address)
            expect(page.locator(".ending")).to_have_text("interrupted")
            views.append(shown(page))
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("status")).to_have_text("completed")
        views.append(shown(page))
        page.goto(exported(tmp_path))
        page.get_by_text("Done: 2 results.").wait_for()
        views.append(shown(page))
        lost = page.get_by_role("button", name="wait_for, outcome unknown, cut off, step 1").bounding_box()
        dead = page.get_by_role("img", name="Interrupted").bounding_box()

    cut_off = {
        "status": "interrupted",
        "calls": ["wait_for, interrupted", "echo, succeeded"],
        "cut off": [True, False],
        "dead": [],
        "active": [],
    }
    resumed = {
        "status": "completed",
        "calls": ["wait_for, outcome unknown", "echo, succeeded"],
        "cut off": [True, False],
        "dead": ["Interrupted"],
        "active": ["end"],
    }
    assert views == [cut_off, cut_off, resumed, resumed]
    assert lost is not None
    assert dead is not None
    assert lost["width"] < 20 < dead["width"]


def test_a_reading_call_that_runs_again_works_from_the_resume_on(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with serving(tmp_path, agent=TRAVEL) as served:
        send_and_kill(page, served, "look_for", file)
    time.sleep(2)  # a shorter time without work has no label
    with serving(tmp_path, agent=TRAVEL) as served:
        page.goto(f"{served.url}/#trip")
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("button", name="look_for, running").first.wait_for()
        again = shown(page)
        bar = page.locator(".bar.tool.running").bounding_box()
        dead = page.get_by_role("img", name="Interrupted").bounding_box()
        file.touch()
        expect(page.get_by_role("status")).to_have_text("completed")
        after = shown(page)
        page.reload()
        expect(page.get_by_role("status")).to_have_text("completed")
        reloaded = shown(page)

    assert again == {
        "status": "running",
        "calls": ["look_for, running", "echo, succeeded"],
        "cut off": [False, False],
        "dead": ["Interrupted"],
        "active": ["tools"],
    }
    assert after == {
        **again,
        "status": "completed",
        "calls": ["look_for, succeeded", "echo, succeeded"],
        "active": ["end"],
    }
    assert reloaded == after
    assert bar is not None
    assert dead is not None
    assert dead["x"] + dead["width"] <= bar["x"] + 1


def test_a_gap_is_named_by_what_is_recorded_of_it(page: Page, tmp_path: Path) -> None:
    named = {
        "Interrupted": "interrupted",
        "Retry": "retry",
        "No recorded work": "idle",
        "Waited for a person": "person",
    }
    found = {}
    for case, (events, _) in gaps.CASES.items():
        (tmp_path / "session.html").write_text(exported_page("s1", events, "agent"))
        page.goto((tmp_path / "session.html").as_uri())
        page.get_by_role("button", name="look_up, succeeded").first.wait_for()
        titles = [str(each.get_attribute("title")) for each in page.locator(".column .wait").all()]
        found[case] = [named.get(title.split(":")[0], "person") for title in titles]

    assert found == {case: expected for case, (_, expected) in gaps.CASES.items()}


def test_a_gap_ends_where_the_next_request_begins(page: Page, tmp_path: Path) -> None:
    events, _ = gaps.CASES["a hook takes its time, or an older version was resumed"]
    (tmp_path / "session.html").write_text(exported_page("s1", events, "agent"))
    page.goto((tmp_path / "session.html").as_uri())
    idle = page.get_by_role("img", name="No recorded work: 1 min").bounding_box()
    bar = page.locator(".bar.model").last.bounding_box()

    assert page.locator(".dead").count() == 1
    assert idle is not None
    assert bar is not None
    assert idle["x"] + idle["width"] <= bar["x"] + 1
