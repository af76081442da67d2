"""The page, in a real browser: sessions, the conversation, the time axis, and decisions on calls."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from graph_agent.web.page import exported_page
from tests.interfaces.server.process import Served
from tests.support.cli import run_cli
from tests.support.warm_process import ONLY_OUR_PLUGIN, warm_python

pytestmark = pytest.mark.xdist_group("page")
DONE_MS = 60_000


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def bars(page: Page) -> list[str]:
    """The names that a screen reader reads of the bars, without durations."""
    labels = [bar.get_attribute("aria-label") or "" for bar in page.locator(".bar").all()]
    return [re.sub(r", (<?[\d.]+ (ms|s)|no duration|\d+ tokens)", "", label) for label in labels]


def drawing(page: Page) -> list[Any]:
    """The bars of the time axis: name, state and place."""
    page.locator(".bar").first.wait_for()
    # The axis has its width once the browser has drawn a frame.
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    bars: list[Any] = page.locator(".bar").evaluate_all(
        "bars => bars.map(bar => [bar.ariaLabel, bar.className, bar.style.cssText])"
    )
    return bars


def sent_messages(page: Page) -> list[str]:
    """The types of the messages that a model call was sent, as the details show them."""
    request = page.get_by_role("region", name="Details").locator(".block", has_text="What the model was sent")
    lines = request.locator("pre").inner_text().splitlines()
    return [line for line in lines if re.fullmatch(r"(\+ )?(system|human|ai|tool)", line)]


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

    blocks = page.get_by_role("region", name="Details").locator("pre")
    expect(blocks).to_have_text(['{\n  "text": "aU+202Eb"\n}', "aU+202Eb"])


def test_a_message_shows_the_characters_that_reorder_it(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, "exe.\u202egpj\u2066 שלום 👩\u200d👧")

    expect(page.locator(".message.user p").last).to_have_text("exe.U+202EgpjU+2066 שלום 👩\u200d👧")


def test_a_model_call_shows_what_it_was_sent(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, '!call [["echo", {"text": "one"}]]')
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
    page.get_by_role("button", name=re.compile("^model, step 2")).click()

    assert sent_messages(page) == ["system", "human", "+ ai", "+ tool"]


def test_the_requests_of_parallel_delegates_are_shown(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, '!call [["delegate_to_guide", {"task": "Walk"}], ["delegate_to_guide", {"task": "Swim"}]]')
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)

    bars = page.locator(".bar.model.nested")
    expect(bars).to_have_count(4)

    def tasks_of_requests() -> list[str]:
        found = []
        for bar in bars.all():
            bar.click()
            request = page.get_by_role("region", name="Details").locator(".block", has_text="What the model was sent")
            found += re.findall(r"^(?:\+ )?human\n(Walk|Swim)$", request.locator("pre").inner_text(), re.MULTILINE)
            page.get_by_role("button", name="Close details").click()
        return found

    assert {*tasks_of_requests()} == {"Swim", "Walk"}


def test_a_request_that_was_not_recorded_is_reconstructed(page: Page, travel: Served) -> None:
    page.route("**/events?type=model_request*", lambda route: route.fulfill(json={"events": []}))
    page.goto(travel.url)
    send(page, '!call [["echo", {"text": "one"}]]')
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
    page.get_by_role("button", name=re.compile("^model, step 2")).click()

    expect(page.get_by_role("region", name="Details")).to_contain_text("3 messages, reconstructed")
    assert sent_messages(page) == ["human", "+ ai", "+ tool"]


LATE_HISTORY = """
    const fetched = window.fetch;
    const [asked, added] = [Promise.withResolvers(), Promise.withResolvers()];
    let isNew = true;
    window.fetch = async (url, options) => {
      if (/[/]events$/.test(url) && isNew) {
        await asked.promise;
        isNew = false;
        return new Response('{"events": [], "after": -1}');
      }
      if (/follow=true/.test(url)) await added.promise;
      const answer = await fetched(url, options);
      if (/events[?]after=-1/.test(url)) {
        asked.resolve();
        await new Promise((resolve) => setTimeout(resolve, 100));
        setTimeout(added.resolve, 100);
      }
      return answer;
    };
"""
"""Read a new session without events, and then the events for the history that was shown before."""


def test_events_of_a_history_that_is_no_longer_shown_choose_no_input(page: Page, travel: Served) -> None:
    page.add_init_script(LATE_HISTORY)
    page.route("**/events?type=model_request*", lambda route: route.fulfill(json={"events": []}))
    page.goto(travel.url)
    send(page, '!call [["echo", {"text": "one"}]]')
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
    page.get_by_role("button", name=re.compile("^model, step 2")).click()

    # The request is reconstructed from the history that is shown.
    assert sent_messages(page) == ["human", "+ ai", "+ tool"]


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


def test_a_step_is_forked_and_its_branches_are_compared(page: Page, travel: Served) -> None:
    page.goto(travel.url)
    send(page, "Plan a trip to Bergen")
    page.get_by_label("reject").first.check(timeout=DONE_MS)
    page.get_by_role("button", name="Send decisions").click()
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
    origin = page.url.partition("#")[2]

    page.get_by_role("button", name=re.compile("^delegate_to_guide")).last.click()
    # A person rejected one booking, and the other one ran.
    page.once("dialog", lambda dialog: dialog.accept())
    with page.expect_event("dialog") as asked:
        page.get_by_role("button", name="Fork after this step").click()
    expect(page.get_by_role("status")).to_have_text("interrupted", timeout=DONE_MS)
    expect(page.locator(".time > .axis")).not_to_contain_text("working")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Send decisions").click(timeout=DONE_MS)
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)

    comparison = page.get_by_label(f"Comparison with {origin}")
    rows = comparison.locator("tbody tr")
    expect(rows.nth(1)).to_have_text("Steps44")
    expect(rows.nth(2)).to_have_text("Calls8, 1 failed8, 1 failed")
    assert "After this step, the session made 1 call that may have side effects:" in asked.value.message
    # The branch has approved what its origin rejected.
    sides = [page.locator(".time > .axis"), comparison.locator(".axis")]
    assert [side.locator(".bar.denied").count() for side in sides] == [0, 1]


def test_an_input_is_copied_as_a_test_that_passes(page: Page, travel: Served, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(travel.url)
    send(page, '!call [["echo", {"text": "it\'s \\"so\\""}], ["weather", {"city": "Bergen"}]]')
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)
    page.get_by_role("button", name="test", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Copied.")

    copied = tmp_path / "test_copied.py"
    copied.write_text(page.evaluate("navigator.clipboard.readText()"))
    command = [warm_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(copied)]
    run = subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **ONLY_OUR_PLUGIN},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout


def test_the_root_is_a_page_under_a_strict_policy(travel: Served) -> None:
    answer = httpx.get(travel.url, headers={"accept": "text/html"}, trust_env=False)

    policy = re.sub(r"sha256-[^']*", "sha256", answer.headers["content-security-policy"])
    assert (answer.headers["content-type"], policy) == (
        "text/html; charset=utf-8",
        "default-src 'none'; script-src 'sha256'; style-src 'sha256'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    )


def test_the_script_of_the_page_is_bounded(travel: Served) -> None:
    html = httpx.get(travel.url, trust_env=False).text
    [script] = re.findall(r"<script>(.*)</script>", html, re.DOTALL)
    modules = {
        name: len(text.encode()) for name, text in re.findall(r'^modules\["(.*?)"\](.*?)^return\{', script, re.S | re.M)
    }
    vendored = sum(size for name, size in modules.items() if name.startswith("vendor/"))

    # marked has 52 kB of it, because Markdown has many cases; markdown-it would have 125 kB.
    assert vendored <= 66_000
    assert len(script.encode()) - vendored <= 115_700


def test_an_id_that_the_server_refuses_is_named_once(page: Page, travel: Served) -> None:
    page.goto(f"{travel.url}/#100%")

    expect(page.get_by_role("alert")).to_contain_text("session")
    expect(page.get_by_role("status")).not_to_contain_text("reconnecting")


def test_a_run_is_steered_followed_up_and_aborted(page: Page, travel: Served, tmp_path: Path) -> None:
    page.goto(travel.url)
    send(page, f'!call [["wait_for", {{"file": "{tmp_path / "go"}"}}]]')
    # A session is shown as running before its first event is read; until then, Enter does nothing.
    expect(page.get_by_role("button", name="Steer")).to_be_enabled(timeout=DONE_MS)
    expect(page.get_by_role("status")).to_have_text("running", timeout=DONE_MS)
    send(page, "Be brief.")
    expect(page.get_by_role("status")).to_contain_text("the next plan reads it")
    page.get_by_label("Message", exact=True).fill("And then?")
    page.get_by_role("button", name="Follow up").click()
    expect(page.get_by_role("status")).to_contain_text("Queued")
    (tmp_path / "go").touch()
    page.locator(".message.agent:not(.live)").get_by_text("You said: And then?").wait_for(timeout=DONE_MS)
    # An input is shown as completed before its answer is read; until then, Enter steers.
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled(timeout=DONE_MS)
    send(page, f'!call [["wait_for", {{"file": "{tmp_path / "never"}"}}]]')
    # Before the run begins, there is nothing to abort.
    page.get_by_role("button", name="wait_for, running", exact=True).wait_for(timeout=DONE_MS)
    page.get_by_role("button", name="Abort").click(timeout=DONE_MS)
    page.locator(".ending").wait_for(timeout=DONE_MS)

    users = [" ".join(text.split()) for text in page.locator(".message.user").all_inner_texts()]
    assert (users[1:3], page.locator(".ending").inner_text()) == (["Steering Be brief.", "And then?"], "aborted")


def test_a_wave_that_waits_shows_each_result_once_it_is_there(page: Page, travel: Served) -> None:
    wave = '!call [["ask_person", {"question": "Which?"}], ["echo", {"text": "x"}]]'
    body = {"model": "travel", "messages": [{"role": "user", "content": wave}], "metadata": {"session_id": "waits"}}
    with travel.http() as http:
        http.post("/v1/chat/completions", json=body).raise_for_status()
        page.goto(f"{travel.url}/#waits")
        page.locator(".bar").first.wait_for()
        waiting = bars(page)
        http.post("/sessions/waits/resume", json={"answer": "This one."}).raise_for_status()
    page.locator(".message.agent:not(.live)").get_by_text("Done: 2 results.").wait_for(timeout=DONE_MS)

    assert waiting == ["model, step 1", "ask_person, running, step 1", "echo, succeeded, step 1"]
    assert bars(page)[:3] == ["model, step 1", "ask_person, succeeded, step 1", "echo, succeeded, step 1"]


def test_events_that_come_again_at_their_final_places_are_shown_once(page: Page, travel: Served) -> None:
    wave = '!call [["ask_person", {"question": "Which?"}], ["echo", {"text": "x"}]]'
    body = {"model": "travel", "messages": [{"role": "user", "content": wave}], "metadata": {"session_id": "again"}}

    def without_a_final_place(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "after": -1})

    page.route(re.compile("/events$"), without_a_final_place)
    with travel.http() as http:
        http.post("/v1/chat/completions", json=body).raise_for_status()
        page.goto(f"{travel.url}/#again")
        page.locator(".bar").first.wait_for()
        http.post("/sessions/again/resume", json={"answer": "This one."}).raise_for_status()
    expect(page.get_by_role("status")).to_have_text("completed", timeout=DONE_MS)

    expect(page.locator("header")).to_contain_text("2 model calls")
    expect(page.locator(".message")).to_have_text([wave, "Done: 2 results."])
    assert bars(page) == ["model, step 1", "ask_person, succeeded, step 1", "echo, succeeded, step 1", "model, step 2"]


def test_a_superseded_input_is_shown_as_ended(page: Page, tmp_path: Path) -> None:
    common = {"ts": "2026-11-20T10:00:00+00:00", "step": 0}
    events = [{**common, "type": type_, "content": text} for type_, text in SUPERSEDING]
    (tmp_path / "session.html").write_text(exported_page("s1", events, "agent"))

    page.goto((tmp_path / "session.html").as_uri())

    page.get_by_text("Fine.").wait_for()
    assert page.locator(".turn").nth(2).locator(".ending").count() == 0
    assert page.locator(".ending").all_inner_texts() == ["superseded"]


SUPERSEDING = [
    ("user_message", "One."),
    ("user_message", "And two."),
    ("steering", "Be brief."),
    ("user_message", "Never mind."),
    ("agent_response", "Fine."),
]


def test_unfinished_work_of_an_exported_session_lasts_until_its_newest_event() -> None:
    event = {"type": "user_message", "step": 0, "seq": 0, "content": "go", "ts": "2026-11-20T10:00:00+00:00"}

    html = exported_page("s1", [event], "agent")

    assert '"now":1795168800000' in html
