"""The page shows a run that a crash has cut off, and the time until its resume."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from graph_agent.web.page import exported_page
from tests.interfaces.server.process import Served, serving
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
    # The events do not have the attempt that the crash cut off.
    assert reloaded == {**after, "dead": ["No recorded work"]}
    assert bar is not None
    assert dead is not None
    assert dead["x"] + dead["width"] <= bar["x"] + 1


def test_the_time_until_a_repeated_model_call_is_no_work(page: Page, tmp_path: Path) -> None:
    call = {"id": "c1", "name": "look_up"}

    def asked(at_s: float) -> list[dict[str, Any]]:
        """The record of a model call of half a second."""
        return [{"purpose": "plan", "model": "m", "started": moment(at_s), "duration_s": 0.5}]

    plan = {"status": "continue", "action": "work", "reasoning": "", "calls": [call]}
    result = {"duration_s": 0.5, "queued_s": 0.0, "status": "success", "content": "found", "truncated": False}
    entries: list[dict[str, Any]] = [
        {"type": "user_message", "ts": moment(0), "step": 0, "content": "go"},
        {"type": "plan", "ts": moment(0.5), "step": 1, **plan, "model_calls": asked(0)},
        {"type": "tool_call", "ts": moment(0.5), "step": 1, **call, "arguments": {}},
        {"type": "tool_result", "ts": moment(1), "step": 1, **call, **result},
        # The first attempt was cut off, and is not in the history.
        {"type": "plan", "ts": moment(61.5), "step": 2, **plan, "calls": [], "model_calls": asked(61)},
        {"type": "agent_response", "ts": moment(61.5), "step": 2, "content": "Found."},
        {"type": "status", "ts": moment(61.5), "step": 2, "from": "RUNNING", "to": "COMPLETED"},
    ]
    events = [{"seq": seq, **entry} for seq, entry in enumerate(entries)]
    (tmp_path / "session.html").write_text(exported_page("s1", events, "agent"))
    page.goto((tmp_path / "session.html").as_uri())
    idle = page.get_by_role("img", name="No recorded work: 1 min").bounding_box()
    bar = page.locator(".bar.model").last.bounding_box()

    assert page.locator(".dead").count() == 1
    assert idle is not None
    assert bar is not None
    assert idle["x"] + idle["width"] <= bar["x"] + 1


def moment(at_s: float) -> str:
    """The time of an event, in seconds after the first one."""
    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)).isoformat(timespec="microseconds")
