"""The page for every person: keyboard, screen readers, themes, narrow windows, restarts, keys, and hostile texts."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.interfaces.server.process import Served, serving
from tests.support.ports import reserved_port
from tests.web.conftest import TRAVEL
from tests.web.travel_agent import HOSTILE

pytestmark = pytest.mark.xdist_group("page, second half")
DONE_MS = 60_000
KEY = "a-key-for-the-page-tests"
HELD = """
    const [path, late] = [new RegExp(%s), %s];
    const [fetched, answered] = [window.fetch, Promise.withResolvers()];
    window.fetch = async (url, options) => {
      const isInput = options.method === "POST";
      const isHeld = location.hash && path.test(url);
      if (isHeld && late === "request") await answered.promise;
      const answer = await fetched(url, options);
      if (isHeld && late === "answer") await answered.promise;
      // The page has read the answer to the input before it reads the ones that were held.
      if (isInput) setTimeout(answered.resolve, 100);
      return answer;
    };
"""
"""Hold the requests to a path, or their answers, until an input is answered."""

WATCHED = """
    const seen = new Set();
    window.watched = { elements: 0, removed: false };
    new MutationObserver(() => {
      const shown = document.querySelectorAll(".message.agent");
      for (const one of shown) seen.add(one);
      watched.elements = seen.size;
      watched.removed ||= seen.size > 0 && !shown.length;
    }).observe(document, { childList: true, subtree: true });
"""
"""Count the elements of the agent's messages, and see whether any goes."""


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def call(*calls: tuple[str, dict[str, Any]]) -> str:
    """An input that makes the model call tools, all in one wave."""
    return f"!call {json.dumps(calls)}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("width", "theme"),
    [
        (1440, "light"),
        (390, "dark"),
        pytest.param(1440, "dark", marks=pytest.mark.thorough),
        pytest.param(390, "light", marks=pytest.mark.thorough),
    ],
)
def test_axe_finds_nothing_serious(page: Page, travel: Served, theme: Any, width: int) -> None:
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 844})
    found = []
    page.goto(travel.url)
    expect(page.get_by_text("Send a message to begin a session")).to_be_visible()
    found += Axe().run(page).response["violations"]
    send(page, "Plan a trip to Bergen")
    page.get_by_role("button", name="Send decisions").wait_for(timeout=DONE_MS)
    found += Axe().run(page).response["violations"]
    page.get_by_label("edit").first.check()
    page.get_by_role("button", name="weather, failed").first.click()
    page.get_by_role("region", name="Details").wait_for()
    found += Axe().run(page).response["violations"]

    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found if is_serious(each)] == []


def is_serious(violation: dict[str, Any]) -> bool:
    return violation["impact"] in ("serious", "critical")


def test_a_phone_shows_one_view_at_a_time_without_a_horizontal_scroll_bar(page: Page, travel: Served) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(travel.url)
    send(page, call(("echo", {"text": "x" * 300})))
    page.get_by_text("Done: 1 results.").wait_for(timeout=DONE_MS)
    shown = []
    for view in ("Sessions", "Conversation", "Time"):
        page.get_by_role("button", name=view, exact=True).click()
        regions = [page.get_by_role("navigation", name="Sessions"), page.get_by_role("main"), page.locator(".time")]
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        shown.append(([region.is_visible() for region in regions], wide))

    assert shown == [([True, False, False], False), ([False, True, False], False), ([False, False, True], False)]


def test_the_keyboard_reaches_everything(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    page.keyboard.press("n")
    page.keyboard.type(call(("echo", {"text": "one"}), ("weather", {"city": "Bergen"})))
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
    page.get_by_role("button", name="model, step 1").focus()
    visited = []
    for key in ("ArrowDown", "ArrowDown", "Home", "End"):
        page.keyboard.press(key)
        visited.append(str(page.evaluate("document.activeElement.ariaLabel")).partition(",")[0])
    page.keyboard.press("Escape")
    page.keyboard.press("/")

    assert (
        visited,
        page.get_by_role("region", name="Details").count(),
        page.evaluate("document.activeElement.ariaLabel"),
    ) == (
        ["echo", "weather", "model", "model"],
        0,
        "Search sessions",
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("key", ["Enter", ""], ids=["chosen", "focused"])
def test_the_bar_of_a_working_model_keeps_the_focus_when_it_is_recorded(
    page: Page, travel: Served, tmp_path: Path, key: str
) -> None:
    page.goto(travel.url)
    send(page, call(("echo", {"text": f"!hold {tmp_path / 'go'}"})))
    # The model works at the first step, too.
    page.get_by_role("button", name=re.compile("^echo, succeeded, .*step 1")).wait_for(timeout=DONE_MS)
    page.get_by_role("button", name="working").focus()
    if key:
        page.keyboard.press(key)
        page.get_by_role("region", name="Details").get_by_text("The model works").wait_for()
    (tmp_path / "go").touch()
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)

    expect(page.get_by_role("button", name="model, step 2")).to_be_focused()
    expect(page.get_by_role("heading", name="Answer")).to_have_count(len(key) and 1)


def test_no_text_is_ever_markup(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, f"{call(('echo', {'text': HOSTILE, HOSTILE: HOSTILE}), (HOSTILE, {}))}")
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
    # An input is shown as completed before its answer is read; until then, Enter steers.
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled(timeout=DONE_MS)
    send(page, HOSTILE)
    page.locator(".message.agent:not(.live)").get_by_text("You said: <img").wait_for(timeout=DONE_MS)
    for turn in page.get_by_role("button", name="Show its time").all():
        turn.click()
    for bar in page.locator(".bar").all():
        bar.click()

    images = page.locator("img, body script:not([type]) ~ script").count()
    assert (page.title(), images) == ("travel", 0)


def test_a_restarted_server_is_followed_again(page: Page, tmp_path: Path) -> None:
    with reserved_port() as port:
        with serving(tmp_path, "--port", str(port), agent=TRAVEL) as served:
            page.goto(served.url)
            send(page, "one")
            # The streamed answer is shown before it is stored.
            page.locator(".message.agent:not(.live)").get_by_text("You said: one").wait_for(timeout=DONE_MS)
            session = page.url.partition("#")[2]
            served.kill_all()
            page.get_by_text("reconnecting…").wait_for(timeout=DONE_MS)
        with serving(tmp_path, "--port", str(port), agent=TRAVEL) as served:
            expect(page.get_by_text("reconnecting…")).to_have_count(0, timeout=DONE_MS)
            with served.http() as http:
                message = {"model": "travel", "messages": [{"role": "user", "content": "two"}]}
                http.post("/v1/chat/completions", json={**message, "metadata": {"session_id": session}})
            # The streamed text gives way to the stored answer.
            expect(page.locator(".message.agent")).to_have_text(["You said: one", "You said: two"], timeout=DONE_MS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("late", ["request", "answer"])
@pytest.mark.parametrize("path", ["/events$", "follow=true", "/sessions/page-[^/]*$", "/summaries"])
def test_an_answer_is_shown_in_any_order_of_arrivals(page: Page, travel: Served, path: str, late: str) -> None:
    page.add_init_script(HELD % (json.dumps(path), json.dumps(late)))
    page.goto(travel.url)
    send(page, "one")

    expect(page.locator(".message.agent:not(.live)")).to_have_text(["You said: one"], timeout=DONE_MS)


def test_the_stored_answer_takes_the_element_of_the_streamed_one(page: Page, travel: Served, tmp_path: Path) -> None:
    page.add_init_script(WATCHED)
    page.goto(travel.url)
    send(page, f"!hold {tmp_path / 'go'}")
    page.locator(".message.agent.live").wait_for(timeout=DONE_MS)
    (tmp_path / "go").touch()
    expect(page.locator(".message.agent:not(.live)")).to_contain_text("You said: !hold", timeout=DONE_MS)

    assert page.evaluate("watched") == {"elements": 1, "removed": False}


def working(page: Page, asked: list[str], answers: list[str]) -> None:
    """Check that the page shows the newest message, and the running model call, beside the earlier answers."""
    expect(page.locator(".message.user")).to_have_text(asked, timeout=DONE_MS)
    expect(page.locator(".message.agent")).to_have_text(answers)
    expect(page.get_by_role("status")).to_have_text("running")
    expect(page.locator(".bar")).to_have_count(1)
    expect(page.get_by_role("button", name="working")).to_be_visible()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("repeats", [False, True], ids=["new text", "same text"])
def test_a_message_in_a_session_is_shown_while_its_first_model_call_runs(
    page: Page, travel: Served, tmp_path: Path, repeats: bool
) -> None:
    late = f"!late {tmp_path / 'go'}"
    first = late if repeats else "one"
    (tmp_path / "go").touch()
    page.goto(travel.url)
    send(page, first)
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled(timeout=DONE_MS)
    (tmp_path / "go").unlink()
    send(page, late)
    follower = page.context.new_page()
    follower.goto(page.url)

    for each in (page, follower):
        working(each, [first, late], [f"You said: {first}"])
    (tmp_path / "go").touch()
    for each in (page, follower):
        expect(each.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
        expect(each.locator(".message.user")).to_have_text([first, late])
        expect(each.locator(".message.agent:not(.live)")).to_have_text([f"You said: {first}", f"You said: {late}"])


def test_an_input_of_another_process_is_shown_while_its_first_model_call_runs(page: Page, tmp_path: Path) -> None:
    late = f"!late {tmp_path / 'go'}"
    with serving(tmp_path, agent=TRAVEL) as served, serving(tmp_path, agent=TRAVEL) as other, other.http() as http:
        page.goto(served.url)
        send(page, "one")
        page.locator(".message.agent:not(.live)").get_by_text("You said: one").wait_for(timeout=DONE_MS)
        session = page.url.partition("#")[2]
        body = {"model": "travel", "messages": [{"role": "user", "content": late}], "metadata": {"session_id": session}}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(http.post, "/v1/chat/completions", json=body)
            working(page, ["one", late], ["You said: one"])
            (tmp_path / "go").touch()
            asked.result()
        expect(page.locator(".message.agent")).to_have_text(["You said: one", f"You said: {late}"], timeout=DONE_MS)
        expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)


def test_a_message_that_is_refused_stays_in_its_box(page: Page, travel: Served) -> None:
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, json={"error": "Too many."}))
    page.goto(travel.url)
    send(page, "one")
    expect(page.get_by_role("alert")).to_contain_text("Too many.")
    expect(page.get_by_label("Message", exact=True)).to_have_value("one")
    page.unroute("**/v1/chat/completions")
    page.get_by_label("Message", exact=True).press("Enter")

    expect(page.locator(".message.agent:not(.live)")).to_have_text("You said: one", timeout=DONE_MS)


def test_a_message_creates_the_session_of_the_url(page: Page, travel: Served) -> None:
    page.goto(f"{travel.url}/#of-the-url")
    page.get_by_text("There is no session").wait_for()
    send(page, "one")

    expect(page.locator(".message.agent:not(.live)")).to_have_text(["You said: one"], timeout=DONE_MS)
    expect(page.get_by_text("There is no session")).to_have_count(0)


def test_a_key_is_asked_for_and_stays_in_its_tab(page: Page, tmp_path: Path) -> None:
    with serving(tmp_path, agent=TRAVEL, environment={"GRAPH_AGENT_API_KEYS": f"ana:{KEY}"}) as served:
        page.goto(served.url)
        page.get_by_label("API key").fill("another-key-of-no-one")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("none of this server's").wait_for()
        page.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        send(page, "hello")
        page.get_by_text("You said: hello").wait_for(timeout=DONE_MS)
        stored = page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie]")
        other = page.context.new_page()
        other.goto(served.url)
        asked = other.get_by_label("API key")
        asked.wait_for()

    assert (stored, asked.input_value(), os.fspath(page.url).count(KEY)) == ([[KEY, "ana"], 0, ""], "", 0)
