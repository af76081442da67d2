"""The page shows the part of a call that ran before its plan was whole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from graph_agent.web.page import exported_page


def event(type_: str, seq: int, at_s: float, **fields: Any) -> dict[str, Any]:
    """An event at a time after the first one."""
    ts = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)
    return {"type": type_, "seq": seq, "step": 1, "ts": ts.isoformat(timespec="microseconds"), **fields}


def test_calls_that_no_plan_used_are_counted_below_the_axis(page: Page, tmp_path: Path) -> None:
    call = {"id": "c1", "name": "look_up"}
    plan = {"status": "continue", "action": "work", "reasoning": "", "calls": [call]}
    early = [
        {"streamed": {"started": 2, "used": 1}, "learned": {"started": 1}},
        {"streamed": {"dropped": 1, "dropped_s": 1.25}, "learned": {"used": 1}},
        {"request": {"started": 1, "dropped": 1, "dropped_s": 0.5, "cost": 0.012}},
    ]
    events = [
        event("user_message", 0, 0, content="go"),
        event("plan", 1, 2, **plan, early=early[0]),
        event("tool_call", 2, 2, **call, arguments={}),
        event("tool_result", 3, 2.5, **call, duration_s=0.5, status="success", content="found", truncated=False),
        event("plan", 4, 3, **{**plan, "calls": []}, early=early[1]),
        event("agent_response", 5, 3.1, content="Found.", early=early[2]),
    ]
    (tmp_path / "session.html").write_text(exported_page("s1", events, "agent"))
    page.goto((tmp_path / "session.html").as_uri())

    expect(page.locator(".early-work")).to_have_text(
        [
            "Early calls, streamed: 1 of 2 used (50 %) · 1 dropped, 1.3 s wasted",
            "Early calls, learned: 1 of 1 used (100 %)",
            "Early requests: 0 of 1 used (0 %) · 1 dropped, 500 ms wasted, cost 0.012",
        ]
    )


def test_the_early_part_of_a_call_is_hatched_and_in_its_bar(page: Page, tmp_path: Path) -> None:
    call = {"id": "c1", "name": "look_up"}
    model = {"purpose": "plan", "model": "m", "started": "2026-01-01T00:00:00+00:00", "duration_s": 2.0}
    plan = {"status": "continue", "action": "work", "reasoning": "", "calls": [call], "model_calls": [model]}
    times = {"queued_s": 0.0, "duration_s": 0.5, "early_s": 1.5, "lead_s": 1.5}
    events = [
        event("user_message", 0, 0, content="go"),
        event("plan", 1, 2, **plan, early={"streamed": {"started": 1}}),
        event("tool_call", 2, 2, **call, arguments={}),
        event("tool_result", 3, 2.5, **call, **times, status="success", content="found", truncated=False),
    ]
    (tmp_path / "session.html").write_text(exported_page("s1", events, "agent"))
    page.goto((tmp_path / "session.html").as_uri())
    bar = page.get_by_role("button", name="look_up, succeeded, 2.0 s, 1.5 s of it early, step 1")
    bar.click()

    share = bar.evaluate("bar => bar.querySelector('.early').offsetWidth / bar.offsetWidth")
    expect(page.locator(".detail")).to_contain_text("Began 1.5 s before the plan was complete.")
    assert 0.74 < share < 0.76
