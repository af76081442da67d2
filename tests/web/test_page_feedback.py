"""The thumbs of the page, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from playwright.sync_api import Page, Route, expect

from tests.interfaces.server.process import Served, serving
from tests.support.chat_client import chat
from tests.support.cli import run_cli

pytestmark = pytest.mark.xdist_group("page")
DONE_MS = 60_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose agent repeats the messages."""
    with serving(tmp_path_factory.mktemp("parrot")) as server:
        yield server


def test_a_person_rates_an_answer_and_explains_it(page: Page, served: Served) -> None:
    with served.http() as http:
        chat(http, "thumbs", "one")
    page.goto(f"{served.url}/#thumbs")
    down = page.get_by_role("button", name="Bad answer")
    down.click(timeout=DONE_MS)
    page.get_by_label("What was wrong?").fill("It is Rome.")
    page.keyboard.press("Enter")
    expect(page.locator(".feedback small")).to_have_text("user: It is Rome.", timeout=DONE_MS)

    page.reload()

    expect(page.locator(".feedback small")).to_have_text("user: It is Rome.", timeout=DONE_MS)
    expect(down).to_have_attribute("aria-pressed", "true")
    events = httpx.get(f"{served.url}/memory/sessions/thumbs/events", params={"type": "feedback"}).json()["events"]
    assert [(each["rating"], each.get("note"), each["answer"]) for each in events] == [
        ("down", None, 3),
        ("down", "It is Rome.", 3),
    ]


def test_a_double_click_counts_once(page: Page, served: Served) -> None:
    with served.http() as http:
        chat(http, "twice", "one")
    held: list[Route] = []
    page.route("**/feedback", lambda route: held.append(route))  # noqa: PLW0108 - Playwright adds attributes to the function
    page.goto(f"{served.url}/#twice")
    up = page.get_by_role("button", name="Good answer")
    up.dblclick(timeout=DONE_MS)
    expect(up).to_be_disabled()
    expect(page.get_by_role("button", name="Bad answer")).to_be_disabled()
    sent = len(held)
    held[0].continue_()
    expect(up).to_have_attribute("aria-pressed", "true")
    expect(up).to_be_enabled()

    events = httpx.get(f"{served.url}/memory/sessions/twice/events", params={"type": "feedback"}).json()["events"]
    assert (sent, len(held), [each["rating"] for each in events]) == (1, 1, ["up"])
    expect(up).to_be_focused()


def test_a_rating_stays_through_the_next_input(page: Page, served: Served) -> None:
    with served.http() as http:
        chat(http, "kept", "one")
        page.goto(f"{served.url}/#kept")
        page.get_by_role("button", name="Good answer").click(timeout=DONE_MS)
        expect(page.get_by_role("button", name="Good answer")).to_have_attribute("aria-pressed", "true")
        chat(http, "kept", "two")

    expect(page.locator(".feedback")).to_have_count(2, timeout=DONE_MS)
    pressed = page.get_by_role("button", name="Good answer")
    expect(pressed.first).to_have_attribute("aria-pressed", "true")
    expect(pressed.last).to_have_attribute("aria-pressed", "false")


def test_a_rated_answer_becomes_the_case_that_the_command_line_writes(
    page: Page, served: Served, tmp_path: Path
) -> None:
    with served.http() as http:
        chat(http, "case", "one")
        chat(http, "case", '!call look_up {"word": "tea"}')
    page.goto(f"{served.url}/#case")
    page.get_by_role("button", name="Bad answer").last.click(timeout=DONE_MS)
    page.get_by_label("What was wrong?").fill("It is Rome.")
    page.keyboard.press("Enter")
    expect(page.locator(".feedback small")).to_have_text("user: It is Rome.", timeout=DONE_MS)
    page.get_by_role("button", name="Add to evaluation").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as a file").click()
    saved.value.save_as(tmp_path / "page.yaml")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="In the evaluation")).to_have_count(1)

    events = httpx.get(f"{served.url}/memory/sessions/case/events", params={"type": "feedback"}).json()["events"]
    assert [(each["rating"], each.get("note"), each.get("evaluate")) for each in events] == [
        ("down", None, None),
        ("down", "It is Rome.", None),
        ("down", "It is Rome.", True),
    ]
    made = yaml.safe_load((tmp_path / "page.yaml").read_text())
    url = f"sqlite:///{served.log.parent / 'sessions.db'}"
    by_hand = ["down", "--note", "It is Rome.", "--by", "user", "--case", "cli.yaml", "--db", url]
    assert run_cli(tmp_path, "feedback", "case", *by_hand).returncode == 0
    assert made == yaml.safe_load((tmp_path / "cli.yaml").read_text())
    assert made["cases"][0]["expect"]["answer"]["judge"]["rubric"].endswith("user wrote: It is Rome.")


def test_an_answer_without_feedback_is_no_case(served: Served) -> None:
    with served.http() as http:
        chat(http, "unrated", "one")
        refused = http.get("/sessions/unrated/case", params={"answer": 3})

    assert (refused.status_code, refused.json()["error"]) == (404, "Answer 3 has no feedback; rate it first.")
