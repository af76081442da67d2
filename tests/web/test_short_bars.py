"""The time axis shows the names of bars that are too short for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from graph_agent.web.page import exported_page

pytestmark = pytest.mark.xdist_group("page")
LABELS = """
    bars => bars.filter(bar => bar.offsetWidth < 90).map(bar => {
      const label = bar.querySelector(".label");
      return [bar.ariaLabel.split(",")[0], label.clientWidth > 20 && label.scrollWidth <= label.clientWidth + 1];
    })
"""
"""Return the names of short bars, and whether each is shown whole."""


@pytest.mark.parametrize("name", ["weather", "weather_now", "x"])
def test_a_name_that_fits_only_inside_its_bar_stands_inside(page: Page, tmp_path: Path, name: str) -> None:
    # The call ends its step, so that there is no room beside its bar.
    calls: list[dict[str, Any]] = [{"id": "c1", "name": name}]

    def event(type_: str, seq: int, at_s: float, step: int = 1, **fields: Any) -> dict[str, Any]:
        """An event at a time after the first one."""
        ts = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)
        return {"type": type_, "seq": seq, "step": step, "ts": ts.isoformat(timespec="microseconds"), **fields}

    plan: dict[str, Any] = {"status": "continue", "action": "work", "reasoning": "", "calls": calls}
    events = [
        event("user_message", 0, 0, step=0, content="go"),
        event("plan", 1, 0.202, **plan),
        event("tool_call", 2, 0.217, **calls[0], arguments={}),
        event("tool_result", 3, 0.398, **calls[0], status="success", content="", truncated=False),
        event("plan", 4, 0.6, step=2, status="done", action="answer", reasoning="Rain.", calls=[]),
        event("agent_response", 5, 1.8, step=2, content="Rain."),
        event("status", 6, 1.8, step=2, **{"from": "RUNNING", "to": "COMPLETED"}),
    ]
    (tmp_path / "session.html").write_text(exported_page("s1", events, "agent"))
    shown = []
    for width in range(1040, 1500, 60):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto((tmp_path / "session.html").as_uri())
        page.locator(".bar.tool").wait_for()
        shown.append(
            page.locator(".bar.tool .label").evaluate(
                """one => one.clientWidth > 10 && (one.scrollWidth <= one.clientWidth + 1 ||
                    one.parentElement.offsetWidth >= 90 && one.clientWidth >= 80)"""
            )
        )

    # A name that is longer than a bar of 90 pixels may be cut.
    assert shown == [True] * len(shown)


def test_close_model_calls_of_a_delegate_have_one_name(page: Page, tmp_path: Path) -> None:
    def event(type_: str, seq: int, at_s: float, **fields: Any) -> dict[str, Any]:
        """An event at a time after the first one."""
        ts = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)
        return {"type": type_, "seq": seq, "step": 1, "ts": ts.isoformat(timespec="microseconds"), **fields}

    def asked(at_s: float) -> dict[str, Any]:
        started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)
        return {"purpose": "plan", "model": "m", "started": started.isoformat(), "duration_s": 0.02}

    plan: dict[str, Any] = {"status": "continue", "action": "work", "reasoning": ""}
    names = {}
    for space_s in (0.02, 0.05, 2):
        times = [0.1, 0.1 + space_s, 0.1 + 2 * space_s]
        inner = [
            event("user_message", 0, 0.1, content="Look."),
            event("plan", 1, times[-1], **plan, calls=[], model_calls=[asked(each) for each in times]),
            event("agent_response", 2, 10, content="Found."),
        ]
        delegation = {"id": "d", "target": "helper"}
        events = [
            event("user_message", 0, 0, content="go"),
            event("plan", 1, 0.1, **plan, calls=[{"id": "d", "name": "delegate_to_helper"}], model_calls=[asked(0)]),
            event("delegation_request", 2, 0.1, **delegation, task="Look."),
            event("delegation_response", 3, 10, **delegation, status="success", content="Found.", history=inner),
        ]
        (tmp_path / "session.html").write_text(exported_page("s1", events, "agent"))
        page.goto((tmp_path / "session.html").as_uri())
        page.locator(".bar.model.nested").last.wait_for()
        labels = page.locator(".bar.model.nested .label:visible")
        whole = "labels => labels.map(one => [one.innerText.trim(), one.scrollWidth <= one.clientWidth + 1])"
        names[space_s] = labels.evaluate_all(whole)

    assert names == {0.02: [["model ×3", True]], 0.05: [["model ×3", True]], 2: [["model 20 ms", True]] * 3}


def test_short_bars_show_their_names(page: Page, tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = [{"id": f"c{n}", "name": f"tool_{n}"} for n in range(6)]

    def event(type_: str, seq: int, at_s: float, **fields: Any) -> dict[str, Any]:
        """An event at a time after the first one."""
        ts = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)
        return {"type": type_, "seq": seq, "step": 1, "ts": ts.isoformat(timespec="microseconds"), **fields}

    plan: dict[str, Any] = {"status": "continue", "action": "work", "reasoning": "", "calls": calls}
    ran = {"status": "success", "content": "", "truncated": False}
    events = [
        event("user_message", 0, 0, content="go"),
        event("plan", 1, 0.1, **plan),
        *[event("tool_call", 2 + n, 0.1 + n, **call, arguments={}) for n, call in enumerate(calls)],
        *[event("tool_result", 8 + n, 0.11 + n, **call, **ran) for n, call in enumerate(calls[:-1])],
        event("tool_result", 13, 60, **calls[-1], **ran),
    ]
    (tmp_path / "session.html").write_text(exported_page("s1", events, "agent"))
    page.goto((tmp_path / "session.html").as_uri())
    page.locator(".bar.tool").last.wait_for()

    # All begin within a tenth of the width, and the last one lasts to its end.
    assert page.locator(".bar.tool").evaluate_all(LABELS) == [[f"tool_{n}", True] for n in range(5)]
